"""The rule on made-up results whose verdicts are known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from made_up import HERE, everywhere, pairs, result, row, study

from coevolve.report.findings.statistics import Estimate, estimate, holm
from coevolve.study.results import Evaluated, one_per_seed
from coevolve.study.verdicts import decide, holds, judge


def verdict(differences, **changes):
    (one,) = judge(study(**changes), everywhere(pairs(differences)), {})
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
        ("more", Estimate(12, 0.02, 0.02, 0.02), 0.001, "equal"),  # as far as the margin is within it
        ("equal", Estimate(12, -0.02, -0.02, -0.02), 0.001, "confirmed"),
        ("more", Estimate(1, 0.5, None, None), 0.001, "undecided"),
    ],
)
def test_the_rule(direction, effect, p, found):
    assert decide(direction, effect, p, 0.02) == found


def test_nothing_is_decided_without_a_margin():
    assert decide("more", APART, 0.01, math.nan) == "undecided"


def test_twelve_seeds_that_agree_confirm():
    (one,) = judge(study(), everywhere(pairs([0.1] * 6 + [0.2] * 6)), {})
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


def test_one_seed_against_the_others_is_one_test_of_many_too_many():
    """Of 12 seeds 2 of 4,096 patterns of signs are the least there can be; the smallest turned makes it 4."""
    one = {
        "arm": "a",
        "than": "b",
        "measure": "end reward",
        "direction": "more",
        "margin": "0.02",
        "matched": "nothing",
    }
    never = {**one, "measure": "end kl"}
    for family, found in ((51, "confirmed"), (52, "undecided")):
        (judged,) = judge(
            study(comparisons=[one] + [never] * (family - 1)), everywhere(pairs([-0.01] + [0.2] * 11)), {}
        )
        assert (judged.found[0].p, judged.found[0].verdict) == (4 / 2**12, found)


def test_seeds_without_a_difference_have_no_sign_to_turn():
    (judged,) = judge(study(), everywhere(pairs([0.0, 0.0] + [0.2] * 10)), {})
    assert judged.found[0].p == 2 * 4 / 2**12


def test_the_interval_of_twelve_seeds_is_a_percentile_of_resampled_means():
    # The mean is Binomial(12, 1/12) / 12 of 1.2: P(0) = .35, P(<= 2) = .930, P(<= 3) = .987
    (judged,) = judge(study(), everywhere(pairs([1.2] + [0.0] * 11)), {})
    assert judged.found[0].estimate == (12, pytest.approx(0.1), 0.0, pytest.approx(0.3))


def test_later_runs_never_take_a_verdict_back():
    """Holm's factors are those of all comparisons from the first run on, and fall as more are decided."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        ps = [*(2 / 4096 * rng.integers(1, 60, 8)), *[1.0] * 12]
        later = [*ps[:8], *(2 / 4096 * rng.integers(1, 60, 4)), *[1.0] * 8]
        assert all(new <= old for new, old in zip(holm(later)[:8], holm(ps)[:8], strict=True))


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
    (judged,) = judge(study(comparisons=[one, never, never]), everywhere(pairs([0.1] * 12)), {})
    assert [found.adjusted for found in judged.found] == [3 * 2 / 2**12, 1.0, 1.0]
    assert [found.verdict for found in judged.found] == ["confirmed", "undecided", "undecided"]
    assert judged.verdict == "undecided"  # not all of it is confirmed


@pytest.mark.parametrize(
    ("margins", "found"), [(["0.2", "0.3"], "equal"), (["0.02", "0.03"], "confirmed"), (["0.02", "0.2"], "undecided")]
)
def test_a_claim_is_what_all_its_comparisons_are(margins, found):
    one = {"arm": "a", "than": "b", "measure": "end reward", "direction": "more", "matched": "nothing"}
    (judged,) = judge(
        study(comparisons=[{**one, "margin": margin} for margin in margins]), everywhere(pairs([0.1] * 12)), {}
    )
    assert judged.verdict == found


