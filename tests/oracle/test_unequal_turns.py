"""Baselines by enumeration in a play whose members have different numbers of turns, as `tools` has."""

import itertools

import pytest
import torch

from coevolve import marloo
from coevolve.collate import collate, rows_of
from coevolve.types import Episode, Joint, Lesson, Problem, Turn

CALLS, RIGHT = torch.tensor(0.25), torch.tensor(0.55)
"""The chance of a call, and after it of a right answer, which is paid 1; an answer without a call is paid .3."""

COURSES = (
    ((0,), 1 - CALLS, 0.3),
    ((1, 0), CALLS * (1 - RIGHT), 0.0),
    ((1, 1), CALLS * RIGHT, 1.0),
)


@pytest.mark.parametrize("members", [2, 3, 4])
@pytest.mark.parametrize(
    ("settings", "unbiased"),
    [({}, False), ({"baseline": "moving"}, True), ({"baseline": "none"}, True), ({"group": "role"}, True)],
)
def test_a_turn_that_no_other_member_has_teaches_nothing_beside_peers_only(settings, unbiased, members):
    """The answer after a call then has the share of its gradient in which another member calls, too."""
    rule, problem, found_2 = marloo(**settings), Problem("p"), torch.zeros(2)
    for group in itertools.product(COURSES, repeat=members):
        episodes = [episode(problem, member, actions, paid) for member, (actions, _, paid) in enumerate(group)]
        batch = collate(rows_of(episodes, rule.credit, None), "ann")
        targets, _ = rule.advantage(Lesson(episodes, {"ann": batch}), {})
        weight_BT = rule.objective.loss_aggregation(batch)
        chance = torch.stack([chance for _, chance, _ in group]).prod()
        turns = [turn for one in episodes for turn in one.turns]
        for row, turn in enumerate(turns):
            score = turn.action_ids[0] - (CALLS, RIGHT)[turn.round]
            found_2[turn.round] += chance * weight_BT[row, 0] * targets["ann"].adv_BT[row, 0] * score
    slope_2 = torch.stack([CALLS * (1 - CALLS) * (RIGHT - 0.3), CALLS * RIGHT * (1 - RIGHT)])
    share = 1.0 if unbiased else float(1 - (1 - CALLS) ** (members - 1))
    assert found_2.tolist() == pytest.approx([float(slope_2[0]), share * float(slope_2[1])], rel=1e-4)


def episode(problem, member, actions, paid):
    turns = [
        Turn("s", "ann", problem, member, n, [10 + n], [action], [0.0], "", True, peers=("p", "s", n), asked=n)
        for n, action in enumerate(actions)
    ]
    turns[-1].reward = paid
    return Episode(problem, member, turns, [Joint((turns[-1],), (paid,))])
