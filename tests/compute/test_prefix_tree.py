"""Rows as a prefix tree: the construction literally, and attention over it against attention over every row alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from flash import one_by_one
from policy_cases import Build, batch_of, make_batch, make_family, plain
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention

from coevolve.compute import attention, forward, prefix_tree
from coevolve.compute.attention import FlashAttention, PathAttention, masked
from coevolve.compute.prefix_tree import filled

HEADS, KEYS, SIZE = 4, 2, 8


def random_rows(n: int, seed: int) -> list[np.ndarray]:
    """Rows of few different tokens that continue each other, repeat each other and break off anywhere."""
    rng = random.Random(seed)
    rows: list[list[int]] = [[rng.randrange(3) for _ in range(rng.randint(1, 30))]]
    while len(rows) < n:
        known = rng.choice(rows)
        rows.append(known[: rng.randint(0, len(known))] + [rng.randrange(3) for _ in range(rng.randint(1, 30))])
    return [np.array(row) for row in rows]


def test_three_rows_literally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_tree, "SHORT", 1)
    grown = prefix_tree.grow([np.array(row) for row in ([5, 6, 7, 8], [5, 6, 9], [1, 2, 3])])
    assert grown.ids_N.tolist() == [1, 2, 3, 5, 6, 7, 8, 9]
    assert grown.position_N.tolist() == [0, 1, 2, 0, 1, 2, 3, 2]
    assert [leaf.path.tolist() for leaf in grown.leaf_B] == [[3, 4, 5, 6], [3, 4, 7], [0, 1, 2]]
    assert [s.depth for s in grown.segments] == [0, 0, 1, 1]


def test_a_short_common_beginning_is_not_shared() -> None:
    common = list(range(prefix_tree.SHORT - 1))
    grown = prefix_tree.grow([np.array([*common, 50, 51]), np.array([*common, 60])])
    assert len(grown.ids_N) == 2 * len(common) + 3
    common.append(20)
    assert len(prefix_tree.grow([np.array([*common, 50, 51]), np.array([*common, 60])]).ids_N) == len(common) + 3


@pytest.mark.parametrize("short", [1, 4])
@pytest.mark.parametrize("seed", range(20))
def test_paths_are_the_rows(short: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_tree, "SHORT", short)
    rows = random_rows(random.Random(seed).randint(1, 25), seed)
    grown = prefix_tree.grow(rows)
    for row, leaf in zip(rows, grown.leaf_B, strict=True):
        assert grown.ids_N[leaf.path].tolist() == row.tolist()
        assert grown.position_N[leaf.path].tolist() == list(range(len(row)))
    if short == 1:  # then every distinct beginning is there exactly once
        assert len(grown.ids_N) == len({tuple(row[: n + 1]) for row in rows for n in range(len(row))})
    assert len(grown.ids_N) == sum(s.end - s.start for s in grown.segments)
    order, ends, new = prefix_tree.ordered(rows), list[int](), 0
    for before, b in zip([None, *order], order, strict=False):
        beginning = 0 if before is None else prefix_tree.common(rows[before], rows[b])
        new += len(rows[b]) - prefix_tree.prefix_length(ends, beginning, len(rows[b]))
    assert new == len(grown.ids_N)


def test_micro_batches_keep_to_their_tokens(build_policy: Build) -> None:
    """Packed where the backend has prefix trees; padded where it does not."""
    batch = make_family(3, seed=4)
    rows = [batch.ids_BS[b, : int(n) - 1].numpy() for b, n in enumerate(batch.length_B)]
    for tree in (True, False):
        uses_prefix_tree = plain(build_policy(), tree).backend.uses_prefix_tree
        for micro_tokens in (1, 40, 100, 4096):
            groups = [group.tolist() for group in forward.micro_batches(batch, micro_tokens, uses_prefix_tree)]
            assert sorted(b for group in groups for b in group) == list(range(len(batch)))
            for group in groups:
                packed = len(prefix_tree.grow([rows[b] for b in group]).ids_N)
                padded = len(group) * max(len(rows[b]) for b in group)
                assert len(group) == 1 or (packed if tree else padded) <= micro_tokens
    assert len(prefix_tree.grow(rows).ids_N) < 0.6 * sum(map(len, rows))
    assert len(forward.micro_batches(make_batch(5, seed=1), 1, uses_prefix_tree=True)) == 5


def test_short_common_beginnings_count_as_often_as_they_are_packed() -> None:
    common = [7] * (prefix_tree.SHORT - 1)
    batch = batch_of([common] * 20, [[i, i, i] for i in range(20)], seed=0)
    groups = forward.micro_batches(batch, 40, uses_prefix_tree=True)
    assert {len(group) for group in groups} == {40 // (prefix_tree.SHORT + 1)}


@pytest.mark.parametrize("kind", [PathAttention, FlashAttention])
@pytest.mark.parametrize("copies", [0, attention._COPIES])  # made again for the gradient, and kept
@pytest.mark.parametrize("keys", [KEYS, HEADS])
@pytest.mark.parametrize("size", [1.0, 40.0])
@pytest.mark.parametrize("seed", range(4))
def test_attention_and_its_gradient_are_those_of_every_row_alone(
    seed: int, size: float, keys: int, copies: int, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with scores of several hundred, whose exponentials are infinite in float32."""
    monkeypatch.setattr(varlen, "varlen_attn", one_by_one)
    monkeypatch.setattr(prefix_tree, "SHORT", 2)
    rows = random_rows(12, seed + 100)
    grown = prefix_tree.grow(rows)
    monkeypatch.setattr(attention, "_COPIES", copies)
    monkeypatch.setattr(attention, "_FEW", 0)
    packed = kind(grown, torch.device("cpu"))
    assert packed.many == (copies == 0)
    n = len(packed.ids_N)
    assert n % 8 == 0 and 0 < n - len(grown.ids_N) <= max(8, len(grown.ids_N) / 31)
    torch.manual_seed(seed)
    q, k, v = (torch.randn(1, heads, n, SIZE, requires_grad=True) for heads in (HEADS, keys, keys))
    q.data *= size
    weight = torch.randn(n, HEADS, SIZE)
    weight[len(grown.ids_N) :] = 0
    found = packed.attend(0, q, k, v, 0.3)[0]
    expected = torch.zeros_like(found)
    for leaf in grown.leaf_B:
        i = torch.from_numpy(leaf.path)
        alone = [x[:, :, i].repeat_interleave(HEADS // x.shape[1], 1) for x in (q, k, v)]
        expected = expected.index_copy(
            0, i, scaled_dot_product_attention(*alone, is_causal=True, scale=0.3)[0].transpose(0, 1)
        )
    torch.testing.assert_close(found[: len(grown.ids_N)], expected[: len(grown.ids_N)], rtol=1e-5, atol=2e-6 * size)
    ours = torch.autograd.grad((found * weight).sum(), (q, k, v))
    naive = torch.autograd.grad((expected * weight).sum(), (q, k, v))
    for gradient, wanted in zip(ours, naive, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5 if size == 1 else 1e-4 * size)


def test_key_heads_that_are_shared_and_key_heads_that_are_repeated_are_the_same() -> None:
    """GPUs have no kernel for the former under a mask."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, n, SIZE, requires_grad=True) for heads, n in ((6, 5), (2, 9), (2, 9)))
    sees_M1QP = torch.ones(2, 1, 5, 9, dtype=torch.bool).tril(4)
    weight = torch.randn(2, 6, 5, SIZE)
    both = [masked(q, k, v, sees_M1QP, 0.3, grouped=grouped) for grouped in (True, False)]
    torch.testing.assert_close(*both)
    for a, b in zip(*(torch.autograd.grad((out * weight).sum(), (q, k, v)) for out in both), strict=True):
        assert a.abs().max() > 0.1
        torch.testing.assert_close(a, b)


def test_few_tokens_fill_up_to_few_numbers() -> None:
    full = [filled(n) for n in range(1, 1 << 16)]
    assert all(0 < more - n <= max(8, n / 31) for n, more in enumerate(full, 1))
    assert all(len({x for x in full if 1 << i <= x < 2 << i}) <= 32 for i in range(16))
