"""The split of a batch into mini-batches, one per optimiser step. Letters: B rows."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Literal

import torch
from torch import Tensor

from coevolve import noise
from coevolve.maths import groups


def mini_batches(
    peers_B: Tensor, size: int | None, together: Literal["row", "peers"], *names: Hashable
) -> Iterator[Tensor]:
    """Yield the row numbers of each mini-batch, shuffled by ``noise`` under these names; all rows at once if they fit.

    size: rows per mini-batch. together: ``row`` splits anywhere; ``peers`` only between groups of rows with the same
    peers_B: as many groups as fit, but at least one, so a mini-batch may be smaller, or larger for a large group.
    """
    rows = len(peers_B)
    if size is None or size >= rows:
        yield torch.arange(rows)
    elif together == "row":
        order = noise.permutation(rows, *names)
        yield from (torch.tensor(order[start : start + size]) for start in range(0, rows, size))
    else:
        yield from _whole_groups(peers_B, size, *names)


def _whole_groups(peers_B: Tensor, size: int, *names: Hashable) -> Iterator[Tensor]:
    members, taken = groups.members(peers_B), list[int]()
    for number in noise.permutation(len(members), *names):
        if taken and len(taken) + len(members[number]) > size:
            yield torch.tensor(taken)
            taken = []
        taken = taken + members[number]
    yield torch.tensor(taken)
