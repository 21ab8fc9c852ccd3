"""Products of rows with weights in panels: x W' + b.

A panel has the weights of WIDTH outputs: those of one input side by side, then those of the next (in bfloat16 those of
two inputs, in pairs, as processors add them up). It is read in order while the sums of a few rows and these outputs
stay in registers, and the next panel is prefetched meanwhile. Letters: N rows, I inputs, O outputs, L a flat array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from coevolve.compute.cpu.loops import tiles
from coevolve.compute.cpu.loops.loop import PAIRS, TILES, WIDE, loop, loop_with_arrays, uncached
from coevolve.compute.cpu.loops.vectors import (
    KINDS,
    MANY,
    SIZE,
    VECTOR,
    cgutils,
    fetch,
    inside,
    kept,
    load,
    place,
    spread,
    store,
    sum_of,
)

WIDTH = 2 * SIZE
"""Number of outputs per panel."""

_MOST = 12 if WIDE else 2
"""The most rows whose sums, two vectors each, fit in the registers."""

_BLOCK = 256
"""Rows that are multiplied with all weights before the next rows are."""

_FINE = 8
"""Fractional bits of the fixed-point number of weights that are prefetched per input."""

_WORD = ir.IntType(32)
_WORDS = ir.VectorType(_WORD, SIZE)

_inside_knowing: Callable[[Any], Any] = intrinsic(prefer_literal=True)


@loop_with_arrays
def laid(weight_OI: Any, first: Any, panels_L: Any) -> None:
    """Write weights into preallocated panels, rounded to their dtype, from output ``first`` on, which begins a panel.
    Sixteen inputs of a panel are assembled in the nearest cache first; writing them directly would take two or three
    times as long. Places of a last panel beyond the last output are undefined."""
    (outputs, inputs), pair, part_L = weight_OI.shape, _pair(panels_L), np.zeros(SIZE * WIDTH, panels_L.dtype)
    for o in range(0, outputs, WIDTH):
        for begin in range(0, inputs, SIZE):
            count = min(SIZE, inputs - begin)
            for output in range(o, min(o + WIDTH, outputs)):
                weight_I, at = weight_OI[output], (output - o) * pair
                for i in range(count):
                    part_L[at + i // pair * pair * WIDTH + i % pair] = kept(part_L, weight_I[begin + i])
            to = (first + o) * inputs + begin * WIDTH
            for n in range(0, count * WIDTH, SIZE):
                store(panels_L, (to + n,), load(part_L, (n,)))


@loop_with_arrays
def product(x_NI: Any, panels_L: Any, bias_O: Any, out_NO: Any, start: Any, stop: Any) -> None:
    """Write x W' + b to out, for the outputs from ``start``, where a panel begins, to ``stop``. x and the panels have
    one dtype, out may have another; in bfloat16 the number of inputs is even. A row's results do not depend on the
    other rows, nor an output's on ``start`` and ``stop``."""
    if TILES and _pair(x_NI) == 2 and x_NI.shape[1] % tiles.INPUTS == 0:
        _by_tiles(x_NI, panels_L, bias_O, out_NO, start, stop)
    else:
        _by_vectors(x_NI, panels_L, bias_O, out_NO, start, stop)


@loop_with_arrays
def _by_vectors(x_NI: Any, panels_L: Any, bias_O: Any, out_NO: Any, start: Any, stop: Any) -> None:
    """Compute ``product`` with vectors, with as many rows' sums as fit in the registers."""
    (rows, inputs), outputs = x_NI.shape, len(bias_O)
    x_L, out_L, sums_L = x_NI.reshape(-1), out_NO.reshape(-1), np.empty(_MOST * WIDTH, np.float32)
    for o in range(start, stop, WIDTH):
        panel, ahead = o * inputs, (o + WIDTH if o + WIDTH < stop else o) * inputs
        n = 0
        while n < rows:
            count = _together(rows - n)
            begin, end = ahead + WIDTH * inputs * n // rows, ahead + WIDTH * inputs * (n + count) // rows
            given = (x_L, n * inputs, inputs, panels_L, panel, begin, end, sums_L)
            _expect(out_L, n * outputs + o, count, outputs)
            if count == 12:
                _twelve(*given)
            elif count == 8:
                _eight(*given)
            elif count == 4:
                _four(*given)
            elif count == 2:
                _two(*given)
            else:
                _one(*given)
            _finish(sums_L, count, bias_O, o, out_L, n * outputs + o)
            n += count


