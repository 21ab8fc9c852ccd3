"""Baselines and scales as settings: a mean over past steps, one scale for a team, groups of a role."""

import dataclasses
import math

import pytest
import torch
from lesson_cases import learnt_from, lesson, paid, spoke, targets_of
from policy_cases import make_batch

from coevolve.algorithms import hindsight, magrpo, mareinforce, marloo
from coevolve.types import Lesson


def batch(credit, peers=None, roles=None, tokens=None):
    """Turns with these returns, by default of one group, role and token."""
    rows = len(credit)
    tokens = tokens or [1] * rows
    return make_batch(rows, 0).replace(
        mask_BT=torch.arange(max(tokens)) < torch.tensor(tokens)[:, None],
        credit_B=torch.tensor(credit),
        peers_B=torch.tensor(peers or [0] * rows),
        role_B=torch.tensor(roles or [0] * rows),
        episode_B=torch.arange(rows),
        roles=("a", "b"),
        paid_B=None,
    )


def advantages(algorithm, given, state=None):
    return targets_of(algorithm, given, state).adv_BT[:, 0].tolist()


def test_a_moving_baseline_by_hand():
    rule = marloo(baseline="moving", decay=0.5)
    targets, state = learnt_from(rule, batch([1.0, 3.0, 10.0], roles=[0, 0, 1]))
    assert targets.adv_BT[:, 0].tolist() == [1.0, 3.0, 10.0]  # nothing is known yet
    assert state == {"moving": {"a": {"a": [1.0, 0.5], "b": [5.0, 0.5]}}}  # 0.5 * 2 and 0.5 * 10
    # then a is compared with 1 / 0.5 = 2 and b with 10; a's next mean is 6: 0.5 * 1 + 0.5 * 6 of 0.75
    targets, state = learnt_from(rule, batch([6.0, 7.0], roles=[0, 1]), state)
    assert targets.adv_BT[:, 0].tolist() == [4.0, -3.0]
    assert state["moving"]["a"] == {"a": [3.5, 0.75], "b": [6.0, 0.75]}


def test_a_moving_baseline_keeps_19_of_20_parts_unless_told_otherwise():
    _, state = learnt_from(marloo(baseline="moving"), batch([1.0, 3.0]))
    assert state["moving"]["a"]["a"] == pytest.approx([0.1, 0.05])  # a twentieth of 2, and of 1


def test_a_moving_baseline_is_each_policys_own():
    rule = marloo(baseline="moving")
    _, state = rule.advantage(Lesson([], {"x": batch([1.0]), "y": batch([5.0])}), {})
    targets, _ = rule.advantage(Lesson([], {"x": batch([1.0]), "y": batch([5.0])}), state)
    assert all(aims.adv_BT[0, 0].item() == pytest.approx(0.0, abs=1e-6) for aims in targets.values())


def test_the_first_step_of_a_moving_baseline_is_reinforce():
    given = batch([1.0, 3.0, -2.0])
    assert advantages(marloo(baseline="moving"), given) == advantages(mareinforce(), given)


def test_the_lengths_of_the_others():
    # 2 tokens of return 3, 1 of 0: 6 - 6 / 3; 3 - (6 + 0) / 2; 0 - (6 + 6) / 3
    assert advantages(marloo(baseline="length"), batch([6.0, 3.0, 0.0], tokens=[1, 2, 1])) == [4.0, 0.0, -4.0]
    given = batch([6.0, 3.0, 0.0], tokens=[3, 3, 3])
    assert advantages(marloo(baseline="length"), given) == advantages(marloo(), given)


