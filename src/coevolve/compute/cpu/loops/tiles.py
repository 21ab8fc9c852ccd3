"""Products of bfloat16 with tiles (AMX): sixteen rows of 64 bytes each, which one instruction multiplies by sixteen
outputs of 32 inputs.

A panel's outputs are two tiles, stored in the order in which they are read (``product``). Rows are rearranged first,
into runs of sixteen rows of 32 inputs, because rows that are a power of two apart share a few places of the nearest
cache. Every output adds up its inputs in the same order, whatever the tile's other rows are. L is a flat array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from coevolve.compute.cpu.loops.loop import loop_with_arrays, uncached
from coevolve.compute.cpu.loops.vectors import cgutils, fetch, inside, place

ROWS, INPUTS = 16, 32
"""Rows and inputs of a tile of factors."""

_LINE, _TILE = 64, ROWS * INPUTS
"""Bytes in a tile's row; numbers in a tile."""

_SHAPES = bytes((1, *[0] * 15, *(_LINE, 0) * 8, *[0] * 16, *[ROWS] * 8, *[0] * 8))
"""The processor's configuration of all eight tiles at full size. The first four hold sums, two for each of two tiles of
rows; then come two of rows and two of weights."""

_ROW, _WEIGHT = 4, 6

_BYTE, _LONG = ir.IntType(8), ir.IntType(64)


def _call(builder: Any, name: str, *given: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [x.type for x in given])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), given)


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    at = context.make_tuple(builder, types.UniTuple(types.intp, 1), [index])  # type: ignore[no-untyped-call]
    return place(context, builder, kind, (array, at), _BYTE)


@inside
def begin(typing: Any) -> Any:
    """Configure the tiles."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        shapes = ir.Constant(ir.ArrayType(_BYTE, len(_SHAPES)), bytearray(_SHAPES))
        kept = cgutils.global_constant(builder, "shapes_of_tiles", shapes)
        _call(builder, "ldtilecfg", builder.bitcast(kept, _BYTE.as_pointer()))
        return context.get_dummy_value()

    return types.void(), generate


@inside
def end(typing: Any) -> Any:
    """Release the tiles' configuration, as other libraries expect."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


def _nothing(sums: list[tuple[int, int]]) -> Any:
    """Return a function that sets these sums to 0."""

    def nothing(typing: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            for r, w in sums:
                _call(builder, "tilezero", _BYTE(2 * r + w))
            return context.get_dummy_value()

        return types.void(), generate

    return inside(nothing)


def _more(count: int) -> Any:
    """Return a function that adds the products of ``count`` tiles of rows with two tiles of weights to the sums. apart:
    the distance between tiles of rows."""

    def more(typing: Any, x_L: Any, x: Any, apart: Any, panels_L: Any, panel: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            rows, row, apart, weights, weight = given
            for w in range(2):
                at = _place(context, builder, panels_L, weights, builder.add(weight, _LONG(w * INPUTS)))
                _call(builder, "tileloadd64", _BYTE(_WEIGHT + w), at, _LONG(2 * _LINE))
            for r in range(count):
                at = _place(context, builder, x_L, rows, builder.add(row, builder.mul(apart, _LONG(r))))
                _call(builder, "tileloadd64", _BYTE(_ROW + r), at, _LONG(_LINE))
                for w in range(2):
                    _call(builder, "tdpbf16ps", _BYTE(2 * r + w), _BYTE(_ROW + r), _BYTE(_WEIGHT + w))
            return context.get_dummy_value()

        return types.void(x_L, x, apart, panels_L, panel), generate

    return inside(more)


def _put(sums: list[tuple[int, int]]) -> Any:
    """Return a function that writes the sums, a row's sums with both tiles of weights side by side."""

    def put(typing: Any, sums_L: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            for r, w in sums:
                at = _place(context, builder, sums_L, given[0], _LONG((2 * r * ROWS + w) * ROWS))
                _call(builder, "tilestored64", _BYTE(2 * r + w), at, _LONG(2 * _LINE))
            return context.get_dummy_value()

        return types.void(sums_L), generate

    return inside(put)


def _of(count: int) -> Any:
    """Return a loop that multiplies ``count`` tiles of rows with a panel."""
    sums = [(r, w) for r in range(count) for w in range(2)]
    nothing, more, put = _nothing(sums), _more(count), _put(sums)

    @uncached
    def tile(x_L: Any, x: Any, inputs: Any, panels_L: Any, panel: Any, ahead: Any, end: Any, sums_L: Any) -> None:
        """Write the sums to ``sums_L``. The next panel, from ``ahead`` to ``end``, is prefetched, a little at every
        tile."""
        nothing()
        pace = (end - ahead) * INPUTS // inputs
        for i in range(0, inputs, INPUTS):
            for further in range(ahead, ahead + pace, INPUTS):
                fetch(panels_L, (further,))
            ahead += pace
            more(x_L, x + i * ROWS, inputs * ROWS, panels_L, panel + i * INPUTS)
        put(sums_L)

    return tile


one, two = _of(1), _of(2)


@inside
def _copy(typing: Any, x_L: Any, x: Any, out_L: Any, out: Any) -> Any:
    """Copy a tile's row of numbers; a loop would take twenty times as long."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        line = ir.VectorType(_BYTE, _LINE).as_pointer()
        here, there = (
            builder.bitcast(_place(context, builder, kind, array, index), line)
            for kind, array, index in ((x_L, *given[:2]), (out_L, *given[2:]))
        )
        builder.store(builder.load(here, align=2), there, align=2)
        return context.get_dummy_value()

    return types.void(x_L, x, out_L, out), generate


@loop_with_arrays
def laid_rows(x_NI: Any) -> Any:
    """Return the rows rearranged in tiles. Rows beyond the last one are undefined, and their sums are not used."""
    rows, inputs = x_NI.shape
    x_L = np.empty(-(-rows // ROWS) * ROWS * inputs, x_NI.dtype)
    for n in range(rows):
        x_I, first = x_NI[n], n // ROWS * ROWS * inputs + n % ROWS * INPUTS
        for i in range(0, inputs, INPUTS):
            _copy(x_I, i, x_L, first + i * ROWS)
    return x_L
