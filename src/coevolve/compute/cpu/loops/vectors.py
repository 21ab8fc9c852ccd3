"""Access to arrays of float32 or bfloat16 (the upper half of a float32, as uint16), and vectors of sixteen numbers, for
compiled loops whose sums numba would otherwise keep in memory or in scalars.

A processor with shorter vectors uses several for one. An index is a tuple with a number for every dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped
from numba.extending import intrinsic, models, register_model

cgutils: Any = untyped
inside: Callable[[Any], Any] = intrinsic  # an intrinsic is called without the argument ``typing``

KINDS = (types.float32, types.uint16)
"""The dtypes that arrays may have; loops on others do not compile."""


def widened(builder: Any, number: Any) -> Any:
    """Convert a bfloat16, or a vector of them, to float32."""
    word, real = _like(number, ir.IntType(32)), _like(number, ir.FloatType())
    return builder.bitcast(builder.shl(builder.zext(number, word), _constant(word, 16)), real)


def narrowed(builder: Any, number: Any) -> Any:
    """Round a float32, or a vector of them, to the nearest bfloat16, ties to even."""
    word, half = _like(number, ir.IntType(32)), _like(number, ir.IntType(16))
    bits = builder.bitcast(number, word)
    even = builder.and_(builder.lshr(bits, _constant(word, 16)), _constant(word, 1))
    rounded = builder.add(bits, builder.add(even, _constant(word, 0x7FFF)))
    nothing = builder.fcmp_unordered("uno", number, number)  # NaN could be rounded to infinity or a number
    chosen = builder.select(nothing, _constant(word, 0x7FC0 << 16), rounded)
    return builder.trunc(builder.lshr(chosen, _constant(word, 16)), half)


def _like(number: Any, kind: Any) -> Any:
    return ir.VectorType(kind, number.type.count) if isinstance(number.type, ir.VectorType) else kind


def _constant(kind: Any, number: int) -> Any:
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


@inside
def read(typing: Any, number: Any) -> Any:
    """Convert a number from an array to float32."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return given[0] if number == types.float32 else widened(builder, given[0])

    return (types.float32(number), generate) if number in KINDS else None


@inside
def kept(typing: Any, array: Any, number: Any) -> Any:
    """Convert a float32 to the array's dtype."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return given[1] if array.dtype == types.float32 else narrowed(builder, given[1])

    return (array.dtype(array, types.float32), generate) if array.dtype in KINDS else None


SIZE = 16
"""Numbers per vector; in float32 as many as in a cache line."""

MANY, _HALVES, _NUMBER = ir.VectorType(ir.FloatType(), SIZE), ir.VectorType(ir.IntType(16), SIZE), ir.IntType(32)


class _Kind(types.Type):
    """Numba's type for these vectors."""


VECTOR = _Kind("vector")


@register_model(_Kind)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, MANY)  # type: ignore[no-untyped-call]


def place(context: Any, builder: Any, kind: Any, given: Any, to: Any) -> Any:
    """Return a pointer of type ``to`` into an array of the numba type ``kind``; given: the array and the index."""
    array = context.make_array(kind)(context, builder, given[0])
    index = cgutils.unpack_tuple(builder, given[1])
    return builder.bitcast(cgutils.get_item_pointer(context, builder, kind, array, index), to.as_pointer())


def spread(builder: Any, number: Any) -> Any:
    """Return a vector that repeats a number."""
    nothing = ir.Constant(ir.VectorType(number.type, SIZE), ir.Undefined)
    first = builder.insert_element(nothing, number, _NUMBER(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_NUMBER, SIZE), [0] * SIZE))