@loop_with_arrays
def _by_tiles(x_NI: Any, panels_L: Any, bias_O: Any, out_NO: Any, start: Any, stop: Any) -> None:
    """Compute ``product`` with one or two tiles of rows at a time, of ``_BLOCK`` rows that stay in the second nearest
    cache."""
    (rows, inputs), outputs = x_NI.shape, len(bias_O)
    x_L, out_L, sums_L = tiles.laid_rows(x_NI), out_NO.reshape(-1), np.empty(2 * tiles.ROWS * WIDTH, np.float32)
    tiles.begin()
    for first in range(0, rows, _BLOCK):
        last = min(first + _BLOCK, rows)
        for o in range(start, stop, WIDTH):
            panel, ahead = o * inputs, (o + WIDTH if o + WIDTH < stop else start) * inputs
            n = first
            while n < last:
                count = min(last - n, 2 * tiles.ROWS)
                begin = ahead + WIDTH * inputs * (n - first) // (last - first)
                end = ahead + WIDTH * inputs * (n + count - first) // (last - first)
                given = (x_L, n * inputs, inputs, panels_L, panel, begin, end, sums_L)
                _expect(out_L, n * outputs + o, count, outputs)
                if count > tiles.ROWS:
                    tiles.two(*given)
                else:
                    tiles.one(*given)
                _finish(sums_L, count, bias_O, o, out_L, n * outputs + o)
                n += count
    tiles.end()


@loop
def _expect(out_L: Any, out: Any, rows: Any, outputs: Any) -> None:
    """Prefetch the outputs that will be written while the sums are computed: 14 % less time in float32."""
    for at in range(out, out + rows * outputs, outputs):
        fetch(out_L, (at,))
        if out_L.itemsize == 4:
            fetch(out_L, (at + SIZE,))


@loop
def _together(rows: Any) -> Any:
    """Return how many of the remaining rows to compute together: 12, 8, 4, 2 or 1, so that few remain for small
    groups."""
    if WIDE and rows >= 12 and rows != 16:
        return 12
    if WIDE and rows >= 4:
        return 8 if rows >= 8 else 4
    return min(rows, 2)


@loop
def _finish(sums_L: Any, rows: Any, bias_O: Any, o: Any, out_L: Any, out: Any) -> None:
    """Write the sums of ``rows`` rows plus the biases, from output o on."""
    outputs, many, sums = len(bias_O), min(WIDTH, len(bias_O) - o), 0
    whole = many // SIZE * SIZE
    for _ in range(rows):
        for i in range(0, whole, SIZE):
            store(out_L, (out + i,), sum_of(load(sums_L, (sums + i,)), load(bias_O, (o + i,))))
        for i in range(whole, many):
            out_L[out + i] = kept(out_L, sums_L[sums + i] + bias_O[o + i])
        out, sums = out + outputs, sums + WIDTH


