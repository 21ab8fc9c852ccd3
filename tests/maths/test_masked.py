"""Literal masks, literal answers."""

import math

import pytest
import torch

from coevolve.maths import masked

MASK = torch.tensor([[True, True, False], [True, False, False]])


def test_mean_ignores_padding():
    x = torch.tensor([[1.0, 3.0, 100.0], [8.0, 100.0, 100.0]])
    assert masked.mean(x, MASK).item() == 4.0  # (1 + 3 + 8) / 3


def test_whiten_literal():
    # 1, 3, 8: mean 4, deviations -3, -1, 4, unbiased variance (9 + 1 + 16) / 2 = 13
    x = torch.tensor([[1.0, 3.0, 100.0], [8.0, -50.0, 7.0]])
    want = torch.tensor([[-3.0, -1.0, 0.0], [4.0, 0.0, 0.0]]) / math.sqrt(13)
    torch.testing.assert_close(masked.whiten(x, MASK), want)


def test_whiten_of_one_token_is_zero():
    assert masked.whiten(torch.tensor([[5.0, 9.0]]), torch.tensor([[True, False]])).tolist() == [[0.0, 0.0]]


def test_two_tokens():
    # deviations -1, 1: variance 2. Of -1e-4, 1e-4 it is 2e-8, and 1e-8 more beneath the root: 1e-4 / sqrt(3e-8)
    mask = torch.tensor([[True, True]])
    assert masked.variance(torch.tensor([[1.0, 3.0]]), mask).item() == 2.0
    found = masked.whiten(torch.tensor([[-1e-4, 1e-4]]), mask)
    torch.testing.assert_close(found, torch.tensor([[-1 / math.sqrt(3), 1 / math.sqrt(3)]]))


def test_equal_tokens_are_not_whitened_into_rounding():
    """The float32 mean of numbers that are all 500.3 is another number."""
    mask = torch.arange(9) < torch.tensor([5 + turn % 5 for turn in range(32)])[:, None]
    for paid in (500.3, -0.7, 0.0):
        x = torch.full(mask.shape, paid)
        assert not masked.whiten(x, mask).any()
        assert masked.variance(x, mask) == 0.0
        assert masked.whiten(x, mask, shift_mean=False)[mask].tolist() == pytest.approx([paid] * int(mask.sum()))
    x = torch.full(mask.shape, 500.3).index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(500.31))
    assert masked.whiten(x, mask)[0, 0] > 9  # what differs by more is whitened


def test_whiten_around_the_mean_literal():
    # as above, and the mean of 4 stays where there are tokens
    x = torch.tensor([[1.0, 3.0, 100.0], [8.0, -50.0, 7.0]])
    want = torch.tensor([[4 - 3 / math.sqrt(13), 4 - 1 / math.sqrt(13), 0.0], [4 + 4 / math.sqrt(13), 0.0, 0.0]])
    torch.testing.assert_close(masked.whiten(x, MASK, shift_mean=False), want)
    one = masked.whiten(torch.tensor([[5.0, 9.0]]), torch.tensor([[True, False]]), shift_mean=False)
    assert one.tolist() == [[5.0, 0.0]]


@pytest.mark.parametrize("values", [[[1.0, 2.0, 3.0]] * 2, [[4.0, 4.0, 4.0]] * 2])
def test_nothing_explains_returns_that_do_not_vary(values):
    found = masked.explained_variance(torch.tensor(values), torch.full((2, 3), 4.0), MASK)
    assert math.isnan(found.item())


@pytest.mark.parametrize("paid", [0.0, 0.1, 1.0])
def test_nor_those_that_vary_by_rounding_only(paid):
    """As returns made of advantages and values do, where everybody is paid alike."""
    torch.manual_seed(0)
    values, mask = torch.randn(4, 50) / 3, torch.ones(4, 50, dtype=torch.bool)
    returns = (paid - values) + values
    assert paid == 0 or returns.unique().numel() > 1
    assert math.isnan(masked.explained_variance(values, returns, mask).item())
    returns[0, 0] += 1e-3
    assert math.isfinite(masked.explained_variance(values, returns, mask).item())


def test_rounding_adds_up_over_the_tokens_of_a_turn():
    """50 tokens about 1 may be 50 steps of float32 apart, and one of them is 10."""
    values, mask = torch.zeros(1, 50), torch.ones(1, 50, dtype=torch.bool)
    returns = torch.ones(1, 50)
    returns[0, 0] += 10 * 2**-23
    assert math.isnan(masked.explained_variance(values, returns, mask).item())


def test_explained_variance():
    returns = torch.tensor([[1.0, 3.0, 99.0], [5.0, 99.0, 99.0]])
    assert masked.explained_variance(returns, returns, MASK).item() == 1.0
    assert masked.explained_variance(torch.zeros(2, 3), returns, MASK).item() == 0.0
    # errors 1, 1, -2: variance 2; returns 1, 3, 5: variance 8/3; 1 - 2 / (8/3) = 1/4
    values = torch.tensor([[0.0, 2.0, 0.0], [7.0, 0.0, 0.0]])
    assert masked.explained_variance(values, returns, MASK).item() == pytest.approx(0.25)


def test_shapes_are_checked():
    with pytest.raises(AssertionError):
        masked.mean(torch.zeros(2, 2), MASK)
    with pytest.raises(AssertionError):
        masked.mean(torch.zeros(2, 3), MASK.float())
