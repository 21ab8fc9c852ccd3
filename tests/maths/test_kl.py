"""Full-vocabulary KL and the weight that adapts."""

import math

import pytest
import torch

from coevolve.maths.kl import adapted, full, halved_or_doubled


def test_full_literal():
    # pi = (1/2, 1/2), pi_0 = (1/4, 3/4): 1/2 log 2 + 1/2 log(2/3) = 1/2 log(4/3)
    pi, ref = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    assert full(pi, ref).item() == pytest.approx(0.5 * math.log(4 / 3))
    assert full(ref, pi).item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))


def test_full_agrees_with_torch_and_a_loop():
    torch.manual_seed(0)
    pi, ref = torch.randn(5, 11).log_softmax(1), torch.randn(5, 11).log_softmax(1)
    got = full(pi, ref)
    torch.testing.assert_close(got, torch.nn.functional.kl_div(ref, pi, log_target=True, reduction="none").sum(1))
    for n in range(5):
        want = sum(math.exp(p) * (p - q) for p, q in zip(pi[n].tolist(), ref[n].tolist(), strict=True))
        assert got[n].item() == pytest.approx(want, abs=1e-5)
    assert (got > 0).all()
    assert full(pi, pi).tolist() == [0.0] * 5


def test_an_impossible_token_costs_nothing():
    certain, ref = torch.tensor([[0.0, -math.inf]]), torch.tensor([[0.5, 0.5]]).log()
    assert full(certain, ref).item() == pytest.approx(math.log(2))


def test_the_weight_follows_the_kl():
    def after(observed):
        return adapted(0.3, observed, 256, target=6.0, horizon=10000)

    # 12 / 6 - 1 = 1, clipped to 0.2: 0.3 * (1 + 0.2 * 256 / 10000)
    assert after(12.0) == pytest.approx(0.301536)
    # 5.4 / 6 - 1 = -0.1: 0.3 * (1 - 0.1 * 256 / 10000)
    assert after(5.4) == pytest.approx(0.299232)
    assert after(0.0) == pytest.approx(0.298464)


def test_a_trust_region_is_held_by_halves_and_doubles():
    assert halved_or_doubled(3.0, 0.016, 0.01) == 6.0
    assert halved_or_doubled(3.0, 0.014, 0.01) == 3.0
    assert halved_or_doubled(3.0, 0.007, 0.01) == 3.0
    assert halved_or_doubled(3.0, 0.006, 0.01) == 1.5
    assert halved_or_doubled(1e4, 1.0, 0.01) == 1e4


def test_a_step_longer_than_the_horizon_never_turns_the_penalty_round():
    # -0.2 * 64 / 10 would make it negative; one horizon is a step of 0.8 or 1.2
    assert adapted(0.5, 0.0, 64, target=6.0, horizon=10) == pytest.approx(0.4)
    assert adapted(0.5, 99.0, 64, target=6.0, horizon=10) == pytest.approx(0.6)
    assert adapted(0.5, 0.0, 5, target=6.0, horizon=10) == pytest.approx(0.45)
