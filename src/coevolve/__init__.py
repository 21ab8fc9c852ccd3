"""Coevolve: fine-tune several language models together by reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from coevolve.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """Return a submodule or a name of ``coevolve.public``, imported at first use: torch takes seconds to load."""
        from importlib import import_module, util

        hidden = name.startswith("_") and name != "__all__"
        if not hidden and name.isidentifier() and util.find_spec(f"{__name__}.{name}"):
            return import_module(f"{__name__}.{name}")
        if not hidden and hasattr(public := import_module("coevolve.public"), name):
            return getattr(public, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
