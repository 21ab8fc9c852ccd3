"""Who speaks when, hearing what. A play is a coroutine of a few lines; see ``coevolve.play``."""

from collections.abc import Callable

from coevolve.protocols.chain import chain
from coevolve.types import Play

PLAYS: dict[str, Callable[..., Play]] = {"chain": chain}

__all__ = ["PLAYS", "chain"]
