"""Which rows take an optimiser step together."""

from itertools import chain

import pytest
import torch

from coevolve.maths.minibatches import mini_batches

PEERS = torch.tensor([0, 1, 0, 2, 1, 3, 3, 3, 4])


def rows(*given):
    return [one.tolist() for one in mini_batches(*given)]


@pytest.mark.parametrize("together", ["row", "peers"])
def test_every_row_once_in_another_order_for_another_name(together):
    first, second = (rows(PEERS, 4, together, "x", epoch) for epoch in (0, 1))
    assert all(sorted(chain.from_iterable(epoch)) == list(range(9)) for epoch in (first, second))
    assert first != second
    assert first == rows(PEERS, 4, together, "x", 0)


def test_rows_are_cut_anywhere_and_the_rest_comes_last():
    assert [len(one) for one in rows(PEERS, 4, "row", "x")] == [4, 4, 1]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_peers_are_never_split(size):
    for name in range(20):
        found = rows(PEERS, size, "peers", name)
        for group in range(5):
            mine = {row for row in range(9) if PEERS[row] == group}
            assert sum(bool(mine & set(one)) for one in found) == 1
        assert all(len(one) <= max(size, 3) for one in found)  # 3: the largest group


def test_as_many_groups_as_fit():
    pairs = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    assert [len(one) for one in rows(pairs, 4, "peers", "x")] == [4, 4]
    assert [len(one) for one in rows(pairs, 5, "peers", "x")] == [4, 4]


@pytest.mark.parametrize("size", [None, 9, 100])
def test_all_at_once_in_their_order_where_they_fit(size):
    assert rows(PEERS, size, "peers", "x") == rows(PEERS, size, "row", "x") == [list(range(9))]
