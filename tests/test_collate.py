"""The episode drawn in coevolve.types, token by token."""

import math

import pytest
import torch
from lesson_cases import collated, targets_of

from coevolve.algorithms import magrpo
from coevolve.credit import by_episode, team_return, team_sum
from coevolve.types import Episode, Joint, Problem, Targets, Turn

P = Problem("film")


def turn(role, prompt, action, finished, reward, policy="ann"):
    logps, peers = [-1.0] * len(action), ("film", role, 0)
    return Turn(role, policy, P, 0, 0, prompt, action, logps, "", finished, reward=reward, peers=peers)


def drawn():
    pioneer = turn("pioneer", [5, 6], [7, 0], True, 1.0)
    observer = turn("observer", [9, 5, 6, 7, 5, 6], [8, 3, 4], False, 2.0)
    return Episode(P, 0, [pioneer, observer])


def test_the_worked_example():
    batch = collated([drawn()], team_sum(), "ann")
    assert batch.ids_BS.tolist() == [[5, 6, 7, 0, 0, 0, 0, 0, 0], [9, 5, 6, 7, 5, 6, 8, 3, 4]]
    assert batch.start_B.tolist() == [2, 6]
    assert batch.length_B.tolist() == [4, 9]
    assert batch.action_BT.tolist() == [[7, 0, 0], [8, 3, 4]]
    assert batch.mask_BT.tolist() == [[True, True, False], [True, True, True]]
    assert batch.logp_BT.tolist() == [[-1.0, -1.0, 0.0], [-1.0, -1.0, -1.0]]
    assert batch.credit_B.tolist() == [3.0, 3.0]
    assert batch.reward_B.tolist() == [1.0, 2.0]
    assert batch.peers_B.tolist() == [0, 1]
    assert batch.weight_B.tolist() == [2.0, 2.0]  # two turns of this policy an episode


def test_only_the_turns_of_the_policy():
    episode = drawn()
    episode.turns[1].policy = "bob"
    batch = collated([episode], team_sum(), "bob")
    assert batch.start_B.tolist() == [6]
    assert batch.credit_B.tolist() == [3.0]  # credit still sees the whole team


def test_select_cuts_to_what_the_rows_need():
    batch = collated([drawn()], team_sum(), "ann").replace(kl_BT=torch.ones(2, 3))
    row = batch.select(torch.tensor([0]))
    assert row.ids_BS.tolist() == [[5, 6, 7, 0]]
    assert row.action_BT.tolist() == [[7, 0]]
    assert row.kl_BT.tolist() == [[1.0, 1.0]]
    assert row.credit_B.tolist() == [3.0]
    assert row.value_BT is None
    assert Targets(torch.ones(2, 3)).select(torch.tensor([0]), 2).adv_BT.shape == (1, 2)


def two_turns_with_feedback():
    """One agent, two turns: prompt 5 6, says 7 0; hears "8", says 9. The history is spliced, never encoded again."""
    first = turn("pioneer", [5, 6], [7, 0], True, 1.0)
    second = turn("pioneer", [5, 6, 7, 0, 8], [9], False, 2.0)
    second.round, second.peers = 1, ("film", "pioneer", 1)
    return Episode(P, 0, [first, second], [Joint((first,), (1.0,)), Joint((second,), (2.0,), after=0)])


def test_a_two_turn_episode_token_by_token():
    batch = collated([two_turns_with_feedback()], team_return(0.5), "ann")
    # S        0  1  2  3  4  5
    # row 0    5  6 |7  0| .  .     the end of sequence it sampled is trained, the padding after it is not
    # row 1    5  6  7  0  8 |9|    what it said before is prompt now: trained once, in its own row
    assert batch.ids_BS.tolist() == [[5, 6, 7, 0, 0, 0], [5, 6, 7, 0, 8, 9]]
    assert batch.start_B.tolist() == [2, 5]
    assert batch.action_BT.tolist() == [[7, 0], [9, 0]]
    assert batch.mask_BT.tolist() == [[True, True], [True, False]]
    assert batch.credit_B.tolist() == [2.0, 2.0]  # 1 + 0.5 * 2, and 2
    assert batch.peers_B.tolist() == [0, 1]


