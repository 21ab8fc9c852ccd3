"""Intervals and tests whose answers are known."""

import numpy as np
import pytest

from coevolve.report.findings.statistics import bootstrap, estimate, holm, sign_flip


def test_the_interval_of_three_values_is_their_range():
    # Of the 27 resamples one is (1, 1, 1), a share of 3.7 %: more than the 2.5 % that may lie outside
    assert estimate([1.0, 2.0, 3.0]) == (3, 2.0, 1.0, 3.0)


def test_the_interval_of_five_values_counts_resamples():
    # The mean is the number of draws of the 5, Binomial(5, 1/5): P(0) = 0.33, P(<= 2) = 0.942, P(<= 3) = 0.993
    assert estimate([0.0, 0.0, 5.0, 0.0, 0.0]) == (5, 1.0, 0.0, 3.0)


def test_the_interval_of_twenty_values_is_drawn():
    # Sums are Binomial(20, 1/2): P(<= 5) = 0.021, P(<= 6) = 0.058; P(<= 13) = 0.942, P(<= 14) = 0.979
    assert estimate([0.0, 1.0] * 10) == (20, 0.5, pytest.approx(0.3), pytest.approx(0.7))


def test_one_value_has_no_interval_and_equal_values_an_empty_one():
    assert estimate([2.5]) == (1, 2.5, None, None)
    assert estimate([0.0, 0.0, 0.0]) == (3, 0.0, 0.0, 0.0)


def test_columns_have_intervals_of_their_own():
    values = np.random.default_rng(3).normal(size=(7, 4))
    low, high = bootstrap(values)
    for column in range(4):
        assert [low[column], high[column]] == pytest.approx([float(end) for end in bootstrap(values[:, column])])


def test_intervals_cover_the_mean_of_normal_values_about_as_often_as_they_say():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        low, high = bootstrap(rng.normal(loc=1.0, size=20))
        hits += bool(low <= 1.0 <= high)
    assert 0.90 <= hits / 400 <= 0.97


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1.0, 2.0, 3.0], 2 / 8),  # only all plus and all minus come as far
        ([3.0, -1.0, 2.0], 4 / 8),  # sums of 4 or more: 3 + 1 + 2, 3 - 1 + 2, and their mirror images
        ([0.1, 0.2, -0.3], 1.0),  # a sum of zero but for rounding
        ([0.5] * 5, 2 / 32),
        ([0.5] * 6, 2 / 64),
        ([5.0], 1.0),
        ([0.0, 0.0, 0.0], 1.0),
    ],
)
def test_sign_flips_of_a_few_differences_are_counted(differences, p):
    assert sign_flip(differences) == p


def test_sign_flips_of_many_differences_are_drawn():
    assert sign_flip([1.0] * 20) == 1 / 10_001  # true p: 2 / 2^20; what was observed counts as drawn
    # Of 16 signs, P(|sum| >= 4) = 1 - P(7 <= heads <= 9) = 0.4545
    assert sign_flip([1.0] * 10 + [-1.0] * 6) == pytest.approx(0.4545, abs=0.015)


def test_holm_multiplies_the_smallest_most_and_keeps_the_order():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])  # 3 * 0.01, then 2 * 0.03, never less
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
