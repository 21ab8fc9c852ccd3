"""Measures by hand, and the budgets that they are taken at."""

import math
from math import nan

import pytest
from made_up import result, row

from coevolve.study import measures
from coevolve.study.measures import (
    Budget,
    _updates,
    along,
    amount,
    areas,
    budget_of,
    check_measure,
    evaluated,
    metric,
    same_cost,
    spent,
    spread,
)


def test_curves_by_hand():
    one = result("a", 0, reward=[0, 1, 2, 4], kl=[1, 2, 3, 5])  # fewer than ten steps: windows of one
    assert amount(one, "end reward") == 4
    assert amount(one, "start reward") == 0
    assert amount(one, "rise reward") == 4
    assert amount(one, "mean kl") == 11 / 4
    assert amount(one, "early reward") == 0
    assert amount(one, "halfway reward") == 2 / 4
    assert amount(one, "noise reward") == pytest.approx(math.sqrt(((1 - 4 / 3) ** 2 * 2 + (2 - 4 / 3) ** 2) / 2 / 2))
    assert math.isnan(amount(one, "end nothing"))
    assert amount(one, "end reward / 4") == 1
    assert amount(one, "mean kl / 11") == 1 / 4


def test_a_budget_is_as_far_as_both_went():
    long = result("a", 0, reward=[0, 1, 2, 3], turns=[10] * 4)
    short = result("b", 0, reward=[0, 2], turns=[10] * 2)
    budget = budget_of(long, short, "responses")
    assert budget.most == 20
    assert [amount(one, "end reward", budget) for one in (long, short)] == [1, 2]
    assert amount(long, "mean reward", budget) == 0.5
    assert not same_cost(long, short, "responses")
    assert same_cost(long, short, "nothing")


def test_windows_are_a_tenth_of_a_run():
    one = result("a", 0, reward=range(20))
    assert amount(one, "start reward") == 0.5  # of the first two points
    assert amount(one, "end reward") == 18.5
    assert amount(one, "rise reward") == 18
    assert amount(one, "early reward") == 3.5  # the fourth mean of two of nineteen
    assert amount(one, "halfway reward") == 9 / 20  # the first mean of two that reaches 9.5
    assert amount(one, "noise reward") == 0


def test_what_never_rose_has_no_half_way():
    for reward in ([3, 2, 1, 0], [2, 2, 2], [math.nan] * 3):
        assert math.isnan(amount(result("a", 0, reward=reward), "halfway reward"))


def test_the_last_point_of_a_long_run_counts_for_its_steps():
    """100 steps are kept as 33 means of three and one of one step, which here alone was paid."""
    one = result("a", 0, reward=[0.0] * 33 + [30.0], kl=[1.0] * 34, turns=[6.0] * 33 + [2.0], steps=100)
    assert len(one.run.lines) == 33
    assert [one.run.lines[-1][key] for key in ("reward", "kl", "turns")] == [7.5, 1.0, 8.0]
    assert amount(one, "end reward") == 2.5  # of three points: ten steps, of which one was paid 30, would say 3
    whole = result("a", 0, reward=[1.0] * 30, steps=60)
    assert len(whole.run.lines) == 30
    blank = result("a", 0, reward=[0.0] * 34, kl=[math.nan] * 34, steps=100)
    assert math.isnan(amount(blank, "end kl"))


def test_optimiser_steps_are_those_of_a_policy():
    pair = result("a", 0, reward=[0, 1], ann__updates=[4, 4], bob__updates=[4, 4])
    alone = result("b", 0, reward=[0, 1], ann__updates=[4, 4])
    assert same_cost(pair, alone, "updates")
    assert budget_of(pair, alone, "updates").most == 8
    taking_turns = result("c", 0, reward=[0, 1, 2], ann__updates=[4, nan, 4], bob__updates=[nan, 4, 4])
    assert _updates(taking_turns.run).tolist() == [2, 4, 8]


def test_a_budget_of_updates_by_hand():
    """Twenty steps of two updates, in windows of two: twenty updates are gone after the tenth step, of rewards 8, 9."""
    whole = result("a", 0, reward=range(20), ann__updates=[2] * 20)
    half = result("b", 0, reward=[5] * 10, ann__updates=[2] * 10)
    budget = budget_of(whole, half, "updates")
    assert budget.most == 20
    assert amount(whole, "end reward", budget) == 8.5
    assert amount(whole, "rise reward", budget) == 8.5 - 0.5
    assert amount(whole, "mean reward", budget) == 4.5  # of 0 to 9
    assert [amount(half, f"{how} reward", budget) for how in ("end", "rise", "mean")] == [5, 0, 5]


def test_who_does_not_say_what_it_spent_is_not_measured_there():
    silent, known = result("a", 0, reward=[0, 1]), result("b", 0, reward=[0, 1], ann__updates=[4, 4])
    assert math.isnan(spent(silent, "updates"))
    assert not same_cost(silent, known, "updates")
    assert math.isnan(amount(silent, "end reward", budget_of(silent, known, "updates")))


def test_a_hundredth_more_is_the_same_cost():
    """Of the larger one; and the mean counts the step that a hundredth more has paid for."""
    one = result("a", 0, reward=[0, 1, 2], turns=[500, 510, 500])
    other = result("b", 0, reward=[0, 3], turns=[500, 500])
    assert amount(one, "mean reward", budget_of(one, other, "responses")) == 0.5
    for turns, same in ((990, True), (989, False), (1010, True), (1011, False)):
        assert same_cost(result("a", 0, reward=[0], turns=[turns]), other, "responses") == same


