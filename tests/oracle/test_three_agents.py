"""Three agents that act at once: credits and baselines against the exact gradient.

Every group of two members there can be, 64 of them, with its probability. What each joint move pays is a table of eight
rows, different for every agent, in which everybody's move matters to everybody.
"""

import itertools
import math

import pytest
import torch
from compare import CLOSE, average, slope
from tabular import MOVES, EveryEngine, Table

from coevolve.algorithms import magrpo, mareinforce, marloo
from coevolve.collate import collate, rows_of
from coevolve.plays import rounds
from coevolve.rollout import Stage, rollout
from coevolve.types import Lesson, Outputs, Problem, Sampling

ROLES = ("a", "b", "c")
MEMBERS = 2
GROUPS = 2 ** (MEMBERS * len(ROLES))
JOINT = ["".join(moves) for moves in itertools.product(MOVES, repeat=3)]
PAYS = dict(
    zip(
        JOINT,
        [(4, 1, 2), (0, 3, 5), (1, 0, 0), (6, 2, 1), (2, 2, 7), (0, 5, 1), (3, 3, 0), (1, 0, 2)],
        strict=True,
    )
)


class Three:
    """Everybody is asked the same."""

    train = test = tuple(Problem(str(n)) for n in range(GROUPS))

    def prompt(self, p, role, heard):
        return "c"

    def reward(self, cases):
        return [list(map(float, PAYS["".join(turn.text for turn in case.turns)])) for case in cases]


TASK = Three()


@pytest.fixture(scope="module")
def tables():
    return {role: Table(["c"], 40 + i) for i, role in enumerate(ROLES)}


@pytest.fixture(scope="module")
def episodes(tables):
    stage = Stage({role: role for role in ROLES}, TASK, EveryEngine(tables, 1), Sampling(1), 0)
    return rollout(rounds(), list(TASK.train), stage, members=MEMBERS)


def truth(tables, role, own):
    logp = {name: table.logp_SA[0] for name, table in tables.items()}
    total = 0.0
    for joint, pays in PAYS.items():
        worth = pays[ROLES.index(role)] if own else sum(pays) / 3
        total = total + worth * sum(logp[n][MOVES.index(m)] for n, m in zip(ROLES, joint, strict=True)).exp()
    return slope(total, tables[role])


class Sample:
    """What ``average`` asks for."""

    def __init__(self, episodes):
        chance = [math.exp(sum(turn.logps[0] for turn in episode.turns)) for episode in episodes]
        self.chances_N = torch.tensor(chance, dtype=torch.float64).view(GROUPS, MEMBERS).prod(1)


def estimates(tables, episodes, rule, role):
    """Of every group, [N, 1]."""
    batch = collate(rows_of(episodes, rule.credit, TASK.reward), role)
    targets = rule.advantage(Lesson(episodes, {role: batch}), rule.start)[0][role]
    logp_BT = batch.logp_BT.double().requires_grad_()
    loss, _ = rule.objective.loss(Outputs(logp_BT), batch, targets, rule.objective.loss_aggregation(batch))
    (slope_BT,) = torch.autograd.grad(-loss, logp_BT)
    p = float(tables[role].logp_SA[0, 0].detach().exp())
    push_B = slope_BT[:, 0] * ((batch.action_BT[:, 0] == 0).double() - p)
    return GROUPS * push_B.view(GROUPS, MEMBERS).sum(1, keepdim=True)


UNBIASED = {
    "mareinforce": mareinforce(),
    "marloo": marloo(),
    "marloo, length": marloo(baseline="length"),
    "marloo, moving": marloo(baseline="moving"),
    "marloo, crossed": marloo(credit="crossed"),
    "marloo, crossed, 1 shift": marloo(credit={"name": "crossed", "shifts": 1}),
    "mareinforce, counterfactual": mareinforce(credit="counterfactual"),
    "mareinforce, difference": mareinforce(credit={"name": "difference", "default": "D"}),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased(tables, episodes, name, role):
    true_S = truth(tables, role, own=False)
    mean_S, _ = average(Sample(episodes), estimates(tables, episodes, UNBIASED[name], role))
    assert (mean_S - true_S).norm() < CLOSE * true_S.norm()


@pytest.mark.parametrize("role", ROLES)
def test_ones_own_return_and_the_mean(tables, episodes, role):
    true_S = truth(tables, role, own=True)
    mean_S, _ = average(Sample(episodes), estimates(tables, episodes, magrpo(credit="own_return"), role))
    assert torch.allclose(mean_S, true_S / 2, rtol=CLOSE)


@pytest.mark.parametrize("role", ROLES)
def test_all_pairings_vary_less(tables, episodes, role):
    def spread(rule):
        found_N = estimates(tables, episodes, rule, role)[:, 0]
        chances_N = Sample(episodes).chances_N
        return float(chances_N @ found_N.square() - (chances_N @ found_N) ** 2)

    assert spread(marloo(credit="crossed")) < spread(marloo())


def test_a_share_of_the_pay_is_another_gradient(tables, episodes):
    rule, off = mareinforce(credit={"name": "shapley", "default": "D"}), []
    for role in ROLES:
        true_S = truth(tables, role, own=False)
        mean_S, _ = average(Sample(episodes), estimates(tables, episodes, rule, role))
        off.append(float((mean_S - true_S).norm() / true_S.norm()))
    assert max(off) > 0.05
