"""The stand-ins that a test sees for objects that stay with the solution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, cast

if TYPE_CHECKING:
    from .judge import Judge


def _refuse(self: object, *_: object) -> NoReturn:
    raise TypeError("the solution's value is an object of its own: it cannot be compared, looked into or changed")


def mark(value: Opaque) -> list[Any]:
    """Return the reference by which the guest knows the object."""
    return cast("list[Any]", object.__getattribute__(value, "_mark"))


class Opaque:
    """A stand-in for an object of the solution. A test may pass it back and test its truth, for which the solution
    could as well have returned True or False. Everything else is refused: attributes of the stand-in must not be taken
    for the object's.
    """

    __slots__ = ("__name__", "_judge", "_mark", "_truth")

    def __init__(self, judge: Judge, mark: list[Any], name: str = "object", truth: bool | None = None) -> None:
        values = (name, judge, mark, truth)
        for slot, value in zip(Opaque.__slots__, values, strict=True):
            object.__setattr__(self, slot, value)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            return object.__getattribute__(self, name)
        raise AttributeError(f"{name!r} of the solution's object stays with the solution")

    def __bool__(self) -> bool:
        truth: bool | None = object.__getattribute__(self, "_truth")
        return _refuse(self) if truth is None else truth

    def _call(self, what: list[Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return object.__getattribute__(self, "_judge").call(what, arguments, keywords)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __str__ = __repr__ = _refuse
    __setattr__ = __delattr__ = __setitem__ = __delitem__ = _refuse
    # None instead of _refuse, so that isinstance does not take the stand-in for a container either.
    __len__ = __iter__ = __contains__ = __hash__ = None  # type: ignore[assignment]


class Called(Opaque):
    """A stand-in for a callable, which a test may call."""

    __slots__ = ()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return Opaque._call(self, mark(self), arguments, keywords)


class Lazy(Opaque):
    """A stand-in for an iterator, whose items are fetched one by one."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self

    def __next__(self) -> Any:
        return Opaque._call(self, ["x", *mark(self)[1:]], (), {})
