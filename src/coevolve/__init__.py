"""Coevolve: fine-tune several language models together by reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from coevolve.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """Return a name of ``coevolve.public``, imported at first use: ``coevolve --help`` need not load torch."""
        from importlib import import_module, util

        hidden = name.startswith("_") and name != "__all__"
        if not hidden and not (name.isidentifier() and util.find_spec(f"{__name__}.{name}")):
            public = import_module("coevolve.public")  # a name of a submodule does not import the rest
            if hasattr(public, name):
                return getattr(public, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