def test_a_claim_is_refuted_if_one_of_its_comparisons_is():
    one = {
        "arm": "a",
        "than": "b",
        "measure": "end reward",
        "direction": "more",
        "margin": "0.02",
        "matched": "nothing",
    }
    (judged,) = judge(study(comparisons=[one, {**one, "direction": "less"}]), everywhere(pairs([0.1] * 12)), {})
    assert [found.verdict for found in judged.found] == ["confirmed", "refuted"]
    assert judged.verdict == "refuted"


@pytest.mark.parametrize(
    ("slope", "gain", "found"), [(0.3, 0.01, "confirmed"), (0.29, 0.01, "vacuous"), (0.9, 0.0, "vacuous")]
)
def test_a_claim_without_its_premise_is_vacuous(slope, gain, found):
    needs = study(premise="reads", needs_premise=True)
    premise = {"reads": {"slope": slope, "gain": gain}}
    assert holds(premise["reads"]) == (found != "vacuous")
    assert judge(needs, everywhere(pairs([0.1] * 12)), premise)[0].verdict == found
    assert judge(needs, everywhere(pairs([0.1] * 12)), {})[0].verdict == "undecided"  # nobody looked
    assert not holds({"slope": None, "gain": 0.1})  # the pioneer's reward never varies
    assert (
        judge(study(premise="reads"), everywhere(pairs([0.1] * 12)), premise)[0].verdict == "confirmed"
    )  # it is only shown


def test_each_of_several_premises_must_hold():
    needs, kept = study(premise=["reads", "checks"], needs_premise=True), everywhere(pairs([0.1] * 12))
    holding, failing = {"slope": 0.6, "gain": 0.2}, {"slope": 0.6, "gain": -0.2}
    assert judge(needs, kept, {"reads": holding, "checks": holding})[0].verdict == "confirmed"
    assert judge(needs, kept, {"reads": holding, "checks": failing})[0].verdict == "vacuous"
    assert judge(needs, kept, {"reads": holding})[0].verdict == "undecided"
    assert judge(needs, kept, {"checks": failing})[0].verdict == "vacuous"  # whatever the other one is


def test_pairs_of_other_versions_are_refused():
    """A library that one side does not record, as early results do not numba, is not held against it."""
    found = pairs([0.1] * 12)
    for arm, seed, numba in (("a", 2, "1"), ("a", 7, "1"), ("b", 7, "1"), ("a", 4, "1"), ("b", 4, "2")):
        versions = {**found[arm][seed].versions, "numba": numba}
        found[arm][seed] = found[arm][seed].model_copy(update={"versions": versions})
    (one,) = judge(study(), everywhere(found), {})
    assert one.found[0].refused == {4: "of different versions"}
    assert (len(one.found[0].pairs), one.verdict) == (11, "undecided")


@pytest.mark.parametrize("change", [{"compute": ("torch",)}, {"threads": 2}])
def test_a_pair_of_other_compute_is_refused(change):
    found = pairs([0.1] * 12)
    found["b"][3] = found["b"][3].model_copy(update={"machine": HERE.model_copy(update=change)})
    (one,) = judge(study(), everywhere(found), {})
    assert (one.found[0].refused, one.verdict) == ({3: "on different compute paths"}, "undecided")


def test_a_pair_that_began_from_other_weights_is_refused():
    """What one side does not say is not held against it."""
    found = pairs([0.1] * 12)
    for arm, seed, digest in (("a", 2, "x"), ("b", 2, "y"), ("a", 5, "x"), ("b", 5, "x"), ("a", 7, "x")):
        found[arm][seed] = found[arm][seed].model_copy(update={"weights": {"a model": digest}})
    (one,) = judge(study(), everywhere(found), {})
    assert one.found[0].refused == {2: "from different start weights"}


FAR = HERE.model_copy(update={"processor": "z, far"})


def test_results_of_two_processors_are_no_pair():
    found = pairs([0.1] * 12)
    found["a"][3] = found["a"][3].model_copy(update={"machine": FAR})
    (one,) = judge(study(), everywhere(found), {})
    assert (len(one.found[0].pairs), one.found[0].refused, one.verdict) == (11, {}, "undecided")


def finished(seeds, when):
    return {
        seed: one.model_copy(update={"took": one.took.model_copy(update={"finished": when})})
        for seed, one in seeds.items()
    }


