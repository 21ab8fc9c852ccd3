"""Types of settings with their ranges, checked the same way in Python calls and in recipes.

The ranges stand in the signatures of factories and the fields of dataclasses (``gamma: Fraction``). A recipe is checked
before anything is built (``components``), a call when it is made. Both raise one line that names the key.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

from pydantic import BeforeValidator, Field, Strict

from coevolve.recipe.components import checked

_BITS = 63
"""Most bits of a whole number. Larger ones fit no counter, and Python cannot print those of 5,000 digits."""


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"want a number, found {value}")
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise ValueError(f"want a number below 2 ** {_BITS}, found one of {value.bit_length()} bits")
    return value


_NUMBER = BeforeValidator(_number)

Count = Annotated[int, Field(ge=1), _NUMBER]
"""A whole number >= 1."""
CountFromZero = Annotated[int, Field(ge=0), _NUMBER]
Finite = Annotated[float, Field(allow_inf_nan=False), _NUMBER]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), _NUMBER]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), _NUMBER]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), _NUMBER]
"""From 0 to 1, both included."""
PositiveFraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), _NUMBER]
BelowOne = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), _NUMBER]
"""From 0, included, to 1, excluded."""
Workers = Annotated[bool, Strict()] | Literal["auto"]
"""Whether policies on the CPU compute in worker processes, one per core; "auto": where this is faster."""


def _path(value: Any) -> Any:
    if isinstance(value, int | float):
        raise ValueError(f"want a path, found the number {value}; write ./{value}")
    return os.path.expanduser(value) if isinstance(value, str) else value


Folder = Annotated[Path, BeforeValidator(_path)]
"""The path of a folder; ``~`` is expanded to the home directory."""

Given = ParamSpec("Given")
Made = TypeVar("Made")


def checked_call(where: str) -> Callable[[Callable[Given, Made]], Callable[Given, Made]]:
    """Return a decorator for factories that checks their arguments like a recipe's settings. where: the key in the
    recipe ("algorithm", "play").

    The factory raises ValueError with one line, also for an argument that is unknown, missing or given twice, where
    Python would raise TypeError.
    """

    def over(factory: Callable[Given, Made]) -> Callable[Given, Made]:
        signature = inspect.signature(factory)

        @functools.wraps(factory)
        def made(*args: Given.args, **settings: Given.kwargs) -> Made:
            known = {name: value for name, value in settings.items() if name in signature.parameters}
            try:
                given = signature.bind_partial(*args, **known).arguments
            except TypeError as error:
                raise ValueError(f"{where}: {error}") from error
            found = checked(factory, {**settings, **given}, where, ())
            result = factory(**found)  # type: ignore[call-arg]
            if inspect.isfunction(result):  # such as a play, whose settings are stored nowhere else
                whole = signature.bind_partial(**found)
                whole.apply_defaults()
                result.settings = dict(whole.arguments)  # type: ignore[attr-defined]
                result.factory = factory.__name__  # type: ignore[attr-defined]
            return result

        made.makes = where  # type: ignore[attr-defined]  # tells a factory from the functions that it makes
        return made

    return over


def check_unused(factory: Callable[..., Any], settings: Mapping[str, Any], name: str, without: str) -> None:
    """Raise ValueError for an unused setting whose value is not its default. without: the setting that would make it
    used.

    A default that is set explicitly cannot be told from one left out, and does no harm.
    """
    if settings[name] != inspect.signature(factory).parameters[name].default:
        raise ValueError(f"algorithm: {name} is {settings[name]}, and nothing looks at it without {without}; set "
                         f"{without}, or leave {name} out")  # fmt: skip


def check_fields(made: Any, where: str) -> None:
    """Check and convert the fields of a frozen dataclass by their types, for ``__post_init__``. Raises ValueError."""
    fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    for name, value in checked(type(made), fields, where, ()).items():
        object.__setattr__(made, name, value)
