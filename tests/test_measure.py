"""The numbers of a step where something is missing: nobody scored, no time passed, parts that are no numbers."""

import dataclasses
import math
from types import SimpleNamespace

import numpy
import pytest
import torch
from policy_cases import make_batch

from coevolve.measure import (
    Clock,
    distinct,
    endings,
    episode_parts,
    interaction,
    learnt,
    note_parts,
    spoken,
    step_metrics,
)
from coevolve.types import Episode, Joint, Problem, Targets, Turn


def episode(reward=1.0, parts=None):
    turn = Turn("a", "ann", Problem("p"), 0, 0, [5], [6, 7], [-0.5, -0.5], "", True, reward=reward)
    return Episode(Problem("p"), 0, [turn], [Joint((turn,), (reward,))], parts or {})


class Parts:
    def __init__(self, answer):
        self.answer = answer

    def parts(self, cases):
        return self.answer


def clock(seconds):
    found = Clock()
    found.seconds["step"] = seconds
    return found


def test_lengths_and_endings_are_of_all_turns():
    """Also of those that nobody scored, and that were cut."""
    one = episode().turns[0]
    found = spoken([one, dataclasses.replace(one, action_ids=[6], logps=[-0.5], finished=False, reward=None)])
    assert (found["turns"], found["length"], found["eos_rate"], found["reward"]) == (2, 1.5, 0.5, 1.0)


def test_a_clock_that_stands_still_measures_no_speed():
    assert "tokens_per_second" not in step_metrics([episode()], {}, clock(0.0))
    assert step_metrics([episode()], {}, clock(0.5))["tokens_per_second"] == 4.0


def test_a_phase_that_is_entered_twice_lasts_as_long_as_both(monkeypatch):
    monkeypatch.setattr("coevolve.measure.time", SimpleNamespace(perf_counter=iter([0.0, 1.0, 10.0, 12.0]).__next__))
    found = Clock()
    for _ in range(2):
        with found("x"):
            pass
    assert found.seconds == {"x": 3.0}


def test_the_objective_of_turns_that_nobody_scored_is_not_there():
    batch = make_batch(4, 3).replace(reward_B=torch.full((4,), math.nan))
    batch = batch.replace(kl_BT=torch.ones(batch.mask_BT.shape) * batch.mask_BT)
    targets = Targets(torch.zeros(batch.mask_BT.shape), eta=0.5)
    assert "objective" not in learnt(batch, targets)
    scored = learnt(batch.replace(reward_B=torch.tensor([1.0, math.nan, 3.0, math.nan])), targets)
    assert scored["objective"] == pytest.approx(2.0 - 0.5 * scored["kl"])


def test_rows_that_nobody_sampled_are_not_in_the_mean_credit():
    extra = torch.tensor([False, True, False, True])
    batch = make_batch(4, 3).replace(credit_B=torch.tensor([1.0, 50.0, 3.0, 70.0]), extra_B=extra)
    targets = Targets(torch.zeros(batch.mask_BT.shape))
    assert learnt(batch, targets)["credit"] == 2.0
    assert "credit" not in learnt(batch.replace(extra_B=torch.ones(4, dtype=torch.bool)), targets)


def test_what_an_algorithm_says_of_its_critic_is_believed():
    batch = make_batch(4, 3)
    zero = torch.zeros(batch.mask_BT.shape)
    targets = Targets(zero, batch.logp_BT, metrics={"explained_variance": 0.25})
    assert learnt(batch.replace(value_BT=zero), targets)["explained_variance"] == 0.25


