"""Micro-batches of ranks, which wait for each other: as many rounds as before, and all about as large."""

from __future__ import annotations

import pytest
import torch
from policy_cases import make_batch
from torch import Tensor

from coevolve.compute.forward import fed, micro_batches, whole_groups
from coevolve.compute.prefix_tree import grow
from coevolve.learners.shard import evenly
from coevolve.types import Batch


def lines(sizes: list[int]) -> object:
    """Pieces of a line of that many tokens, by how many a micro-batch may have."""

    def fitting(tokens: int) -> list[Tensor]:
        parts: list[list[int]] = []
        for number, size in enumerate(sizes):
            if parts and sum(sizes[i] for i in parts[-1]) + size <= tokens:
                parts[-1].append(number)
            else:
                parts.append([number])
        return [torch.tensor(part) for part in parts]

    return fitting


def test_no_rank_has_two_full_ones_and_the_other_a_small_one_and_none() -> None:
    """Nine rows of ten tokens, forty at once: 4, 4, 1; two rounds of two either way, of 3, 3, 3 at most."""
    fitting = lines([10] * 9)
    assert [len(part) for part in fitting(40)] == [4, 4, 1]  # type: ignore[operator]
    assert [len(part) for part in evenly(fitting, 40, 2)] == [3, 3, 3]  # type: ignore[arg-type]
    assert [len(part) for part in evenly(lines([10] * 12), 50, 2)] == [3, 3, 3, 3]  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [[10], [10, 10, 10], [30, 10, 10]])
def test_one_each_at_most_stay_those_of_one_process(sizes: list[int]) -> None:
    fitting = lines(sizes)
    assert len(fitting(30)) <= 2  # type: ignore[operator]
    for found, want in zip(evenly(fitting, 30, 2), fitting(30), strict=True):  # type: ignore[operator, arg-type]
        assert found.tolist() == want.tolist()


def test_one_row_that_is_too_long_is_alone() -> None:
    assert [part.tolist() for part in evenly(lines([50, 5, 5, 5, 5]), 10, 2)] == [[0], [1, 2], [3, 4]]  # type: ignore[arg-type]


@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_rows_of_a_batch_are_in_as_many_rounds(tree: bool, ranks: int) -> None:
    batch, smaller = make_batch(24, seed=3), 0
    for limit in (30, 40, 50):
        for fitting in (lambda tokens: micro_batches(batch, tokens, tree), lambda tokens: whole_groups(batch, tokens)):
            before, found = fitting(limit), evenly(fitting, limit, ranks)
            assert sorted(torch.cat(found).tolist()) == list(range(24))
            assert -(-len(found) // ranks) == -(-len(before) // ranks)
            smaller += most(batch, found, tree) < most(batch, before, tree)
    assert smaller


def most(batch: Batch, parts: list[Tensor], tree: bool) -> int:
    """Tokens that are fed of the largest."""
    fed_of = [fed(batch.select(rows_B)) for rows_B in parts]
    return max(len(grow(rows).ids_N) if tree else len(rows) * max(map(len, rows)) for rows in fed_of)
