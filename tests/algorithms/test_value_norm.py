"""Values in units of the returns so far, by hand and where they change nothing."""

import math

import pytest
import torch
from lesson_cases import learnt_from
from test_ppo import batch

from coevolve.algorithms import iac, maac, ppo

PLAIN = {"eta": 0.0, "whiten": False, "lam": 1.0}


def given(values, credit):
    """Turns of one token, of which a head says these values."""
    zero = [[0.0]] * len(credit)
    return batch([[-1.0]] * len(credit), zero, zero, credit, value=[[one] for one in values])


def test_by_hand():
    rule = ppo(**PLAIN, value_norm=True)
    # nothing was seen: values are as the head says them; returns 1, 5: mean 3, deviation sqrt(8)
    targets, state = learnt_from(rule, given([0.5, 0.5], [1.0, 5.0]))
    assert targets.adv_BT[:, 0].tolist() == [0.5, 4.5]
    assert targets.return_BT[:, 0].tolist() == pytest.approx([-2 / math.sqrt(8), 2 / math.sqrt(8)])
    assert state == {"values": {"a": {"count": 2, "mean": 3.0, "squares": 8.0}}}
    # then 1 and -1 are 3 + sqrt(8) and 3 - sqrt(8); with returns 7, 7 the four have the mean 5
    targets, state = learnt_from(rule, given([1.0, -1.0], [7.0, 7.0]), state)
    assert targets.adv_BT[:, 0].tolist() == pytest.approx([4 - math.sqrt(8), 4 + math.sqrt(8)])
    spread = math.sqrt((16 + 0 + 4 + 4) / 3)  # of 1, 5, 7, 7 about 5
    assert targets.return_BT[:, 0].tolist() == pytest.approx([2 / spread] * 2)
    assert state["values"]["a"]["mean"] == 5.0


def test_returns_that_differ_by_less_than_1_are_enlarged():
    # returns 0, 0.5: mean 1/4, deviation sqrt(1/8); then 1 and -1 are 1/4 + sqrt(1/8) and 1/4 - sqrt(1/8)
    rule, unit = ppo(**PLAIN, value_norm=True), math.sqrt(1 / 8)
    targets, state = learnt_from(rule, given([0.0, 0.0], [0.0, 0.5]))
    assert targets.return_BT[:, 0].tolist() == pytest.approx([-0.25 / unit, 0.25 / unit])
    targets, _ = learnt_from(rule, given([1.0, -1.0], [0.0, 0.5]), state)
    assert targets.adv_BT[:, 0].tolist() == pytest.approx([-0.25 - unit, 0.25 + unit])


def test_padding_is_no_return():
    # returns 1 | 5, 5: mean 11/3, deviation the root of (64 + 16 + 16) / 9 / 2
    rows = [[0.0, 0.0]] * 2
    turns = batch(rows, rows, rows, [1.0, 5.0]).replace(mask_BT=torch.tensor([[True, False], [True, True]]))
    targets, state = learnt_from(ppo(**PLAIN, value_norm=True), turns)
    std = math.sqrt(16 / 3)
    assert state["values"]["a"] == {"count": 3, "mean": pytest.approx(11 / 3), "squares": pytest.approx(32 / 3)}
    assert targets.return_BT.tolist() == [
        pytest.approx([-8 / 3 / std, 0.0]), pytest.approx([4 / 3 / std, 4 / 3 / std]),
    ]  # fmt: skip


def test_what_a_critic_explains_is_in_the_units_of_returns():
    # 1 and -1 are 3 + sqrt(8) and 3 - sqrt(8): of returns 7 and 1, whose variance is 9, errors 1 + (3 - sqrt(8)) and
    # 1 - (3 - sqrt(8)) are left
    past = {"values": {"a": {"count": 2, "mean": 3.0, "squares": 8.0}}}
    targets, _ = learnt_from(ppo(**PLAIN, value_norm=True), given([1.0, -1.0], [7.0, 1.0]), past)
    assert targets.metrics["explained_variance"] == pytest.approx(1 - (3 - math.sqrt(8)) ** 2 / 9)


def test_in_units_of_1_about_0_it_is_the_rule_itself():
    past = {"values": {"a": {"count": 5, "mean": 0.0, "squares": 4.0}}}
    plain, other = ppo(**PLAIN), ppo(**PLAIN, value_norm=True)
    one = given([0.3, -0.2], [1.0, 5.0])
    assert torch.equal(learnt_from(plain, one)[0].adv_BT, learnt_from(other, one, past)[0].adv_BT)


def test_returns_that_are_all_alike_are_not_divided_by_rounding():
    targets, _ = learnt_from(ppo(**PLAIN, value_norm=True), given([0.0, 0.0], [0.7, 0.7 + 1e-7]))
    assert targets.return_BT.abs().max() < 1e-6


def test_a_reward_in_other_units_is_the_same_to_the_head():
    small, large = (
        learnt_from(ppo(**PLAIN, value_norm=True), given([0.0] * 3, [factor * x for x in (1.0, 2.0, 6.0)]))[0].return_BT
        for factor in (1.0, 100.0)
    )
    assert torch.allclose(small, large)


def test_there_is_nothing_to_normalise_without_a_critic():
    with pytest.raises(ValueError, match="value_norm is of a critic's values, and critic is false"):
        ppo(critic=False, value_norm=True)


def test_the_rows_of_a_critic_of_turns_are_what_counts():
    from test_actor_critic import lesson, two_rounds

    for rule, names, values in (
        (iac(whiten=False, value_norm=True), "ab", {"a": [0.0, 0.0], "b": [0.0, 0.0]}),
        (maac(critic="c", whiten=False, value_norm=True), "abc", {"c": [0.0] * 4}),
    ):
        targets, state = rule.advantage(lesson(rule, [two_rounds()], values, names), {})
        # the team's pay is 2, then 3, and the critic says 0
        assert targets["a"].adv_BT[:2, 0].tolist() == [2.0, 3.0]
        for seen in state["values"].values():
            assert seen["mean"] == 2.5
        assert state["values"].keys() == values.keys()


def test_the_turns_themselves_are_no_targets_of_a_critic_of_turns():
    from test_actor_critic import lesson, two_rounds

    # the rows behind them are: 2 and 3, mean 2.5, deviation the root of 1/2
    rule = iac(whiten=False, value_norm=True)
    targets, _ = rule.advantage(lesson(rule, [two_rounds()], {"a": [0.0, 0.0], "b": [0.0, 0.0]}, "ab"), {})
    assert targets["a"].return_BT[:, 0].tolist() == pytest.approx([0.0, 0.0, -math.sqrt(0.5), math.sqrt(0.5)])


def test_a_head_with_nobody_to_value_keeps_what_it_has_seen():
    from test_actor_critic import P, lesson, turn

    from coevolve import Episode, Joint

    alone = turn("b", 20)
    episode = Episode(P, 0, [alone], [Joint((alone,), (4.0,))])
    rule = iac(critic={"a": "b", "b": "c"}, whiten=False, value_norm=True)  # a, whom b's head values, does not speak
    past = {"values": {name: {"count": 4, "mean": 2.0, "squares": 3.0} for name in "bc"}}
    targets, state = rule.advantage(lesson(rule, [episode], {"b": [], "c": [0.0]}, "bc"), past)
    assert state["values"]["b"] == past["values"]["b"]
    assert state["values"]["c"]["mean"] == pytest.approx(2.4)
    assert not targets["b"].return_BT.any()
    assert "explained_variance" not in targets["b"].metrics
