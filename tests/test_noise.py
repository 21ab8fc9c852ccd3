"""Random numbers that belong to names."""

import random

import numpy as np
import torch

from coevolve import noise


def keys(n, salt=0):
    return torch.tensor([noise.key(salt, i) for i in range(n)])


def test_a_key_is_the_same_number_for_ever():
    # Written down on purpose: another hash would silently change every published run.
    assert noise.key(0, 3, "p1", 0, "pioneer", 0) == 3471297119805263925
    assert noise.uniform(torch.tensor([3471297119805263925]), 0).item() == 0.8723121285438538


def test_rows_and_positions_do_not_depend_on_the_batch():
    all_B = keys(32)
    together = noise.uniform(all_B, 5)
    alone = torch.cat([noise.uniform(k[None], 5) for k in all_B])
    assert torch.equal(together, alone)
    assert torch.equal(noise.uniform(all_B, torch.full((32,), 5)), together)


def test_uniform_and_independent():
    u = torch.stack([noise.uniform(keys(2000), t) for t in range(20)])
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean().item() - 0.5) < 0.005
    assert abs(u.var().item() - 1 / 12) < 0.002
    counts = torch.histc(u, 20, 0, 1) / u.numel()
    assert (counts - 0.05).abs().max() < 0.005
    between_positions = torch.corrcoef(u)
    assert (between_positions - torch.eye(20)).abs().max() < 0.1


def test_integers_cover_both_ends_and_shuffles_are_permutations():
    assert {noise.integer(4, 6, 0, "length", i) for i in range(50)} == {4, 5, 6}
    assert sorted(noise.permutation(10, 0, "shuffle", 1)) == list(range(10))
    assert noise.permutation(10, 0, "shuffle", 1) != noise.permutation(10, 0, "shuffle", 2)


def test_what_user_code_draws_belongs_to_the_seed():
    def drawn(seed):
        noise.seed_everything(seed)
        return random.random(), np.random.rand(), torch.rand(1).item()

    assert drawn(0) == drawn(0)
    assert all(one != other for one, other in zip(drawn(0), drawn(1), strict=True))