@inside
def load(typing: Any, array: Any, index: Any) -> Any:
    """Return the sixteen numbers from this index on of a float32 or bfloat16 array, contiguous in its last
    dimension."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        if array.dtype == types.float32:
            return builder.load(place(context, builder, array, given, MANY), align=4)
        return widened(builder, builder.load(place(context, builder, array, given, _HALVES), align=2))

    return (VECTOR(array, index), generate) if array.dtype in KINDS else None


@inside
def store(typing: Any, array: Any, index: Any, numbers: Any) -> Any:
    """Write sixteen numbers from this index on of a float32 or bfloat16 array, contiguous in its last dimension."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        if array.dtype == types.float32:
            builder.store(given[2], place(context, builder, array, given, MANY), align=4)
        else:
            builder.store(narrowed(builder, given[2]), place(context, builder, array, given, _HALVES), align=2)
        return context.get_dummy_value()

    return (types.void(array, index, VECTOR), generate) if array.dtype in KINDS else None


@inside
def every(typing: Any, number: Any) -> Any:
    """Return a vector that repeats a float32 number."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return spread(builder, given[0])

    return VECTOR(types.float32), generate


@inside
def plus(typing: Any, sum: Any, a: Any, b: Any) -> Any:
    """Return sum + a b, number by number, rounded once if the processor can."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        product = builder.fmul(given[1], given[2], flags=("contract",))
        return builder.fadd(product, given[0], flags=("contract",))

    return VECTOR(VECTOR, VECTOR, VECTOR), generate


@inside
def sum_of(typing: Any, a: Any, b: Any) -> Any:
    """Return a + b, number by number."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.fadd(*given)

    return VECTOR(VECTOR, VECTOR), generate


@inside
def times(typing: Any, a: Any, b: Any) -> Any:
    """Return a b, number by number."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.fmul(*given)

    return VECTOR(VECTOR, VECTOR), generate


@inside
def larger(typing: Any, a: Any, b: Any) -> Any:
    """Return the larger number of a and b, number by number; a's if either is NaN."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", given[1], given[0]), given[1], given[0])

    return VECTOR(VECTOR, VECTOR), generate


def _folded(builder: Any, many: Any, joined: Callable[[Any, Any], Any]) -> Any:
    """Reduce a vector to one number by ``joined``, halving it repeatedly."""
    for count in (8, 4, 2, 1):
        places = ir.Constant(ir.VectorType(_NUMBER, SIZE), [n % count + count for n in range(SIZE)])
        many = joined(many, builder.shuffle_vector(many, many, places))
    return builder.extract_element(many, _NUMBER(0))


@inside
def largest(typing: Any, a: Any) -> Any:
    """Return the largest number of a vector."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return _folded(builder, given[0], lambda x, y: builder.select(builder.fcmp_ordered(">", y, x), y, x))

    return types.float32(VECTOR), generate


def _adding(length: int) -> Any:
    """Return a function of four vectors of runs of ``length`` numbers: a vector in which each run is reduced to a
    quarter of its length, by summing its four parts."""

    def added_up(typing: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            first, second, third, fourth = given
            ab, cd = _halved(builder, first, second, length), _halved(builder, third, fourth, length)
            return _halved(builder, ab, cd, length // 2)

        return VECTOR(VECTOR, VECTOR, VECTOR, VECTOR), generate

    return inside(added_up)


def _halved(builder: Any, x: Any, y: Any, length: int) -> Any:
    """Return the sums of the first and second halves of all runs of x, then of y."""
    half, kind = length // 2, ir.VectorType(_NUMBER, SIZE)
    first = [run + n for run in range(0, 2 * SIZE, length) for n in range(half)]
    parts = (ir.Constant(kind, places) for places in (first, [n + half for n in first]))
    return builder.fadd(*(builder.shuffle_vector(x, y, part) for part in parts))


quarters, totals = _adding(16), _adding(4)
"""The two steps of summing the numbers of sixteen vectors: ``quarters`` reduces four vectors to one with four partial
sums (of every fourth number) each, and ``totals`` four such results to all sixteen sums, in order."""


@inside
def fetch(typing: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of an array's memory at this index."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        byte = ir.IntType(8)
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), _NUMBER, _NUMBER, _NUMBER])
        ask = builder.module.declare_intrinsic("llvm.prefetch", [byte.as_pointer()], kind)
        how = (0, 3, 1)  # to read, to be kept, data
        builder.call(ask, [place(context, builder, array, given, byte), *map(_NUMBER, how)])
        return context.get_dummy_value()

    return types.void(array, index), generate