def test_early_is_a_fifth_of_the_way():
    for points, want in ((5, 0), (6, 1), (10, 1), (11, 2), (16, 3)):  # of steps 0 to 4, 0 to 5 ...
        assert amount(result("a", 0, reward=range(points)), "early reward") == want


def test_noise_is_of_at_least_two_steps():
    assert math.isnan(amount(result("a", 0, reward=[0, 1]), "noise reward"))
    # steps 1 and -2: mean -1/2, variance 9/4 + 9/4; half of it is a point's own
    assert amount(result("a", 0, reward=[0, 1, -1]), "noise reward") == pytest.approx(1.5)


def test_at_equal_kl():
    near = result("a", 0, reward=[0, 4], kl=[0, 2])
    far = result("b", 0, reward=[0, 4], kl=[0, 4])
    budget = budget_of(near, far, "kl")
    assert [amount(one, "end reward", budget) for one in (near, far)] == [4, 2]
    assert budget == Budget("kl", 2)
    beyond = result("b", 1, reward=[1, 4], kl=[3, 4])
    assert math.isnan(amount(beyond, "end reward", budget_of(near, beyond, "kl")))  # nothing is extrapolated


def test_rows_by_hand():
    rows = [
        row("start", reward=0.1, reward_se=0.2),
        row("start", role="observer", policy="bob", reward=0.3),
        row(reward=0.5),
        row(role="observer", policy="bob", reward=0.9),
        row(role="all", policy="ann+bob", **{"parts/tests": 0.25, "reward": 3.0}),
        row(setting="alone", reward=0.6, **{"best@8/reward": 0.8}),
        row(setting="alone", policy="bob", reward=0.4, **{"best@8/reward": 1.0}),
    ]
    one = result("a", 0, reward=[0], rows=rows, problems=9)
    assert amount(one, "held-out reward") == pytest.approx(0.7)
    assert amount(one, "untrained reward") == pytest.approx(0.2)
    assert amount(one, "held-out parts/tests") == 0.25
    assert amount(one, "bare reward") == pytest.approx(0.5)
    assert amount(one, "bare/bob reward") == 0.4
    assert [amount(one, f"bare-{which} reward") for which in ("highest", "lowest")] == [0.6, 0.4]
    assert amount(one, "bare best@8") == pytest.approx(0.9)
    assert math.isnan(amount(one, "bare-untrained reward"))
    assert amount(one, "held-out parts/tests+parts/tests") == 0.5
    assert math.isnan(amount(one, "held-out parts/tests+parts/nothing"))
    assert spread(one) == pytest.approx(0.6)


def test_areas_share_their_corner():
    ours = [result("a", 0, reward_pioneer=[0, 1], kl=[0, 1]), result("a", 1, reward_pioneer=[0, 2], kl=[0, 2])]
    theirs = [result("b", 0, reward_pioneer=[0, 1], kl=[0, 2]), result("b", 1, reward_pioneer=[0, 1], kl=[0, 10])]
    # up to KL 11 and reward 0: ours (2-1)*1 + (11-2)*2; theirs (11-2)*1
    assert areas(ours, theirs) == (pytest.approx(19), pytest.approx(9))
    assert areas(theirs, ours) == (pytest.approx(9), pytest.approx(19))
    # one that began at -1 lowers the corner of both: 1 * 2 + 9 * 3 and 9 * 2
    lower = [theirs[0], result("b", 1, reward_pioneer=[-1, 1], kl=[0, 10])]
    assert areas(ours, lower) == (pytest.approx(29), pytest.approx(18))
    assert areas(lower, ours) == (pytest.approx(18), pytest.approx(29))
    unknown = [theirs[0], result("b", 1, reward_pioneer=[0, 1])]
    assert all(map(math.isnan, areas(ours, unknown)))


def test_measures_know_what_they_are_of():
    assert [evaluated(one) for one in ("held-out reward", "bare/ann reward", "bare-lowest a+b", "end a")] == [
        True, True, True, False,
    ]  # fmt: skip
    assert [along(one) for one in ("end a", "mean a / 4", "rise a", "start a", "noise a", "bare a", "hypervolume")] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip
    assert [metric(one) for one in ("turn/1/reward / 4", "parts/return")] == [("turn/1/reward", 4), ("parts/return", 1)]


@pytest.mark.parametrize(
    "text",
    [
        "ends reward",
        "reward",
        "end",
        "end/ann reward",
        "bare/ann",
        "hyper volume",
        "end a+b",
        "bare a+",
        "end a / 0",
        "end a /4",
        "end a / b",
    ],
)
def test_what_is_no_measure_is_named(text):
    with pytest.raises(ValueError, match="no measure"):
        check_measure(text)


def test_measures_are_let_through():
    for text in (
        "hypervolume",
        "end reward/pioneer",
        "bare/ann best@8",
        "held-out parts/return",
        "end turn/1/reward / 4",
    ):
        assert check_measure(text) == text


def test_start_weights_alone_are_averaged_and_other_seats_are_not_the_team():
    rows = [
        row("start", setting="alone", reward=0.25),
        row("start", setting="alone", policy="bob", reward=0.75),
        row(role="all", policy="ann+bob", **{"parts/tests": 0.5}),
        row(setting="swap", role="all", policy="bob+ann", **{"parts/tests": 1.0}),
    ]
    one = result("a", 0, reward=[0], rows=rows)
    assert amount(one, "bare-untrained reward") == 0.5
    assert amount(one, "held-out parts/tests") == 0.5


def test_every_measure_has_its_meaning():
    assert set(measures.MEANINGS) == {*measures._ALONG, *measures._WHOLE, *measures._ROWS, "hypervolume"}
