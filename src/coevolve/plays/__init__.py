"""Who speaks when, hearing what. A play is a coroutine of a few lines; see ``coevolve.play``."""

from collections.abc import Callable

from coevolve.plays.best_of import best_of
from coevolve.plays.chain import chain
from coevolve.plays.discussion import discussion
from coevolve.plays.rounds import rounds
from coevolve.plays.tree import tree
from coevolve.types import Play

PLAYS: dict[str, Callable[..., Play]] = {
    "chain": chain,
    "rounds": rounds,
    "tree": tree,
    "best_of": best_of,
    "discussion": discussion,
}

__all__ = ["PLAYS", "best_of", "chain", "discussion", "rounds", "tree"]
