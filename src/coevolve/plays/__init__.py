"""The plays: protocols of who speaks when, and hears what. Each is a short coroutine; see ``coevolve.play``."""

from collections.abc import Callable

from coevolve.plays.best_of import best_of
from coevolve.plays.chain import chain
from coevolve.plays.discussion import discussion
from coevolve.plays.hinted import hinted
from coevolve.plays.misheard import misheard
from coevolve.plays.observers import observers
from coevolve.plays.refereed import refereed
from coevolve.plays.resampled import resampled
from coevolve.plays.rounds import rounds
from coevolve.plays.tools import tools
from coevolve.plays.tree import tree
from coevolve.types import Play

PLAYS: dict[str, Callable[..., Play]] = {
    "chain": chain,
    "rounds": rounds,
    "tree": tree,
    "best_of": best_of,
    "discussion": discussion,
    "resampled": resampled,
    "observers": observers,
    "hinted": hinted,
    "misheard": misheard,
    "tools": tools,
    "refereed": refereed,
}

__all__ = [
    "PLAYS",
    "best_of",
    "chain",
    "discussion",
    "hinted",
    "misheard",
    "observers",
    "refereed",
    "resampled",
    "rounds",
    "tools",
    "tree",
]
