"""Numbers of arrays in float32 or in bfloat16, which is the upper half of a float32 and comes as uint16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

KINDS = (types.float32, types.uint16)
"""What arrays may have; loops of others are not compiled."""

_inside: Callable[[Any], Any] = intrinsic  # what it makes cannot be called as it is written


def widened(builder: Any, number: Any) -> Any:
    """The float32 of a bfloat16, or of a vector of them."""
    word, real = _like(number, ir.IntType(32)), _like(number, ir.FloatType())
    return builder.bitcast(builder.shl(builder.zext(number, word), _constant(word, 16)), real)


def narrowed(builder: Any, number: Any) -> Any:
    """The bfloat16 nearest to a float32, of two the even one; or of a vector of them."""
    word, half = _like(number, ir.IntType(32)), _like(number, ir.IntType(16))
    bits = builder.bitcast(number, word)
    even = builder.and_(builder.lshr(bits, _constant(word, 16)), _constant(word, 1))
    rounded = builder.add(bits, builder.add(even, _constant(word, 0x7FFF)))
    nothing = builder.fcmp_unordered("uno", number, number)  # NaN would round to a number
    chosen = builder.select(nothing, _constant(word, 0x7FC0 << 16), rounded)
    return builder.trunc(builder.lshr(chosen, _constant(word, 16)), half)


def _like(number: Any, kind: Any) -> Any:
    return ir.VectorType(kind, number.type.count) if isinstance(number.type, ir.VectorType) else kind


def _constant(kind: Any, number: int) -> Any:
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


@_inside
def read(typing: Any, number: Any) -> Any:
    """The float32 that an array's number stands for."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return given[0] if number == types.float32 else widened(builder, given[0])

    return (types.float32(number), generate) if number in KINDS else None


@_inside
def kept(typing: Any, array: Any, number: Any) -> Any:
    """What stands for a float32 in an array of this kind."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return given[1] if array.dtype == types.float32 else narrowed(builder, given[1])

    return (array.dtype(array, types.float32), generate) if array.dtype in KINDS else None