def test_shrunk_looks_at_other_problems_of_the_role_only():
    credit, peers = [0.0, 2.0, 4.0, 6.0, 1.0, 3.0], [0, 0, 1, 1, 2, 2]
    found = advantages(marloo(baseline="shrunk"), batch(credit, peers))
    assert found == pytest.approx([-14 / 5.5, 4 / 5.5, 2.5, 4.5, -2.0, 14 / 9], rel=1e-6)
    other_role = batch(credit, peers, roles=[0, 0, 0, 0, 1, 1])
    assert advantages(marloo(baseline="shrunk"), other_role) == advantages(marloo(), other_role)
    one_problem = batch(credit, peers).replace(episode_B=torch.tensor([0, 1, 0, 1, 0, 1]))
    assert advantages(marloo(baseline="shrunk"), one_problem) == advantages(marloo(), one_problem)


def test_groups_of_a_role():
    # roles a: 0, 4; b: 1, 1, 7; problems play no part
    given = batch([0.0, 1.0, 4.0, 1.0, 7.0], peers=[0, 1, 2, 3, 4], roles=[0, 1, 0, 1, 1])
    assert advantages(magrpo(group="role"), given) == [-2.0, -2.0, 2.0, -2.0, 4.0]
    # and by their standard deviation: 2, and the root of (4 + 4 + 16) / 3
    std = math.sqrt(8)
    want = [-1.0, -2 / std, 1.0, -2 / std, 4 / std]
    assert advantages(magrpo(group="role", std="group"), given) == pytest.approx(want)


def test_a_scale_of_the_agent_is_of_its_differences_within_roles():
    # differences -2, -2, 2, -2, 4: the root of (4 + 4 + 4 + 4 + 16) / 5
    given = batch([0.0, 1.0, 4.0, 1.0, 7.0], peers=[0, 1, 2, 3, 4], roles=[0, 1, 0, 1, 1])
    want = [n / math.sqrt(6.4) for n in (-2, -2, 2, -2, 4)]
    assert advantages(magrpo(group="role", std="agent"), given) == pytest.approx(want)


def test_a_paid_kl_comes_off_before_a_role_is_compared():
    # log-ratios 0.5, -0.5 of a role and 1, 0 of the other, weight 2: 0, 2 and 2, 0 are left
    given = batch([1.0, 1.0, 4.0, 0.0], peers=[0, 1, 2, 3], roles=[0, 0, 1, 1]).replace(
        logp_BT=torch.tensor([[-0.5], [-1.0], [-1.0], [-1.0]]),
        logp_ref_BT=torch.tensor([[-1.0], [-0.5], [-2.0], [-1.0]]),
    )
    rule = magrpo(group="role", beta=2.0, kl="reward", estimator="k1")
    assert advantages(rule, given) == [-1.0, 1.0, 1.0, -1.0]


def test_a_role_that_was_paid_alike_is_dropped_and_no_group_of_problems():
    # b's differences -1 and 1 are of a batch of two turns, and here they are two of four
    given = batch([1.0, 1.0, 0.0, 2.0], peers=[0, 1, 2, 3], roles=[0, 0, 1, 1])
    assert advantages(magrpo(group="role", drop_flat=True), given) == [0.0, 0.0, -2.0, 2.0]


def test_a_mean_that_a_turn_is_in_may_be_of_one_episode():
    given = batch([1.0, 3.0], peers=[0, 1]).replace(episode_B=torch.tensor([0, 0]))
    assert advantages(magrpo(group="role"), given) == [-1.0, 1.0]
    assert advantages(magrpo(group="role", baseline="max"), given) == [-2.0, 0.0]


def test_of_a_role_that_is_compared_with_nothing_nobody_is_alone():
    assert targets_of(mareinforce(group="role"), batch([1.0, 3.0])).metrics == {}


def test_of_roles_who_is_alone_and_who_is_paid_alike_is_counted():
    # a is paid alike, b differs, c speaks once; problems play no part
    given = batch([1.0, 1.0, 0.0, 2.0, 5.0], roles=[0, 0, 1, 1, 2]).replace(roles=("a", "b", "c"))
    metrics = targets_of(magrpo(group="role"), given).metrics
    assert metrics == {"groups_of_one": pytest.approx(0.2), "groups_flat": pytest.approx(0.4)}


