"""Coevolve: fine-tune several language models together by reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from coevolve.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """The names of ``coevolve.public``, imported at first use: ``coevolve --help`` need not wait for torch."""
        from importlib import import_module, util

        if name != "__all__" and (name.startswith("_") or util.find_spec(f"{__name__}.{name}")):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")  # a module that nobody imported yet
        return getattr(import_module("coevolve.public"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
