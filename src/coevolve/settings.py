"""What a setting may be, said by its type, and checked alike in Python and in a recipe.

A factory's signature and a dataclass's fields name their ranges (``gamma: Fraction``); a recipe is checked against them
before anything is built (``components``), a call when it is made. Either way a mistake is one line that names the key.
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
"""Of a whole number. Larger ones fit no counter, and Python does not even print those of 5,000 digits."""


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"want a number, found {value}")
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise ValueError(f"want a number below 2 ** {_BITS}, found one of {value.bit_length()} bits")
    return value


_NUMBER = BeforeValidator(_number)

Count = Annotated[int, Field(ge=1), _NUMBER]
"""A whole number from 1 on."""
CountFromZero = Annotated[int, Field(ge=0), _NUMBER]
Finite = Annotated[float, Field(allow_inf_nan=False), _NUMBER]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), _NUMBER]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), _NUMBER]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), _NUMBER]
"""From 0 to 1, both included."""
PositiveFraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), _NUMBER]
BelowOne = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), _NUMBER]
"""From 0 on, but less than 1."""
Workers = Annotated[bool, Strict()] | Literal["auto"]
"""Whether policies on the CPU compute in worker processes, one a core; "auto": where they pay."""

Folder = Annotated[Path, BeforeValidator(lambda given: os.path.expanduser(given) if isinstance(given, str) else given)]
"""The path of a folder, in which ``~`` is the home directory as it is in a shell."""

Given = ParamSpec("Given")
Made = TypeVar("Made")


def checked_call(where: str) -> Callable[[Callable[Given, Made]], Callable[Given, Made]]:
    """A factory that checks its arguments as a recipe's are checked. where: the recipe's key ("algorithm", "play").

    The factory raises ValueError of one line, also where Python's own TypeError would be for an argument that is
    unknown, missing or there twice.
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
            if inspect.isfunction(result):  # such as a play, of which nothing else says how it was made
                whole = signature.bind_partial(**found)
                whole.apply_defaults()
                result.settings = dict(whole.arguments)  # type: ignore[attr-defined]
            return result

        made.makes = where  # type: ignore[attr-defined]  # so that one can be told from what it makes
        return made

    return over


def check_idle(factory: Callable[..., Any], settings: Mapping[str, Any], name: str, without: str) -> None:
    """Raises ValueError for a setting of a value that is not its default, where nothing looks at it. without: the
    setting that would have it looked at.

    A default that somebody wrote down cannot be told from one that nobody did, and misleads nobody.
    """
    if settings[name] != inspect.signature(factory).parameters[name].default:
        raise ValueError(f"algorithm: {name} is {settings[name]}, and nothing looks at it without {without}; set "
                         f"{without}, or leave {name} out")  # fmt: skip


def check_fields(made: Any, where: str) -> None:
    """For a frozen dataclass's ``__post_init__``: its fields are as their types say, or ValueError of one line."""
    fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    for name, value in checked(type(made), fields, where, ()).items():
        object.__setattr__(made, name, value)
