"""Sixteen numbers at once, inside compiled loops whose sums numba would keep in memory or in single numbers.

A processor with shorter vectors takes several for one. An index is a tuple with a number for every dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped
from numba.extending import intrinsic, models, register_model

SIZE = 16
"""How many numbers, which is also how many memory hands over together."""

_ONE, _MANY, _NUMBER = ir.FloatType(), ir.VectorType(ir.FloatType(), SIZE), ir.IntType(32)


cgutils: Any = untyped
_inside: Callable[[Any], Any] = intrinsic  # what it makes cannot be called as it is written


class _Kind(types.Type):
    """Numba's word for such numbers."""


_KIND = _Kind("vector")
_FOUR = types.UniTuple(types.float32, 4)  # type: ignore[no-untyped-call]


@register_model(_Kind)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _MANY)  # type: ignore[no-untyped-call]


def _place(context: Any, builder: Any, kind: Any, given: Any, to: Any) -> Any:
    """A pointer to what is at an index of an array of this kind, which are the first two that are given."""
    array = context.make_array(kind)(context, builder, given[0])
    index = cgutils.unpack_tuple(builder, given[1])
    return builder.bitcast(cgutils.get_item_pointer(context, builder, kind, array, index), to.as_pointer())


@_inside
def load(typing: Any, array: Any, index: Any) -> Any:
    """The numbers that begin at this index of a float32 array."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.load(_place(context, builder, array, given, _MANY), align=4)

    return _KIND(array, index), generate


@_inside
def store(typing: Any, array: Any, index: Any, numbers: Any) -> Any:
    """Write the numbers, beginning at this index of a float32 array."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        builder.store(given[2], _place(context, builder, array, given, _MANY), align=4)
        return context.get_dummy_value()

    return types.void(array, index, _KIND), generate


@_inside
def every(typing: Any, number: Any) -> Any:
    """The same float32 number sixteen times."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        nothing = ir.Constant(_MANY, ir.Undefined)
        first = builder.insert_element(nothing, given[0], _NUMBER(0))
        return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_NUMBER, SIZE), [0] * SIZE))

    return _KIND(types.float32), generate


@_inside
def plus(typing: Any, sum: Any, a: Any, b: Any) -> Any:
    """sum + a b, number by number, rounded once where the processor can."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        product = builder.fmul(given[1], given[2], flags=("contract",))
        return builder.fadd(product, given[0], flags=("contract",))

    return _KIND(_KIND, _KIND, _KIND), generate


@_inside
def totals(typing: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Their four sums. First the halves of two are added at a time, then the quarters of all four: fewer steps."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        def both(x: Any, y: Any, places: Sequence[int]) -> Any:
            """x and y at these places, plus x and y at those which are ``length`` behind."""
            behind = [place + length for place in places]
            kind = ir.VectorType(_NUMBER, len(places))
            parts = (builder.shuffle_vector(x, y, ir.Constant(kind, some)) for some in (places, behind))
            return builder.fadd(next(parts), next(parts))

        length = 8
        ab, cd = (both(x, y, [*range(8), *range(16, 24)]) for x, y in (given[:2], given[2:]))
        length = 4
        abcd = both(ab, cd, [n + k for n in (0, 8, 16, 24) for k in range(4)])
        length = 2
        abcd = both(abcd, abcd, [n + k for n in (0, 4, 8, 12) for k in range(2)])
        length = 1
        abcd = both(abcd, abcd, [0, 2, 4, 6])
        sums = [builder.extract_element(abcd, _NUMBER(n)) for n in range(4)]
        return context.make_tuple(builder, signature.return_type, sums)

    return _FOUR(_KIND, _KIND, _KIND, _KIND), generate


@_inside
def fetch(typing: Any, array: Any, index: Any) -> Any:
    """Have memory from this index of an array on brought into the cache, as much as comes together."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        byte = ir.IntType(8)
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), _NUMBER, _NUMBER, _NUMBER])
        ask = builder.module.declare_intrinsic("llvm.prefetch", [byte.as_pointer()], kind)
        how = (0, 3, 1)  # to read, to be kept, data
        builder.call(ask, [_place(context, builder, array, given, byte), *map(_NUMBER, how)])
        return context.get_dummy_value()

    return types.void(array, index), generate
