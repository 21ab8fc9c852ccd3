"""The rule on made-up results whose verdicts are known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from made_up import HERE, pairs, result, row, study

from coevolve.report.findings.statistics import Estimate, estimate
from coevolve.study.verdicts import decide, holds, judge


def verdict(differences, **changes):
    (one,) = judge(study(**changes), pairs(differences), {})
    return one.verdict


APART = Estimate(12, 0.1, 0.08, 0.12)
NEAR = Estimate(12, 0.005, -0.01, 0.015)
WIDE = Estimate(12, 0.1, -0.05, 0.2)


@pytest.mark.parametrize(
    ("direction", "effect", "p", "found"),
    [
        ("more", APART, 0.04, "confirmed"),
        ("less", APART, 0.04, "refuted"),
        ("equal", APART, 0.04, "refuted"),
        ("more", APART, 0.05, "undecided"),
        ("equal", APART, 0.05, "undecided"),
        ("more", NEAR, 0.001, "equal"),  # sure, but too small to count
        ("less", NEAR, 1.0, "equal"),
        ("equal", NEAR, 1.0, "confirmed"),
        ("more", WIDE, 0.2, "undecided"),
        ("equal", WIDE, 0.2, "undecided"),
        ("more", Estimate(12, 0.02, 0.01, 0.03), 0.001, "undecided"),  # not beyond the margin, not within
        ("more", Estimate(1, 0.5, None, None), 0.001, "undecided"),
    ],
)
def test_the_rule(direction, effect, p, found):
    assert decide(direction, effect, p, 0.02) == found


def test_nothing_is_decided_without_a_margin():
    assert decide("more", APART, 0.01, math.nan) == "undecided"


def test_twelve_seeds_that_agree_confirm():
    (one,) = judge(study(), pairs([0.1] * 6 + [0.2] * 6), {})
    (found,) = one.found
    assert found.p == found.adjusted == 2 / 2**12  # all signs as they are, or all turned
    assert found.estimate.mean == pytest.approx(0.15)
    assert (one.verdict, found.margin) == ("confirmed", 0.02)


@pytest.mark.parametrize(
    ("differences", "changes", "found"),
    [
        ([-0.1] * 12, {}, "refuted"),
        ([0.1] * 12, {"direction": "less"}, "refuted"),
        ([0.1] * 12, {"direction": "equal"}, "refuted"),
        ([0.01, -0.01] * 6, {}, "equal"),
        ([0.0] * 12, {}, "equal"),
        ([0.0] * 12, {"direction": "equal"}, "confirmed"),
        ([0.3, -0.3] * 6, {}, "undecided"),
        ([0.1] * 11, {}, "undecided"),  # a seed is missing
        ([0.1] * 12, {"margin": "0.2"}, "equal"),
        ([0.1] * 12, {"margin": "10 %"}, "confirmed"),  # of .5
        ([0.04] * 12, {"margin": "10 %"}, "equal"),
    ],
)
def test_verdicts_that_are_known(differences, changes, found):
    assert verdict(differences, **changes) == found


def test_noise_is_hardly_ever_confirmed():
    rng = np.random.default_rng(0)
    found = [verdict(rng.normal(0, 0.3, 12)) for _ in range(200)]
    assert found.count("confirmed") + found.count("refuted") <= 20  # of 200 at 5 %: 10 expected
    assert found.count("equal") == 0


def test_the_family_is_all_comparisons_whether_done_or_not():
    one = {
        "arm": "a",
        "than": "b",
        "measure": "end reward",
        "direction": "more",
        "margin": "0.02",
        "matched": "nothing",
    }
    never = {**one, "measure": "end kl"}
    (judged,) = judge(study(comparisons=[one, never, never]), pairs([0.1] * 12), {})
    assert [found.adjusted for found in judged.found] == [3 * 2 / 2**12, 1.0, 1.0]
    assert [found.verdict for found in judged.found] == ["confirmed", "undecided", "undecided"]
    assert judged.verdict == "undecided"  # not all of it is confirmed


def test_a_claim_is_refuted_if_one_of_its_comparisons_is():
    one = {
        "arm": "a",
        "than": "b",
        "measure": "end reward",
        "direction": "more",
        "margin": "0.02",
        "matched": "nothing",
    }
    (judged,) = judge(study(comparisons=[one, {**one, "direction": "less"}]), pairs([0.1] * 12), {})
    assert [found.verdict for found in judged.found] == ["confirmed", "refuted"]
    assert judged.verdict == "refuted"


@pytest.mark.parametrize(
    ("slope", "gain", "found"), [(0.3, 0.01, "confirmed"), (0.29, 0.01, "vacuous"), (0.9, 0.0, "vacuous")]
)
def test_a_claim_without_its_premise_is_vacuous(slope, gain, found):
    needs = study(premise="reads", needs_premise=True)
    premise = {"reads": {"slope": slope, "gain": gain}}
    assert holds(premise["reads"]) == (found != "vacuous")
    assert judge(needs, pairs([0.1] * 12), premise)[0].verdict == found
    assert judge(needs, pairs([0.1] * 12), {})[0].verdict == "undecided"  # nobody looked
    assert not holds({"slope": None, "gain": 0.1})  # the pioneer's reward never varies
    assert judge(study(premise="reads"), pairs([0.1] * 12), premise)[0].verdict == "confirmed"  # it is only shown


def test_pairs_of_different_machines_are_refused():
    found = pairs([0.1] * 12)
    other = HERE.model_copy(update={"processor": "another"})
    found["a"][3] = found["a"][3].model_copy(update={"machine": other})
    found["a"][4] = found["a"][4].model_copy(update={"versions": {"torch": "3"}})
    (one,) = judge(study(), found, {})
    assert one.found[0].refused == {3: "on different processors or compute paths", 4: "of different versions"}
    assert (len(one.found[0].pairs), one.verdict) == (10, "undecided")


def test_what_is_measured_at_the_end_wants_equal_cost():
    paid = [row(role="pioneer", reward=0.5)]
    found = {
        "a": {0: result("a", 0, turns=[64] * 10, rows=paid), 1: result("a", 1, turns=[64] * 10, rows=paid)},
        "b": {0: result("b", 0, turns=[128] * 10, rows=paid), 1: result("b", 1, turns=[64] * 10, rows=paid)},
    }
    (one,) = judge(study(measure="held-out reward", matched="responses"), found, {})
    assert one.found[0].refused == {0: "spent different responses"}
    assert one.found[0].pairs == {1: (0.5, 0.5)}


def test_what_a_run_does_not_say_is_no_pair():
    (one,) = judge(study(measure="end kl"), pairs([0.1]), {})
    assert one.found[0].refused == {0: "not measured in these runs"}


def test_a_margin_in_deviations_is_the_starts():
    start = [row("start", reward=0.1, reward_se=0.25)]  # over 4 problems: a deviation of .5
    found = pairs([0.1] * 12)
    found["b"] = {seed: one.model_copy(update={"rows": start}) for seed, one in found["b"].items()}
    (one,) = judge(study(margin="0.1 sd"), found, {})
    assert one.found[0].margin == pytest.approx(0.05)
    assert one.verdict == "confirmed"


def test_intervals_are_the_reports():
    values = [0.1, 0.3, 0.2]
    (one,) = judge(study(), pairs(values), {})
    assert one.found[0].estimate.mean == pytest.approx(estimate(values).mean)
    assert replace(one.found[0]).p == 1.0  # three of twelve are no test


def test_an_open_question_gets_a_number_and_takes_no_part_in_the_correction():
    asked = {"arm": "a", "than": "b", "measure": "end reward", "margin": "0.02", "matched": "nothing"}
    both = study(comparisons=[{**asked, "direction": "more"}, {**asked, "direction": "open"}])
    assert both.tests == 1
    (one,) = judge(both, pairs([0.1] * 12), {})
    claimed, question = one.found
    assert claimed.adjusted == claimed.p == 2 / 2**12
    assert (one.verdict, question.verdict, question.p) == ("confirmed", "open", 1.0)
    assert question.estimate.mean == pytest.approx(0.1)
    (one,) = judge(study(comparisons=[{**asked, "direction": "open"}]), pairs([0.1] * 12), {})
    assert one.verdict == "open"
