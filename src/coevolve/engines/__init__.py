"""How policies generate. An engine of the user's own is a subclass of ``BaseEngine``."""

from __future__ import annotations

from coevolve.engines.local import LocalEngine
from coevolve.interfaces import Engine
from coevolve.settings import Count


def local(*, max_tokens: Count = LocalEngine.MAX_TOKENS) -> Engine:
    """On this machine; max_tokens: positions decoded at a time (``LocalEngine``)."""
    return LocalEngine(max_tokens=max_tokens)


ENGINES = {"local": local}
"""What a recipe's ``engine`` may name."""