def test_masks_count_tokens_and_never_look_at_ids():
    """A prompt with the pad id, an end of sequence inside the action, one-token responses, unequal lengths; pad = 0."""
    turns = [
        turn("pioneer", [0, 5, 0], [0, 7, 0], True, 0.0),  # pad ids in the prompt, the end token twice in the action
        turn("pioneer", [5], [0], True, 0.0),  # nothing but the end of sequence
        turn("pioneer", [5, 5], [7], False, 0.0),  # one token, cut
    ]
    batch = collated([Episode(P, m, [t]) for m, t in enumerate(turns)], team_sum(), "ann")
    assert batch.mask_BT.tolist() == [[True, True, True], [True, False, False], [True, False, False]]
    assert batch.ids_BS.tolist() == [[0, 5, 0, 0, 7, 0], [5, 0, 0, 0, 0, 0], [5, 5, 7, 0, 0, 0]]
    assert batch.length_B.tolist() == [6, 2, 3]


def test_columns_of_a_step_of_two_episodes():
    several = turn("observer", [5], [7], True, 4.0)  # a turn of two joints, numbered after the first episode's two
    unscored = turn("pioneer", [5], [7], True, None)
    other = turn("observer", [5], [7], True, 1.0, policy="bob")
    several.weight, several.temperature, unscored.version = 0.5, 0.75, 3
    joints = [Joint((several,), (1.0,)), Joint((several, other), (1.0, 1.0))]
    episodes = [two_turns_with_feedback(), Episode(P, 1, [several, unscored, other], joints)]
    batch = collated(episodes, team_return(), "ann")
    assert batch.joint_B.tolist() == [0, 1, 2, -1]
    assert batch.episode_B.tolist() == [0, 0, 1, 1]
    assert [batch.roles[number] for number in batch.role_B.tolist()] == ["pioneer", "pioneer", "observer", "pioneer"]
    assert batch.weight_B.tolist() == [2.0, 2.0, 1.0, 2.0]  # four turns in two episodes, and one counts half
    assert batch.temperature_B.tolist() == [1.0, 1.0, 0.75, 1.0]
    assert batch.version_B.tolist() == [0, 0, 0, 3]
    assert batch.reward_B.isnan().tolist() == [False, False, False, True]
    bob = collated(episodes, team_return(), "bob")
    assert (bob.joint_B.tolist(), bob.episode_B.tolist(), bob.weight_B.tolist()) == ([3], [1], [0.5])


def test_members_of_a_group_are_peers():
    episodes = [Episode(P, m, [turn("pioneer", [5], [7], False, 0.0)]) for m in range(2)]
    assert collated(episodes, team_sum(), "ann").peers_B.tolist() == [0, 0]


def test_a_batch_knows_what_its_credits_were_summed_from():
    episode = two_turns_with_feedback()
    episode.joints[1] = Joint(episode.joints[1].turns, (-2.0,), after=0)
    assert collated([episode], team_return(), "ann").paid_B.tolist() == [3.0, 3.0]  # |1| + |-2|, for both turns


@pytest.mark.parametrize("share", [math.nan, math.inf, -math.inf, 1e39])
def test_a_credit_that_is_no_number_is_named(share):
    with pytest.raises(ValueError, match=r"problem 'film': policy 'ann' is given \S+; want a finite number"):
        collated([drawn()], by_episode(lambda episode: [1.0, share]), "ann")


def test_a_credit_for_another_number_of_turns_is_named():
    with pytest.raises(ValueError, match="problem 'film': 1 numbers for 2 turns"):
        collated([drawn()], by_episode(lambda episode: [1.0]), "ann")


def test_returns_of_nothing_but_rounding_are_no_signal():
    """Three turns paid 0.1, 0.2 and -0.3 in three orders: every return of the first turn is 0, up to 5.6e-17."""
    episodes = []
    for member, pays in enumerate([(0.1, 0.2, -0.3), (0.2, -0.3, 0.1), (-0.3, 0.1, 0.2)]):
        turns = [turn("a", [5], [7], False, pay) for pay in pays]
        for number, one in enumerate(turns):
            one.peers = (number,)
        joints = [Joint((t,), (pay,), i - 1 if i else None) for i, (t, pay) in enumerate(zip(turns, pays, strict=True))]
        episodes.append(Episode(P, member, turns, joints))
    rule = magrpo(std="group")
    batch = collated(episodes, rule.credit, "ann")
    first_B = batch.peers_B == batch.peers_B[0]
    assert len(set(batch.credit_B[first_B].tolist())) > 1
    targets = targets_of(rule, batch)
    assert float(targets.adv_BT[first_B].abs().max()) < 1e-15
    assert float(targets.adv_BT[~first_B].abs().max()) > 1.0  # the others differ, and are divided
    assert targets.metrics["groups_flat"] == pytest.approx(1 / 3)