def test_where_all_are_one_problem_the_role_is_the_group():
    given = batch([1.0, 5.0, 0.0])
    assert advantages(marloo(group="role"), given) == advantages(marloo(), given)


@pytest.mark.parametrize("baseline", ["loo", "length"])
def test_of_a_role_only_other_episodes_are_compared_with(baseline):
    # two episodes of two turns: 1 - (3 + 5) / 2, 2 - 4, 3 - (1 + 2) / 2, 5 - 1.5
    given = batch([1.0, 2.0, 3.0, 5.0], peers=[0, 1, 0, 1]).replace(episode_B=torch.tensor([0, 0, 1, 1]))
    assert advantages(marloo(group="role", baseline=baseline), given) == [-3.0, -2.0, 1.5, 3.5]
    with pytest.raises(ValueError, match="all turns of a policy at this step are of one; raise batch_size"):
        advantages(marloo(group="role", baseline=baseline), given.replace(episode_B=torch.zeros(4, dtype=torch.long)))


def test_of_a_role_who_speaks_in_one_episode_only_is_counted_as_alone():
    given = batch([1.0, 2.0, 3.0, 5.0], peers=[0, 0, 1, 1])
    given = given.replace(role_B=torch.tensor([0, 0, 0, 1]), roles=("x", "y"), episode_B=torch.tensor([0, 0, 1, 1]))
    targets, _ = marloo(group="role").advantage(Lesson([], {"ann": given}), {})
    assert targets["ann"].metrics["groups_of_one"] == 0.25


def test_one_scale_for_the_team():
    # differences -1, 1 and -3, 3 of two policies: the root of (1 + 1 + 9 + 9) / 4
    lesson = Lesson([], {"x": batch([0.0, 2.0]), "y": batch([0.0, 6.0])})
    targets, _ = magrpo(std="team").advantage(lesson, {})
    assert targets["x"].adv_BT[:, 0].tolist() == pytest.approx([-1 / math.sqrt(5), 1 / math.sqrt(5)])
    assert targets["y"].adv_BT[:, 0].tolist() == pytest.approx([-3 / math.sqrt(5), 3 / math.sqrt(5)])
    # a policy that is paid alike counts too: 0, 0 and -3, 3 by the root of (9 + 9) / 4
    flat = Lesson([], {"x": batch([5.0, 5.0]), "y": batch([0.0, 6.0])})
    found = magrpo(std="team").advantage(flat, {})[0]["y"].adv_BT[:, 0].tolist()
    assert found == pytest.approx([-math.sqrt(2), math.sqrt(2)])
    # by the agent each would be -1, 1
    targets, _ = magrpo(std="agent").advantage(lesson, {})
    assert targets["x"].adv_BT.tolist() == targets["y"].adv_BT.tolist() == [[-1.0], [1.0]]


def test_the_teams_scale_is_of_turns_whatever_their_length():
    # differences -1, 1 and -3, 3 again, of turns of 1 and 3 tokens; by tokens it would be the root of 22 / 6 - 1 / 9
    lesson = Lesson([], {"x": batch([0.0, 2.0], tokens=[1, 3]), "y": batch([0.0, 6.0])})
    targets, _ = magrpo(std="team").advantage(lesson, {})
    unit = 1 / math.sqrt(5)
    assert targets["x"].adv_BT.tolist() == [pytest.approx([-unit, 0.0, 0.0]), pytest.approx([unit] * 3)]
    assert targets["y"].adv_BT[:, 0].tolist() == pytest.approx([-3 * unit, 3 * unit])


