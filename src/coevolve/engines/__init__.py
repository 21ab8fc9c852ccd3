"""How policies generate: what a recipe's ``engine`` may name."""

from __future__ import annotations

from coevolve import defaults
from coevolve.interfaces import Engine
from coevolve.settings import Count


def local(*, max_tokens: Count = defaults.MAX_TOKENS) -> Engine:
    """On this machine; max_tokens: positions decoded at a time (``LocalEngine``)."""
    from coevolve.engines.local import LocalEngine  # and with it torch

    return LocalEngine(max_tokens=max_tokens)


ENGINES = {"local": local}
