"""Drawing one token: frequencies, support and what log-probability is kept."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from coevolve.compute import draw as plain
from coevolve.compute.draw import truncate
from coevolve.noise import uniform
from coevolve.types import Sampling

draw = partial(plain.draw, seen_BV=None)

LOGITS = torch.log(torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625]))


def test_frequencies_are_the_distribution() -> None:
    n = 40_000
    u_B = uniform(torch.arange(n) * 104729, 3)
    drawn = draw(LOGITS.expand(n, -1), u_B, Sampling(1))
    counts = torch.bincount(drawn.token_B, minlength=5).double()
    expected = LOGITS.exp().double() * n
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 18.5  # 4 degrees of freedom: exceeded once in a thousand
    torch.testing.assert_close(drawn.logp_B, LOGITS[drawn.token_B])
    assert drawn.excess_B is None


def test_the_cdf_is_inverted_at_its_edges() -> None:
    """Cumulative 0.5, 0.75, 0.875, 0.9375, 1: u at an edge belongs to the next token, the largest u to the last."""
    u_B = torch.tensor([0.0, 0.499, 0.5, 0.76, 0.9, 1 - 2**-24])
    assert draw(LOGITS.expand(6, -1), u_B, Sampling(1)).token_B.tolist() == [0, 0, 1, 2, 3, 4]


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf]])
    for u in (0.0, 1 - 2**-24):
        drawn = draw(logits, torch.tensor([u]), Sampling(1))
        assert drawn.token_B.tolist() == [1] and drawn.logp_B.tolist() == [0.0]


def test_temperature_shapes_what_is_drawn_and_kept() -> None:
    """At temperature 0.5 probabilities are squared: 0.25 : 0.0625 : ... / 0.3359375."""
    drawn = draw(LOGITS[None], torch.tensor([0.9]), Sampling(1, temperature=0.5))
    assert drawn.token_B.tolist() == [1]
    assert drawn.logp_B.tolist() == pytest.approx([math.log(0.0625 / 0.3359375)])


def test_greedy_keeps_the_plain_log_probability() -> None:
    drawn = draw(LOGITS[None], torch.tensor([0.99]), Sampling(1, temperature=0.0))
    assert drawn.token_B.tolist() == [0] and drawn.logp_B.tolist() == pytest.approx([math.log(0.5)])


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (2, 1.0, {0, 1}),
        (9, 1.0, {0, 1, 2, 3, 4}),
        (0, 0.5, {0}),
        (0, 0.51, {0, 1}),
        (0, 0.8, {0, 1, 2}),
        (0, 1e-9, {0}),
        (3, 0.5, {0}),
    ],
)
def test_truncation_keeps_the_most_likely(top_k: int, top_p: float, kept: set[int]) -> None:
    for order in (torch.arange(5), torch.tensor([3, 1, 4, 0, 2])):
        alive = truncate(LOGITS[order][None], top_k, top_p)[0].isfinite().nonzero()[:, 0]
        assert set(order[alive].tolist()) == kept


def test_excess_is_the_mass_that_was_cut() -> None:
    """Top-2 keeps 0.75 of the mass, so every kept token is log(4/3) likelier than the log-probability says."""
    u_B = torch.linspace(0, 0.999, 64)
    drawn = draw(LOGITS.expand(64, -1), u_B, Sampling(1, top_k=2))
    assert set(drawn.token_B.tolist()) == {0, 1}
    torch.testing.assert_close(drawn.logp_B, LOGITS[drawn.token_B])
    torch.testing.assert_close(drawn.excess_B, torch.full((64,), math.log(4 / 3)))


def test_repetition_penalty_touches_seen_tokens_only() -> None:
    """Logits 2, 1.9, -1 with token 0 seen and penalty 2: 1, 1.9, -1, so greedy moves to token 1."""
    logits, seen = torch.tensor([[2.0, 1.9, -1.0]]), torch.tensor([[True, False, False]])
    drawn = draw(logits, torch.tensor([0.5]), Sampling(1, temperature=0.0, repetition_penalty=2.0), seen_BV=seen)
    assert drawn.token_B.tolist() == [1]
    assert drawn.logp_B.tolist() == pytest.approx([float(logits.log_softmax(-1)[0, 1])])


def test_a_large_vocabulary_keeps_its_tail() -> None:
    """200 000 equal tokens: token floor(u * V), which a float32 running sum misses by thousands."""
    v = 200_000
    u_B = torch.tensor([0.25, 0.5, 0.999])
    token_B = draw(torch.zeros(3, v), u_B, Sampling(1)).token_B
    assert (token_B - (u_B.double() * v).long()).abs().max() <= 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_diverged_logits_have_no_log_probability(bad: float) -> None:
    logits = torch.zeros(2, 200)
    logits[1, 150] = bad
    drawn = draw(logits, torch.tensor([0.5, 0.5]), Sampling(1))
    assert drawn.logp_B[0].isfinite() and drawn.logp_B[1].isnan()
    assert 0 <= int(drawn.token_B[1]) < 200


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_p": 0.6, "repetition_penalty": 1.5}])
def test_rows_are_drawn_from_a_few_at_a_time(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of many rows say to the bit what all of them say."""
    torch.manual_seed(0)
    given = 4 * torch.randn(7, 100), torch.rand(7), Sampling(1, **settings), torch.rand(7, 100) < 0.3
    whole, before, sizes = plain.draw(*given), plain._draw, []
    monkeypatch.setattr(plain, "_MOST", 350)
    monkeypatch.setattr(plain, "_draw", lambda x, *more: (sizes.append(len(x)), before(x, *more))[1])
    sliced = plain.draw(*given)
    assert sizes == [3, 3, 1]
    assert torch.equal(whole.token_B, sliced.token_B) and torch.equal(whole.logp_B, sliced.logp_B)
    assert (whole.excess_B is None) == (sliced.excess_B is None) == (len(settings) < 2)
    assert whole.excess_B is None or torch.equal(whole.excess_B, sliced.excess_B)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_k": 7}, {"temperature": 0.7, "top_p": 0.6}])
def test_logits_are_left_as_they_are(settings: dict[str, Any]) -> None:
    """They are the sampler's: rows that begin alike have theirs from one prompt."""
    torch.manual_seed(0)
    logits, sampling = 4 * torch.randn(8, 100), Sampling(1, **settings)
    before = logits.clone()
    once, again = (draw(logits, torch.full((8,), 0.6), sampling) for _ in range(2))
    assert torch.equal(logits, before) and torch.equal(once.token_B, again.token_B)
