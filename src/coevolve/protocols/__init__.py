"""Who speaks when, hearing what. A play is a coroutine of a few lines; see ``coevolve.play``."""

from collections.abc import Callable

from coevolve.protocols.best_of import best_of
from coevolve.protocols.chain import chain
from coevolve.protocols.discussion import discussion
from coevolve.protocols.rounds import rounds
from coevolve.protocols.tree import tree
from coevolve.types import Play

PLAYS: dict[str, Callable[..., Play]] = {
    "chain": chain,
    "rounds": rounds,
    "tree": tree,
    "best_of": best_of,
    "discussion": discussion,
}

__all__ = ["PLAYS", "best_of", "chain", "discussion", "rounds", "tree"]
