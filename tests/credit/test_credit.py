"""Who is held responsible for what."""

import pytest
from lesson_cases import asked

from coevolve.credit import first_joint, own_return, own_reward, team_mean, team_return, team_sum, to_go
from coevolve.measure import outcome
from coevolve.types import Episode, Joint, Problem, Turn

P = Problem("p")


def episode(*rewards):
    return Episode(P, 0, [Turn("r", "a", P, 0, 0, [1], [2], [0.0], "", True, reward=r) for r in rewards])


def test_literals():
    assert asked(team_sum(), episode(0.25, 0.75)) == [1, 1]
    assert asked(team_mean(), episode(0.25, 0.75)) == [0.5, 0.5]
    assert asked(own_reward(), episode(0.25, 0.75)) == [0.25, 0.75]
    assert asked(to_go(0.5), episode(1, 2, 4)) == [3, 4, 4]
    assert asked(team_sum(), episode(-1, 3)) == [2, 2]
    assert asked(team_mean(), episode(-1, 3)) == [1, 1]
    assert asked(to_go(0.5), episode(-1, 3)) == [0.5, 3]


def test_the_observer_of_a_chain_is_paid_its_own_reward_by_to_go():
    assert asked(to_go(), episode(0.25, 0.75)) == [1.0, 0.75]


@pytest.mark.parametrize("credit", [own_reward(), team_sum(), team_mean(), to_go(0.9)])
def test_one_agent_alone_is_paid_its_reward(credit):
    assert asked(credit, episode(0.5)) == [0.5]


@pytest.mark.parametrize(
    ("credit", "want"), [(team_sum(), [7.0] * 3), (team_mean(), [7 / 3] * 3), (to_go(), [7.0, 6.0, 4.0])]
)
def test_rewards_of_alternatives_do_not_add_up(credit, want):
    turns = [spoke("a"), spoke("b"), spoke("b")]
    beside = Episode(P, 0, turns, [Joint((turns[0], one), (1.0, 1.0)) for one in turns[1:]])
    with pytest.raises(
        ValueError, match="role 'a' has several turns in one joint response, or in joint responses that stand"
    ):
        asked(credit, beside)
    # nor do those of a turn that is part of two joints, one behind the other, whose reward is their mean
    again = Episode(P, 0, turns[:2], [Joint((turns[0],), (1.0,)), Joint((turns[0], turns[1]), (3.0, 1.0), 0)])
    with pytest.raises(ValueError, match=r"role 'a' has several turns .*, or a turn in several of them"):
        asked(credit, again)
    # one after the other they do, and so do agents that are scored each by itself
    behind = Episode(
        P, 0, turns, [Joint((turns[1],), (1.0,)), Joint((turns[2],), (1.0,), 0), Joint((turns[0],), (1.0,))]
    )
    for turn, reward in zip(turns, (1.0, 2.0, 4.0), strict=True):
        turn.reward = reward
    assert asked(credit, behind) == want  # what the turns say themselves


def test_a_turn_that_was_scored_0_counts_in_the_mean():
    assert asked(team_mean(), episode(0.0, 1.0, None)) == [0.5] * 3
    assert asked(team_mean(), episode(None, None)) == [0.0] * 2


def test_a_turn_nobody_scored_was_paid_nothing():
    assert asked(team_sum(), episode(None, 2.0)) == [2.0, 2.0]


def spoke(role):
    return Turn(role, role, P, 0, 0, [1], [2], [0.0], "", True)


def test_a_trees_returns_come_back_to_its_root():
    # A root paying (1, 0); the first joint continues with (2, 4), the second with (6, 8). gamma 0.5:
    # 1 + 0.5 * (2 + 4) / 2 = 2.5 and 0 + 0.5 * (6 + 8) / 2 = 3.5
    turns = [spoke("a") for _ in range(6)]
    joints = [
        Joint((t,), (pay,), after)
        for t, pay, after in zip(turns, (1.0, 0.0, 2.0, 4.0, 6.0, 8.0), (None, None, 0, 0, 1, 1), strict=True)
    ]
    assert asked(team_return(0.5), Episode(P, 0, turns, joints)) == [2.5, 3.5, 2, 4, 6, 8]


def test_rounds_are_trees_of_one_branch_and_the_team_is_paid_its_mean():
    # rounds pay (1, 3), (2, 2), (4, 0): team means 2, 2, 2; gamma 0.5: 2 + 0.5 * (2 + 0.5 * 2) = 3.5, 3, 2
    turns = [spoke(role) for _ in range(3) for role in "ab"]
    pays = [(1.0, 3.0), (2.0, 2.0), (4.0, 0.0)]
    joints = [Joint(tuple(turns[2 * i : 2 * i + 2]), pay, i - 1 if i else None) for i, pay in enumerate(pays)]
    episode = Episode(P, 0, turns, joints)
    assert asked(team_return(0.5), episode) == [3.5, 3.5, 3.0, 3.0, 2.0, 2.0]
    # each its own: a gets 1 + 0.5 * (2 + 0.5 * 4) = 3, 2 + 2 = 4, 4; b gets 3 + 0.5 * (2 + 0) = 4, 2, 0
    assert asked(own_return(0.5), episode) == [3.0, 4.0, 4.0, 2.0, 4.0, 0.0]


