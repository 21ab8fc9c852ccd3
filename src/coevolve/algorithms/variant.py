"""Algorithms that are another one with other defaults, as functions with their own signature and docstring."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from coevolve.types import Algorithm


def variant(name: str, of: Callable[..., Algorithm], about: str, **defaults: Any) -> Callable[..., Algorithm]:
    """Return ``of`` with these defaults. about: the docstring's first line; the rest, on settings, is ``of``'s."""
    signature = inspect.signature(of)
    assert defaults.keys() <= signature.parameters.keys(), defaults

    @functools.wraps(of)
    def made(*given: Any, **settings: Any) -> Algorithm:
        return of(*given, **{**defaults, **settings})

    parameters = [p.replace(default=defaults.get(p.name, p.default)) for p in signature.parameters.values()]
    made.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    made.__name__ = made.__qualname__ = name
    _, _, settings = (of.__doc__ or "").partition("\n")
    made.__doc__ = f"{about}\n{settings}"
    return made
