"""What a test sees of an object that stays with the solution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from .judge import Judge


def _refuse(self: object, *_: object) -> NoReturn:
    raise TypeError("the solution's value is an object of its own: it cannot be compared or looked into")


class Opaque:
    """A test may hand it back, and ask whether it is true: what the solution says of that is worth as much as True or
    False in its place. Nothing else.
    """

    def __init__(self, judge: Judge, mark: list[Any], name: str = "object", truth: bool | None = None) -> None:
        self._judge, self.mark, self.__name__, self._truth = judge, mark, name, truth

    def __bool__(self) -> bool:
        return _refuse(self) if self._truth is None else self._truth

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __str__ = __repr__ = _refuse
    # None, so that isinstance does not take it for a container either.
    __len__ = __iter__ = __contains__ = __hash__ = None  # type: ignore[assignment]


class Called(Opaque):
    """Something that can be called."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._judge.call(self.mark, arguments, keywords)


class Lazy(Opaque):
    """An iterator: its items come one by one."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self

    def __next__(self) -> Any:
        return self._judge.call(["x", *self.mark[1:]], (), {})