def test_pairs_may_be_of_one_processor_or_of_the_other():
    """Seeds 0 to 4 have pairs on one, 3 to 11 on the other; those of 3 and 4 were finished earlier on the other."""
    here = {arm: {seed: one for seed, one in seeds.items() if seed < 5} for arm, seeds in pairs([0.1] * 12).items()}
    here["a"] = finished(here["a"], "2026-11-27T00:00:00+00:00")
    there = {
        arm: finished({seed: one for seed, one in seeds.items() if seed >= 3}, "2026-11-26T23:00:00+00:00")
        for arm, seeds in pairs([0.2] * 12, machine=FAR).items()
    }
    there["b"] = {seed: one.model_copy(update={"machine": FAR}) for seed, one in there["b"].items()}
    (one,) = judge(study(), everywhere(here) | everywhere(there), {})
    assert one.found[0].values == pytest.approx([0.1] * 3 + [0.2] * 9)
    assert list(one.found[0].made_on.values()) == ["a processor"] * 3 + ["z, far"] * 9
    assert one.verdict == "confirmed"


def test_later_runs_on_another_processor_cannot_revoke_a_verdict():
    """Whichever of the two has the first name: runs made for another claim give no second look at this one."""
    first = {arm: finished(seeds, "2026-11-25") for arm, seeds in pairs([0.1] * 12).items()}
    for name in ("a, near", "z, far"):
        machine = HERE.model_copy(update={"processor": name})
        later = {
            arm: finished(
                {seed: one.model_copy(update={"machine": machine}) for seed, one in seeds.items()}, "2026-11-27"
            )
            for arm, seeds in pairs([-0.3, *[0.1] * 11]).items()
        }
        (one,) = judge(study(), everywhere(first) | everywhere(later), {})
        assert (one.verdict, set(one.found[0].made_on.values())) == ("confirmed", {"a processor"})


def test_a_pair_that_one_processor_refuses_may_be_of_another():
    found = pairs([0.1] * 12)
    there = {arm: {0: seeds[0].model_copy(update={"machine": FAR})} for arm, seeds in pairs([0.3]).items()}
    found["a"][0] = found["a"][0].model_copy(update={"versions": {"torch": "3"}})
    (one,) = judge(study(), everywhere(found) | everywhere(there), {})
    assert (one.found[0].refused, one.found[0].pairs[0]) == ({}, (0.8, 0.5))


def anywhere(differences, machine, when):
    """Twelve pairs on one kind of processor, all finished then."""
    found = pairs(differences, machine=machine)
    found["b"] = {seed: one.model_copy(update={"machine": machine}) for seed, one in found["b"].items()}
    return everywhere({arm: finished(seeds, when) for arm, seeds in found.items()})


def test_runs_of_before_the_day_since_which_they_count_are_no_pairs():
    first = anywhere([0.1] * 12, HERE, "2026-11-23T22:34:24+00:00")
    anew = anywhere([-0.3] * 12, FAR, "2026-11-28T00:00:00+00:00")
    assert judge(study(), first | anew, {})[0].verdict == "confirmed"
    (one,) = judge(study(since="2026-11-28"), first, {})
    assert (one.verdict, one.found[0].pairs) == ("undecided", {})
    assert set(one.found[0].refused.values()) == {"finished before the day since which runs count"}
    (one,) = judge(study(since="2026-11-28"), first | anew, {})
    assert (one.verdict, one.found[0].values, one.found[0].refused) == ("refuted", pytest.approx([-0.3] * 12), {})


def test_why_runs_that_count_are_no_pair_is_said_before_that_others_do_not_count():
    first = anywhere([0.1] * 12, HERE, "2026-11-23T22:34:24+00:00")
    anew = anywhere([0.3] * 12, FAR, "2026-11-28T00:00:00+00:00")
    anew["z, far"]["a"][3] = anew["z, far"]["a"][3].model_copy(update={"versions": {"torch": "3"}})
    (one,) = judge(study(since="2026-11-28"), first | anew, {})
    assert one.found[0].refused == {3: "of different versions"}