def test_kl_and_objective_are_known_by_role_where_one_policy_plays_both():
    batch = make_batch(4, 3)
    kl_BT = torch.zeros(batch.mask_BT.shape)
    kl_BT[:, 0] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    batch = batch.replace(
        kl_BT=kl_BT, reward_B=torch.tensor([5.0, 6.0, 7.0, math.nan]),
        roles=("pioneer", "observer", "judge"), role_B=torch.tensor([0, 0, 1, 1]),
    )  # fmt: skip
    targets = Targets(torch.zeros(batch.mask_BT.shape), eta=0.5)
    found = learnt(batch, targets)
    assert (found["kl/pioneer"], found["kl/observer"]) == (pytest.approx(1.5), pytest.approx(3.5))
    assert (found["objective/pioneer"], found["objective/observer"]) == (
        pytest.approx(5.5 - 0.5 * 1.5), pytest.approx(7.0 - 0.5 * 3.5),
    )  # fmt: skip
    assert not any("judge" in name for name in found)


def test_what_is_known_by_role_is_a_number_of_the_team():
    said = {"kl": 1.0, "kl/a": 1.0, "objective/a": -1.0}
    line = step_metrics([episode()], {"ann": said, "bob": {"kl": 3.0, "kl/a": 3.0}}, clock(1.0))
    assert (line["kl"], line["kl/a"], line["objective/a"]) == (2.0, 2.0, -1.0)
    assert {name for name in line if name.startswith("agents/") and "kl" in name} == {"agents/ann/kl", "agents/bob/kl"}


def test_who_only_reads_has_no_kl():
    """A judge's rows end in a token that nobody said: its KL is nobody's, and the team's is not a mean with it."""
    batch = make_batch(4, 3)
    batch = batch.replace(kl_BT=torch.ones(batch.mask_BT.shape) * batch.mask_BT)
    targets = Targets(torch.zeros(batch.mask_BT.shape))
    judge = learnt(batch.replace(extra_B=torch.ones(4, dtype=torch.bool)), targets)
    assert "kl" not in judge and "objective" not in judge
    line = step_metrics([episode()], {"ann": learnt(batch, targets), "judge": judge}, clock(1.0))
    assert line["kl"] == line["agents/ann/kl"] > 0


def test_a_part_is_a_mean_over_the_cases_that_have_it():
    found = episode_parts([episode(), episode(), episode()], Parts([{"x": 1.0}, {"x": 3.0, "y": 5.0}, {}]))
    assert found == [{"parts/x": 1.0}, {"parts/x": 3.0, "parts/y": 5.0}, {}]
    assert interaction([episode(parts=one) for one in found]) == {"parts/x": 2.0, "parts/y": 5.0}
    forked = episode()
    forked.joints.append(forked.joints[0])
    assert episode_parts([forked], Parts([{"x": 1.0, "y": 4.0}, {"x": 2.0}])) == [{"parts/x": 1.5, "parts/y": 4.0}]


def test_a_part_is_weighted_by_the_ends_that_have_it():
    """Two answers, of which the second was gone on with twice: ends of 1/2, 1/4 and 1/4."""
    forked = episode()
    (first,) = forked.joints
    forked.joints += [first, dataclasses.replace(first, after=1), dataclasses.replace(first, after=1)]
    assert [weight for _, weight in endings(forked)] == [0.5, 0.25, 0.25]
    # 4 / 2 + 0 / 4 + 2 / 4; and of those that have it (4 / 2 + 1 / 4) / (3 / 4)
    found = episode_parts([forked], Parts([{"x": 4.0, "y": 4.0}, {"x": 0.0, "y": 1.0}, {"x": 2.0}]))
    assert found == [{"parts/x": 2.5, "parts/y": 3.0}]


def test_weights_that_miss_one_by_rounding_do_not_change_a_part():
    """Six ends of 1/6, which is .9999999999999999 in sum."""
    forked = episode()
    forked.joints += forked.joints * 5
    assert sum(weight for _, weight in endings(forked)) < 1.0
    found = episode_parts([forked], Parts([{"x": 3.0, "y": 3.0}, *[{"x": 0.0}] * 5]))
    assert found == [{"parts/x": 0.5, "parts/y": 3.0}]


def test_the_continuations_of_a_chosen_answer_have_all_its_weight():
    """The chosen one's return leaves the later reward out, so the answer that was not chosen is no end."""
    forked = episode()
    (first,) = forked.joints
    forked.joints += [first, *(dataclasses.replace(first, after=1, answered=False) for _ in range(2))]
    assert [weight for _, weight in endings(forked)] == [0.5, 0.5]
    assert endings(forked)[0][0] is forked.joints[2]


