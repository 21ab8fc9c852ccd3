"""Who is held responsible for what."""

import pytest

from coevolve.maths.credit import own, team_mean, team_sum, to_go
from coevolve.types import Episode, Problem, Turn

P = Problem("p")


def episode(*rewards):
    return Episode(P, 0, [Turn("r", "a", P, 0, 0, [1], [2], [0.0], "", True, reward=r) for r in rewards])


def test_literals():
    assert team_sum(episode(0.25, 0.75)) == [1, 1]
    assert team_mean(episode(0.25, 0.75)) == [0.5, 0.5]
    assert own(episode(0.25, 0.75)) == [0.25, 0.75]
    assert to_go(0.5)(episode(1, 2, 4)) == [3, 4, 4]


def test_the_observer_of_a_chain_is_paid_its_own_reward_by_to_go():
    assert to_go()(episode(0.25, 0.75)) == [1.0, 0.75]


@pytest.mark.parametrize("credit", [own, team_sum, team_mean, to_go(0.9)])
def test_one_agent_alone_is_paid_its_reward(credit):
    assert credit(episode(0.5)) == [0.5]


def test_a_turn_nobody_scored_was_paid_nothing():
    assert team_sum(episode(None, 2.0)) == [2.0, 2.0]