def _of(rows: int) -> Any:
    """Return a loop that multiplies ``rows`` rows with a panel."""

    @uncached
    def tile(x_L: Any, x: Any, inputs: Any, panels_L: Any, panel: Any, ahead: Any, end: Any, sums_L: Any) -> None:
        """Write the sums to ``sums_L``. The next panel, from ``ahead`` to ``end``, is prefetched in two halves, a
        little at every input."""
        pair, half, sums = _pair(x_L), (end - ahead) // 2, _nothing(rows)
        pace = (half * pair << _FINE) // inputs
        for i in range(0, inputs, pair):
            further = ahead + (i // pair * pace >> _FINE)
            fetch(panels_L, (further,))
            fetch(panels_L, (further + half,))
            sums = _more(sums, x_L, (x + i,), inputs, panels_L, (panel + i * WIDTH,))
        _put(sums, sums_L, (0,))

    return tile


@inside
def _pair(typing: Any, x_L: Any) -> Any:
    """Return how many inputs are multiplied at once (2 in bfloat16), as a constant for the compiler."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return context.get_constant(types.intp, 32 // x_L.dtype.bitwidth)

    return types.intp(x_L), generate


@_inside_knowing
def _nothing(typing: Any, rows: Any) -> Any:
    """Return sums of 0 for ``rows`` rows."""
    kind = types.UniTuple(VECTOR, WIDTH // SIZE * rows.literal_value)  # type: ignore[no-untyped-call]

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return context.make_tuple(builder, kind, [ir.Constant(MANY, [0.0] * SIZE)] * kind.count)

    return kind(rows), generate


@inside
def _more(typing: Any, sums: Any, x_L: Any, x: Any, apart: Any, panels_L: Any, panel: Any) -> Any:
    """Return the sums plus the products of one input, in bfloat16 of a pair. apart: the distance between rows."""
    many, one = (MANY, ir.FloatType()) if x_L.dtype == types.float32 else (_WORDS, _WORD)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        before, width = cgutils.unpack_tuple(builder, given[0]), WIDTH // SIZE
        weights = place(context, builder, panels_L, given[4:6], many)
        weights = [builder.load(builder.gep(weights, [_WORD(n)]), align=4) for n in range(width)]
        row, after = place(context, builder, x_L, given[1:3], context.get_data_type(x_L.dtype)), []
        for n in range(0, len(before), width):
            x_n = spread(builder, builder.load(builder.bitcast(row, one.as_pointer()), align=x_L.dtype.bitwidth // 8))
            after += [_summed(builder, before[n + m], x_n, weights[m]) for m in range(width)]
            row = builder.gep(row, [given[3]])
        return context.make_tuple(builder, sums, after)

    return (sums(sums, x_L, x, apart, panels_L, panel), generate) if x_L.dtype == panels_L.dtype in KINDS else None


@inside
def _put(typing: Any, sums: Any, out_L: Any, out: Any) -> Any:
    """Write the sums, one after the other, from index ``out`` on."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        first = place(context, builder, out_L, given[1:], MANY)
        for n, many in enumerate(cgutils.unpack_tuple(builder, given[0])):
            builder.store(many, builder.gep(first, [_WORD(n)]), align=4)
        return context.get_dummy_value()

    return types.void(sums, out_L, out), generate


class _Brain(ir.Type):  # type: ignore[misc]
    """LLVM's type bfloat, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Brain)

    def __hash__(self) -> int:
        return hash(_Brain)


def _summed(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """Return total + a b in float32; for pairs of bfloat16 both products are added, in one instruction if there is
    one."""
    if a.type == MANY:
        return builder.fadd(builder.fmul(a, b, flags=("contract",)), total, flags=("contract",))
    if PAIRS:
        pairs = ir.VectorType(_Brain(), 2 * SIZE)
        kind = ir.FunctionType(MANY, [MANY, pairs, pairs])
        instruction = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
        return builder.call(instruction, [total, builder.bitcast(a, pairs), builder.bitcast(b, pairs)])
    half, upper = ir.Constant(_WORDS, [16] * SIZE), ir.Constant(_WORDS, [0xFFFF0000] * SIZE)
    for x, y in ((builder.shl(a, half), builder.shl(b, half)), (builder.and_(a, upper), builder.and_(b, upper))):
        total = _summed(builder, total, builder.bitcast(x, MANY), builder.bitcast(y, MANY))
    return total


_twelve, _eight, _four, _two, _one = (_of(rows) for rows in (12, 8, 4, 2, 1))