def test_parts_see_what_came_before():
    played = episode()
    played.joints.append(dataclasses.replace(played.joints[0], after=0))
    task = SimpleNamespace(parts=lambda cases: [{"before": float(len(case.history))} for case in cases])
    assert episode_parts([played], task) == [{"parts/before": 1.0}]


def test_the_reward_of_a_depth_counts_roles_alike():
    # a moved twice and was paid 0, b once and was paid 3
    a, again, b, last = (dataclasses.replace(episode().turns[0], role=role) for role in "aaba")
    joints = [Joint((a, again, b), (0.0, 0.0, 3.0)), Joint((last,), (1.0,), after=0)]
    found = interaction([Episode(Problem("p"), 0, [a, again, b, last], joints)])
    assert found == {"turn/1/reward": 1.5, "turn/2/reward": 1.0}


def test_a_step_whose_episodes_all_ended_early_has_its_first_turns_reward():
    assert interaction([episode(reward=3.0)]) == {}
    assert interaction([episode(reward=3.0)], stops=True) == {"turn/1/reward": 3.0}


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        ([{"x": math.nan}], "on problem 'p': x is nan; want a finite number"),
        ([{"x": 1e308}], "on problem 'p': x is 1e+308; want a finite number"),
        ([{"x": 10**5000}], "on problem 'p': x is a whole number of 16610 bits; want a finite number"),
        ([{"x": "much"}], "on problem 'p': x is 'much'; want a finite number"),
        ([[1.0]], "on problem 'p' are [1.0]; want a mapping"),
        ([], "want a list with one mapping per case, 1 of them"),
        (None, "want a list with one mapping per case, 1 of them"),
    ],
)
def test_parts_that_are_no_numbers_are_named(answer, want):
    with pytest.raises(ValueError) as error:
        episode_parts([episode()], Parts(answer))
    assert want in str(error.value)
    assert str(error.value).startswith("the parts of Parts")


@pytest.mark.parametrize("two", [2, numpy.float32(2)])
def test_parts_are_written_down(two):
    episodes = [episode()]
    note_parts(episodes, Parts([{"x": two}]))
    assert episodes[0].parts == {"parts/x": 2.0}
    assert type(episodes[0].parts["parts/x"]) is float


def test_a_step_is_the_mean_over_the_policies_that_know_a_number():
    line = step_metrics([episode()], {"ann": {"kl": 1.0, "objective": 2.0}, "bob": {"kl": 3.0}}, clock(1.0))
    assert (line["kl"], line["objective"], line["reward/a"], line["agents/bob/kl"]) == (2.0, 2.0, 1.0, 3.0)
    assert "kl" not in step_metrics([episode()], {"ann": {}}, clock(1.0))


def test_the_reward_is_that_of_the_turns_that_were_scored():
    some = step_metrics([episode(), episode(reward=3.0), silent()], {}, clock(1.0))
    assert (some["reward"], some["turns"]) == (2.0, 3)
    assert "reward" not in spoken(silent().turns)


def test_what_truncated_sampling_adds_is_per_token():
    longer, shorter = episode().turns[0], silent().turns[0]  # two tokens and one
    longer.excess = 0.6
    assert spoken([longer, shorter])["excess"] == pytest.approx(0.2)


def silent():
    turn = Turn("a", "ann", Problem("p"), 0, 0, [5], [6], [-0.5], "", True)
    return Episode(Problem("p"), 0, [turn], [])


def test_distinct():
    assert distinct([[1, 2, 1, 2]], 1) == 0.5
    assert distinct([[1, 2, 1, 2]], 2) == pytest.approx(2 / 3)  # 12, 21, 12
    assert distinct([[1, 2], [1, 2]], 2) == 0.5
    assert distinct([[1]], 2) != distinct([[1]], 2)  # no 2-gram: NaN