def test_one_run_of_before_that_day_is_enough():
    found = anywhere([0.1] * 12, HERE, "2026-11-28T10:00:00+00:00")
    found["a processor"]["b"] |= finished({4: found["a processor"]["b"][4]}, "2026-11-27T23:59:59+00:00")
    (one,) = judge(study(since="2026-11-28"), found, {})
    assert list(one.found[0].refused) == [4]


def test_pairs_with_a_run_of_a_lost_commit_are_told():
    found = pairs([0.1] * 12)
    for arm, seed, commit in (
        ("a", 2, "1" * 40),
        ("b", 5, f"{'0' * 40}; {'1' * 40}, with changes"),
        ("b", 7, "2" * 40),
    ):
        found[arm][seed] = found[arm][seed].model_copy(update={"commit": commit})
    (one,) = judge(study().model_copy(update={"lost": ["1" * 40]}), everywhere(found), {})
    assert (one.verdict, one.found[0].lost) == ("confirmed", {2, 5})
    assert judge(study(), everywhere(found), {})[0].found[0].lost == set()


def test_of_several_processors_each_seed_is_of_the_one_that_made_most():
    found, there = pairs([0.1] * 3), pairs([0.2] * 2, machine=FAR)
    later = {arm: {seed + 2: one for seed, one in seeds.items()} for arm, seeds in there.items()}
    one = one_per_seed(everywhere(found) | {"z, far": later})["a"]
    assert one == found["a"] | {3: later["a"][3]}
    assert one_per_seed(everywhere(found) | {"z, far": later}, first="z, far")["a"] == found["a"] | later["a"]
    assert one_per_seed(everywhere(found) | {"z, far": there}) == found
    assert one_per_seed({"a, near": there} | everywhere(found)) == found
    assert one_per_seed({}) == {}


def curves(a, b):
    """Twelve seeds of both arms with these curves, each a little further along by seed."""
    return {
        arm: {
            seed: result(arm, seed, **{key: [v * (1 + seed / 100) for v in values] for key, values in one.items()})
            for seed in range(12)
        }
        for arm, one in (("a", a), ("b", b))
    }


KL = {"reward": [0, 4], "kl": [0, 1]}


@pytest.mark.parametrize(
    ("a", "b", "changes", "found"),
    [
        # At the KL that both came to, 1, the other one has half of the 6 that it earns in the end.
        (KL, {"reward": [0, 6], "kl": [0, 2]}, {"matched": "kl"}, "confirmed"),
        (KL, {"reward": [0, 6], "kl": [0, 2]}, {"matched": "nothing"}, "refuted"),
        (KL, {"reward": [0, 8], "kl": [0, 2]}, {"matched": "kl"}, "equal"),
        # Beyond the other's largest KL from its first point on: nothing is said of what it earned before.
        (KL, {"reward": [3, 6], "kl": [2, 3]}, {"matched": "kl"}, "undecided"),
        # The other one goes on for longer: compared where the shorter one ends.
        (
            {"reward": [0, 1, 2], "ann__updates": [1, 1, 1]},
            {"reward": [0, 0, 0.5, 2, 3], "ann__updates": [1] * 5},
            {"measure": "rise reward", "matched": "updates"},
            "confirmed",
        ),
        (
            {"reward": [0, 1, 2], "ann__updates": [1, 1, 1]},
            {"reward": [3, 3, 4, 9, 9], "ann__updates": [1] * 5},
            {"measure": "mean reward", "matched": "updates"},
            "refuted",
        ),
        (
            {"reward": [0, 2, 0, 2]},
            {"reward": [0, 1, 2, 3]},
            {"measure": "noise reward", "margin": "10 %"},
            "confirmed",
        ),
        ({"reward": [0, 2, 0, 2]}, {"reward": [1, 3, 1, 3]}, {"measure": "noise reward", "margin": "10 %"}, "equal"),
        ({"reward": [-4, -4]}, {"reward": [-5, -5]}, {"margin": "10 %"}, "confirmed"),  # of 5, whatever its sign
        ({"reward": [-4.7, -4.7]}, {"reward": [-5, -5]}, {"margin": "10 %"}, "equal"),
    ],
)
def test_verdicts_of_curves_that_are_known(a, b, changes, found):
    (one,) = judge(study(**changes), everywhere(curves(a, b)), {})
    assert one.verdict == found


