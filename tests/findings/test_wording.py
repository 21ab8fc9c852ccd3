"""Numbers, windows and words."""

import math

import pytest
from hand_made import run

from coevolve.report.findings.curves import column, final, peak, smooth, start
from coevolve.report.wording import and_list, many, number, plus_minus, within


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (3.14159, "3.14"),
        (-0.0512, "-0.0512"),
        (99.96, "100"),
        (0.09999, "0.100"),
        (999.7, "1,000"),
        (812.3, "812"),
        (7680, "7,680"),
        (12345.6, "12,346"),
        (0.0000123, "1.2e-05"),
        (7, "7"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_numbers_have_three_significant_digits(value, text):
    assert number(value) == text


def test_words():
    assert plus_minus(3.5916, 0.3659) == "3.59 ± 0.37"
    assert plus_minus(1234.5, 56.7) == "1234 ± 57"
    assert plus_minus(0.1, 1.4e-17) == "0.100"  # as of equal values, added up
    assert (plus_minus(1.0, None), plus_minus(1.0, 0.0)) == ("1.00", "1.00")
    assert within(1.0, 0.5, 2.0) == "1.00 [0.500, 2.00]"
    assert within(1.0, None, None) == "1.00"
    assert [and_list(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
    assert (many(1, "run"), many(2, "run")) == ("1 run", "2 runs")


def test_start_peak_and_final_are_means_of_a_tenth():
    reward = column(run(reward=[0.0, 2.0, 9.0, 7.0, *[4.0] * 14, 1.0, 2.0]), "reward")  # 20 steps: means of two
    assert (start(reward), peak(reward), final(reward)) == (1.0, 8.0, 1.5)
    assert [len(smooth(reward[:steps])) for steps in (20, 19, 5)] == [19, 19, 5]  # a tenth, rounded down, at least one


def test_a_missing_number_is_left_out_of_the_mean():
    reward = column(run(reward=[None, 2.0, *[4.0] * 18]), "reward")
    assert start(reward) == 2.0
    assert math.isnan(final(column(run(reward=[1.0, None]), "reward")))
    assert math.isnan(peak(column(run(reward=[1.0]), "kl")))
