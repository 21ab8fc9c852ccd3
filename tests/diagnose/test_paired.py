"""Units, standard errors and bootstrap intervals of which the answer is known."""

import math

import numpy as np
import pytest

from coevolve.diagnose.paired import interval, standard_error, units


def test_the_problem_is_the_unit_unless_there_is_only_one():
    assert units(np.array([[1.0, 3.0], [5.0, 5.0]])).tolist() == [2, 5]
    assert units(np.array([[1.0, 3.0]])).tolist() == [1, 3]


def test_the_standard_error_of_a_mean():
    # Mean 1.5, squared deviations 0.25 * 3 + 2.25 = 3, variance 3 / 3 = 1; divided by sqrt(4).
    assert standard_error(np.array([1.0, 1, 1, 3])) == pytest.approx(0.5)
    assert math.isnan(standard_error(np.array([1.0])))


def test_what_does_not_vary_has_no_width():
    assert interval(np.full((1, 6), 0.25)) == (0.25, 0.25)


def test_six_units_have_an_interval_and_five_have_none():
    # Of six with one 1, none of a resample is the 1 with odds (5/6)^6 = 33 %, four or more are with 0.9 %.
    assert interval(np.array([[0.0, 0, 0, 0, 0, 1]])) == (0, 0.5)
    assert all(map(math.isnan, interval(np.array([[0.0, 0, 0, 0, 1]]))))


def test_a_hundred_coins():
    # Their mean is a binomial of 100 and 1/2, whose 2.5 % and 97.5 % quantiles are 40 and 60.
    low, high = interval(np.array([[0.0, 1.0] * 50]))
    assert (low, high) == (pytest.approx(0.40, abs=0.01), pytest.approx(0.60, abs=0.01))


def test_the_same_units_are_drawn_for_all_columns():
    def ratio(means_CR):
        return means_CR[0] / means_CR[1]

    assert interval(np.array([[2.0, 4, 10, 6, 8, 12], [1.0, 2, 5, 3, 4, 6]]), ratio) == (2, 2)


def test_what_cannot_be_told():
    assert all(map(math.isnan, interval(np.array([[1.0]]))))
    zero_in_some = np.array([[1.0] * 6, [1.0] + [0.0] * 5])
    assert all(map(math.isnan, interval(zero_in_some, lambda means_CR: means_CR[0] / means_CR[1])))