FRONTIER = {"arm": ["a", "a2"], "than": ["b", "b2"], "measure": "hypervolume", "margin": "10 %", "matched": "responses"}


def frontiers(better):
    """Two weights of each side: ours end at KL 1 and 2, theirs as high or, if ours are better, at twice the KL."""
    far = 2 if better else 1
    ends = {"a": (1, 1), "a2": (2, 2), "b": (far, 1), "b2": (2 * far, 2)}
    return {
        arm: {s: result(arm, s, reward_pioneer=[0, y], kl=[0, x * (1 + s / 100)]) for s in range(12)}
        for arm, (x, y) in ends.items()
    }


def test_a_frontier_that_lies_beyond_another_is_confirmed():
    claimed = [{**FRONTIER, "direction": direction} for direction in ("more", "less")]
    for direction, found in zip(claimed, ("confirmed", "refuted"), strict=True):
        (one,) = judge(study(comparisons=[direction]), everywhere(frontiers(better=True)), {})
        # up to KL 4.4: (2 - 1) * 1 + (4.4 - 2) * 2 and (4 - 2) * 1 + (4.4 - 4) * 2
        assert one.found[0].pairs[0] == (pytest.approx(5.8), pytest.approx(2.8))
        assert one.verdict == found
        (one,) = judge(study(comparisons=[direction]), everywhere(frontiers(better=False)), {})
        assert one.verdict == "equal"


def test_a_frontier_wants_all_its_points_from_one_kind_of_machine():
    found = frontiers(better=True)
    found["a2"][5] = found["a2"][5].model_copy(update={"machine": HERE.model_copy(update={"processor": "another"})})
    del found["b2"][7]
    (one,) = judge(study(comparisons=[{**FRONTIER, "direction": "more"}]), everywhere(found), {})
    assert (one.found[0].refused, len(one.found[0].pairs)) == ({}, 10)
    assert one.verdict == "undecided"


def test_a_frontier_wants_equal_cost_of_each_two_arms():
    """The first arms of both sides sampled as many turns, the second ones of seed 3 did not."""
    found = frontiers(better=True)
    found["b2"][3] = result("b2", 3, reward_pioneer=[0, 2], kl=[0, 4], turns=[1, 2])
    (one,) = judge(study(comparisons=[{**FRONTIER, "direction": "more"}]), everywhere(found), {})
    assert one.found[0].refused == {3: "spent different responses"}
    assert (len(one.found[0].pairs), one.verdict) == (11, "undecided")


def test_what_is_measured_at_the_end_wants_equal_cost():
    paid = [row(role="pioneer", reward=0.5)]
    found = {
        "a": {0: result("a", 0, turns=[64] * 10, rows=paid), 1: result("a", 1, turns=[64] * 10, rows=paid)},
        "b": {0: result("b", 0, turns=[128] * 10, rows=paid), 1: result("b", 1, turns=[64] * 10, rows=paid)},
    }
    (one,) = judge(study(measure="held-out reward", matched="responses"), everywhere(found), {})
    assert one.found[0].refused == {0: "spent different responses"}
    assert one.found[0].pairs == {1: (0.5, 0.5)}
    # and so does what is measured there on one side only, whichever it is
    for measure, than, numbers in (
        ("end reward", "held-out reward", (0, 0.5)),
        ("bare reward", "end reward", (0.5, 0)),
    ):
        alone = [row(setting="alone", reward=0.5)]
        both = {
            arm: {s: r.model_copy(update={"rows": paid + alone}) for s, r in of.items()} for arm, of in found.items()
        }
        (one,) = judge(study(measure=measure, than_measure=than, matched="responses"), everywhere(both), {})
        assert one.found[0].refused == {0: "spent different responses"}
        assert one.found[0].pairs == {1: numbers}


