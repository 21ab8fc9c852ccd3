"""Prefix trees of token rows, in which a common prefix of several rows is stored once.

    5 6 7 8                5 6 ── 7 8
    5 6 9         is            └ 9          (with SHORT = 1)
    1 2 3                  1 2 3

A segment is a run of tokens; its *path* is what comes before it, from the root. Members of a group share their
prompt, a second turn continues a first one, problems share a template: all are common prefixes, for which causal
attention computes the same whatever follows. Letters: N packed tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SHORT = 8
"""The shortest common prefix, in tokens, that gets a segment of its own."""

Ids = NDArray[np.int64]


@dataclass(slots=True)
class Segment:
    """Tokens ``start`` to ``end`` of row ``row``. place: the number of the first one among the packed tokens."""

    row: int
    start: int
    end: int
    parent: Segment | None = field(repr=False)
    place: int = 0
    depth: int = 0
    path: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    """The packed numbers of all tokens from the root to the segment's end."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Rows of tokens, packed so that a common prefix is stored once.

    segments: parents before children, children of one parent side by side. leaf_B: the segment where each row ends.
    kind_N: the kind of each token's rows.
    """

    segments: list[Segment]
    leaf_B: list[Segment]
    ids_N: Ids
    position_N: Ids
    kind_N: Ids


def common(a: Ids, b: Ids) -> int:
    """Return the length of two rows' common prefix."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n


def ordered(rows: Sequence[Ids], kind_B: Sequence[int] | None = None) -> list[int]:
    """Return row numbers in lexicographic order, which puts rows with a common prefix side by side, kind after kind."""
    # Big-endian bytes compare as the (non-negative) numbers do.
    keys = [(0 if kind_B is None else kind_B[b], row.astype(">u4").tobytes()) for b, row in enumerate(rows)]
    return sorted(range(len(rows)), key=keys.__getitem__)


def grow(rows: Sequence[Ids], kind_B: Sequence[int] | None = None) -> PrefixTree:
    """Return the tree of these rows, of at least one token each.

    Rows of different kinds share nothing, and all packed tokens of a kind come before those of the next.
    """
    kind_B = [0] * len(rows) if kind_B is None else kind_B
    leaf: dict[int, Segment] = {}
    spine: list[Segment] = []  # from the root to the end of the row before
    made: list[Segment] = []
    before: Ids | None = None
    kind = 0
    for b in ordered(rows, kind_B):
        beginning = 0 if before is None or kind_B[b] != kind else common(before, rows[b])
        below = None
        while spine and spine[-1].end > beginning:
            below = spine.pop()
        if below is not None and beginning - below.start >= SHORT:
            spine.append(_split(below, beginning, made))
        start = spine[-1].end if spine else 0
        if start < len(rows[b]):
            spine.append(Segment(b, start, len(rows[b]), spine[-1] if spine else None))
            made.append(spine[-1])
        leaf[b], before, kind = spine[-1], rows[b], kind_B[b]
    return _packed(made, [leaf[b] for b in range(len(rows))], rows, kind_B)


def filled(n: int) -> int:
    """Return the number to which n packed tokens are padded: by 8 or a thirtieth at most, to one of 32 numbers per
    doubling, because the CPU's math library keeps data for every shape that it has seen."""
    step = 1 << max(3, n.bit_length() - 6)
    return n - n % step + step


def padded(tree: PrefixTree, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the tree's token ids and positions on the device, padded to ``filled`` tokens."""
    n = len(tree.ids_N)
    ids_N, position_N = (torch.from_numpy(np.pad(x, (0, filled(n) - n))) for x in (tree.ids_N, tree.position_N))
    return ids_N.to(device), position_N.to(device)


def prefix_length(ends: list[int], beginning: int, length: int) -> int:
    """Return how many tokens of a row ``grow`` shares with the row before. beginning: the length of their common
    prefix.

    ends: the ends of the segments of the row before, from the root; changed to those of this row, of ``length`` tokens.
    """
    below = None
    while ends and ends[-1] > beginning:
        below = ends.pop()
    start = ends[-1] if ends else 0
    if below is not None and beginning - start >= SHORT:
        ends.append(beginning)
        start = beginning
    if start < length:
        ends.append(length)
    return start


def _split(below: Segment, at: int, made: list[Segment]) -> Segment:
    """Cut a segment in two and return the upper part, which becomes the parent of the lower one."""
    upper = Segment(below.row, below.start, at, below.parent)
    below.start, below.parent = at, upper
    made.append(upper)
    return upper


def _packed(made: list[Segment], leaf_B: list[Segment], rows: Sequence[Ids], kind_B: Sequence[int]) -> PrefixTree:
    for segment in sorted(made, key=lambda s: s.start):  # parents end where children start
        segment.depth = 0 if segment.parent is None else segment.parent.depth + 1
    order = {id(segment): i for i, segment in enumerate(made)}
    made = sorted(made, key=lambda s: (kind_B[s.row], s.depth, order[id(s.parent)] if s.parent else -1))
    place = 0
    for segment in made:
        segment.place = place
        place += segment.end - segment.start
        own = np.arange(segment.place, place)
        segment.path = own if segment.parent is None else np.concatenate((segment.parent.path, own))
    return PrefixTree(
        made,
        leaf_B,
        np.concatenate([rows[s.row][s.start : s.end] for s in made]),
        np.concatenate([np.arange(s.start, s.end) for s in made]),
        np.concatenate([np.full(s.end - s.start, kind_B[s.row]) for s in made]),
    )