def test_an_agent_is_paid_nothing_by_a_joint_it_took_no_part_in():
    # a and b are paid 1 and 2, then b alone 4, then a alone 8; gamma 0.5. a: 1 + 0.5 * (0 + 0.5 * 8), b: 2 + 0.5 * 4
    turns = [spoke(role) for role in "abba"]
    joints = [Joint((turns[0], turns[1]), (1.0, 2.0)), Joint((turns[2],), (4.0,), 0), Joint((turns[3],), (8.0,), 1)]
    assert asked(own_return(0.5), Episode(P, 0, turns, joints)) == [3.0, 4.0, 4.0, 8.0]


def test_a_response_that_met_several_partners_is_paid_their_mean():
    # a0 with b0, b1: 1, 2; a1 with b0, b1: 5, 9. a0 gets 1.5, a1 7; b0 gets 3, b1 5.5
    a0, a1, b0, b1 = spoke("a"), spoke("a"), spoke("b"), spoke("b")
    pays = {(0, 0): 1.0, (0, 1): 2.0, (1, 0): 5.0, (1, 1): 9.0}
    joints = [Joint(((a0, a1)[i], (b0, b1)[j]), (pay, pay)) for (i, j), pay in pays.items()]
    assert asked(team_return(), Episode(P, 0, [a0, a1, b0, b1], joints)) == [1.5, 7.0, 3.0, 5.5]


def test_an_unscored_turn_answers_for_what_is_scored_next():
    # a and b answer (unscored), revise (scored 3), say a last word nobody scores
    turns = [spoke(role) for role in "ababa"]
    joints = [Joint((turns[2], turns[3]), (3.0, 3.0))]
    assert asked(team_return(), Episode(P, 0, turns, joints)) == [3.0, 3.0, 3.0, 3.0, 0.0]


def test_an_unscored_turn_answers_for_the_first_joint_of_whoever_heard_it():
    # a is heard by b and b by c, whose joint (began before a spoke) pays 5; d, paid 9, heard a too, but later. x, paid
    # 7, is scored first after u and a, and heard nobody: that is for u, whom nobody heard, and not for a and b.
    w, _, a, b, x, c, d, _ = turns = [spoke(role) for role in "wuabxcde"]
    b.heard, c.heard, d.heard = (a, "said the task"), (b,), (a,)
    joints = [Joint((x,), (7.0,)), Joint((w, c), (5.0, 5.0)), Joint((d,), (9.0,))]
    assert asked(team_return(), Episode(P, 0, turns, joints)) == [5.0, 7.0, 5.0, 5.0, 7.0, 5.0, 9.0, 0.0]


def test_an_unscored_turn_has_its_own_roles_reward_of_the_joint_it_led_to():
    """a and b call a tool and answer, and are paid 3 and 5 together; then a is paid 9 alone. c is never paid."""
    a_calls, a, b_calls, b, _, again = turns = [spoke(role) for role in "aabbca"]
    a.heard, b_calls.heard, b.heard, again.heard = (a_calls, "heads"), (a,), (b_calls, "tails"), (a,)
    a.reward, b.reward, again.reward = 3.0, 5.0, 9.0
    joints = [Joint((a, b), (3.0, 5.0)), Joint((again,), (9.0,), 0)]
    assert asked(own_reward(), Episode(P, 0, turns, joints)) == [3.0, 3.0, 5.0, 5.0, 0.0, 9.0]
    assert asked(own_return(), Episode(P, 0, turns, joints))[2:4] == [5.0, 5.0]  # b has no later reward


def test_a_joint_does_not_answer_for_what_it_was_chosen_for():
    turns = [spoke("a") for _ in range(3)]
    joints = [Joint((turns[0],), (1.0,)), Joint((turns[1],), (3.0,)), Joint((turns[2],), (9.0,), 1, answered=False)]
    assert asked(team_return(), Episode(P, 0, turns, joints)) == [1.0, 3.0, 9.0]


def test_a_role_that_moved_more_often_is_not_paid_more_often():
    """A game of three moves against two, each paid the whole game: +1 and -1."""
    moves = [Turn(r, r, P, 0, i, [1], [2], [0.0], "", True, reward=1.0 if r == "a" else -1.0) for i, r in
             enumerate("ababa")]  # fmt: skip
    game = Episode(P, 0, moves, [Joint(tuple(moves), tuple(move.reward for move in moves))])
    assert game.joints[0].by_role() == {"a": 1.0, "b": -1.0}
    assert asked(own_return(), game) == [1.0, -1.0, 1.0, -1.0, 1.0]
    assert asked(team_return(), game) == asked(first_joint(), game) == [0.0] * 5
    assert outcome(game) == 0.0


def test_turns_that_nobody_scored_do_not_thin_the_mean():
    asking, answer = spoke("a"), spoke("a")
    asking.reward, answer.reward = None, 1.0
    assert asked(team_mean(), Episode(P, 0, [asking, asking, answer], [Joint((answer,), (1.0,))])) == [1.0] * 3