@pytest.mark.parametrize(
    ("measure", "than", "refused"),
    [
        ("held-out reward", None, True),
        ("bare/ann reward", None, True),
        ("end reward", None, False),
        ("end reward", "held-out reward", True),
        ("held-out reward", "end reward", True),
    ],
)
@pytest.mark.parametrize(
    ("how", "why"),
    [
        (Evaluated(samples=8), "evaluated with different numbers of samples"),
        (Evaluated(seed=0), "evaluated by different random numbers"),
        (Evaluated(seed=1), ""),
    ],
)
def test_what_was_evaluated_otherwise_is_no_pair(measure, than, refused, how, why):
    """Where seeds share the numbers that they are evaluated by, one side's luck would be in all pairs. The run is of
    seed 1, whose own numbers are those of 1."""
    measures = {"measure": measure, "than_measure": than} if than else {"measure": measure}
    paid = [row(role="pioneer", reward=0.5), row(setting="alone", role="pioneer", policy="ann", reward=0.5)]
    found = {arm: {1: result(arm, 1, reward=[0.5] * 10, turns=[64] * 10, rows=paid)} for arm in "ab"}
    (one,) = judge(study(**measures), everywhere(found), {})
    assert list(one.found[0].pairs) == [1]
    found["a"][1] = found["a"][1].model_copy(update={"evaluated": how})
    (one,) = judge(study(**measures), everywhere(found), {})
    assert one.found[0].refused == ({1: why} if refused and why else {})


def test_what_a_run_does_not_say_is_no_pair():
    for said in ({}, {"kl": [1.0] * 5}):  # by neither, or by one of them only
        (one,) = judge(study(measure="end kl"), everywhere(pairs([0.1], **said)), {})
        assert one.found[0].refused == {0: "not measured in these runs"}


def test_a_margin_in_deviations_is_the_starts():
    start = [row("start", reward=0.1, reward_se=0.25)]  # over 4 problems: a deviation of .5
    found = pairs([0.1] * 12)
    found["b"] = {seed: one.model_copy(update={"rows": start}) for seed, one in found["b"].items()}
    (one,) = judge(study(margin="0.1 sd"), everywhere(found), {})
    assert one.found[0].margin == pytest.approx(0.05)
    assert one.verdict == "confirmed"


def test_a_margin_in_deviations_is_of_the_seeds_mean_deviation():
    found = pairs([0.1] * 12)
    errors = {seed: 0.85 if seed == 0 else 0.25 for seed in found["b"]}  # over 4 problems: 1.7 once, .5 eleven times
    found["b"] = {
        seed: one.model_copy(update={"rows": [row("start", reward=0.1, reward_se=errors[seed])]})
        for seed, one in found["b"].items()
    }
    (one,) = judge(study(margin="0.1 sd"), everywhere(found), {})
    assert one.found[0].margin == pytest.approx(0.06)


def test_a_margin_in_percent_is_of_the_other_side():
    found = pairs([0.052] * 12)
    (one,) = judge(study(margin="10 %"), everywhere(found), {})
    (base,) = {run.curves["reward"][-1] for run in found["b"].values()}
    assert one.found[0].margin == pytest.approx(0.1 * base)


def test_seeds_beyond_the_studys_are_no_pairs():
    (one,) = judge(study(), everywhere(pairs([0.1] * 12 + [-9.0])), {})
    assert len(one.found[0].pairs) == 12
    assert one.verdict == "confirmed"


def test_intervals_are_the_reports():
    values = [0.1, 0.3, 0.2]
    (one,) = judge(study(), everywhere(pairs(values)), {})
    assert one.found[0].estimate.mean == pytest.approx(estimate(values).mean)
    assert replace(one.found[0]).p is None  # three of twelve are no test


def test_an_open_question_gets_a_number_and_takes_no_part_in_the_correction():
    asked = {"arm": "a", "than": "b", "measure": "end reward", "margin": "0.02", "matched": "nothing"}
    both = study(comparisons=[{**asked, "direction": "more"}, {**asked, "direction": "open"}])
    assert both.tests == 1
    (one,) = judge(both, everywhere(pairs([0.1] * 12)), {})
    claimed, question = one.found
    assert claimed.adjusted == claimed.p == 2 / 2**12
    assert (one.verdict, question.verdict, question.p) == ("confirmed", "open", None)
    assert question.estimate.mean == pytest.approx(0.1)
    (one,) = judge(study(comparisons=[{**asked, "direction": "open"}]), everywhere(pairs([0.1] * 12)), {})
    assert one.verdict == "open"