def test_the_teams_scale_is_a_deviation_from_the_mean():
    # less the largest: -2, 0 and -6, 0, mean -2: the root of (0 + 4 + 16 + 4) / 4
    lesson = Lesson([], {"x": batch([0.0, 2.0]), "y": batch([0.0, 6.0])})
    targets, _ = magrpo(baseline="max", std="team").advantage(lesson, {})
    assert targets["x"].adv_BT[:, 0].tolist() == pytest.approx([-2 / math.sqrt(6), 0.0])
    assert targets["y"].adv_BT[:, 0].tolist() == pytest.approx([-6 / math.sqrt(6), 0.0])


def test_alone_the_team_is_the_agent():
    given = batch([0.0, 2.0, 5.0, 5.0], peers=[0, 0, 1, 1])
    assert advantages(magrpo(std="team"), given) == pytest.approx(advantages(magrpo(std="agent"), given))


def test_a_team_without_differences_is_not_divided():
    rounding = batch([0.7, 0.7 + 1e-7])
    assert advantages(magrpo(std="team"), rounding) == advantages(magrpo(), rounding)
    # nor where only problems differ, and within each there is nothing but rounding
    rounding = batch([0.7, 0.7 + 1e-7, 0.2, 0.2], [0, 0, 1, 1])
    assert advantages(magrpo(std="team"), rounding) == advantages(magrpo(), rounding)
    # nor sums that are 0 but for the order of their terms, of rewards of 0.6 in all
    rounding = batch([5.551115123125783e-17, 2.7755575615628914e-17, 0.0]).replace(paid_B=torch.full((3,), 0.6))
    assert advantages(magrpo(std="team"), rounding) == advantages(magrpo(), rounding)


def test_a_team_that_differs_between_problems_only_is_divided_where_the_role_is_the_group():
    assert advantages(magrpo(group="role", std="team"), batch([0.0, 4.0], peers=[0, 1])) == [-1.0, 1.0]


def test_every_turn_alone_is_refused_by_whatever_compares():
    for name in ("length", "shrunk"):
        with pytest.raises(ValueError, match="every turn is alone in its group"):
            advantages(marloo(baseline=name), batch([1.0, 2.0], [0, 1]))
    assert advantages(marloo(baseline="moving"), batch([1.0, 2.0], [0, 1])) == [1.0, 2.0]


@pytest.mark.parametrize(
    "rule",
    [
        *(magrpo(baseline=name) for name in ("mean", "loo", "max", "length", "shrunk")),
        *(magrpo(baseline=name, std=std) for name in ("mean", "shrunk") for std in ("group", "agent", "team")),
        *(magrpo(baseline=name, group="role") for name in ("mean", "max", "loo", "length")),
        magrpo(drop_flat=True),
        hindsight(),
    ],
)
def test_who_is_alone_by_chance_learns_nothing_and_stops_nobody(rule):
    """Four members, of which one let b speak, who has heard a."""
    episodes = [paid([float(m)], spoke("a", "ann", "A", member=m)) for m in range(3)]
    first = spoke("a", "ann", "A", member=3)
    episodes.append(paid([4.0, 5.0], first, spoke("b", "bob", "B", heard=(first,), member=3)))
    targets, _ = rule.advantage(lesson(dataclasses.replace(rule, rows=None), episodes), rule.start)
    assert targets["bob"].metrics["groups_of_one"] == 1.0  # of which there is a caution
    assert not targets["bob"].adv_BT.any()
    assert targets["ann"].adv_BT.any()


def test_who_spoke_in_every_episode_and_has_no_peer_is_refused():
    """It is so at every step: a pioneer of one member that several observers hear."""
    episodes = []
    for m in range(2):
        first = spoke("a", "ann", "A", problem=f"p{m}")
        heard = [spoke("b", "bob", "B", heard=(first,), problem=f"p{m}") for _ in range(2)]
        episodes.append(paid([1.0, 2.0, 3.0 + m], first, *heard))
    with pytest.raises(ValueError, match="every turn is alone in its group"):
        magrpo().advantage(lesson(magrpo(), episodes), ())
