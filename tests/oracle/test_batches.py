"""Baselines that look across problems, by whole batches: every batch there can be, each with its probability.

One agent, one move, three problems that pay differently, two members each: 64 batches.
"""

import itertools
import math

import pytest
import torch
from lesson_cases import collated

from coevolve.algorithms import magrpo, marloo
from coevolve.types import Episode, Joint, Lesson, Outputs, Problem, Turn

PAYS = ((0.0, 1.0), (3.0, 3.5), (1.0, -2.0))
"""Problem -> what its two moves pay."""

LOGIT = 0.4
RULES = {
    "shrunk": marloo(baseline="shrunk"),
    "length": marloo(baseline="length"),
    "loo of the role": marloo(group="role"),
    "loo": marloo(),
    "mean of the role": magrpo(group="role"),
}


def episode(problem, member, move, logp):
    turn = Turn("a", "a", Problem(str(problem)), member, 0, [5], [move], [logp], "", False)
    turn.peers = (problem,)
    return Episode(turn.problem, member, [turn], [Joint((turn,), (PAYS[problem][move],))])


def mean_gradient(rule):
    """By the logit of move 0, the mean over the problems, and its variance."""
    logit = torch.tensor(LOGIT, dtype=torch.float64)
    logps = [float(torch.nn.functional.logsigmoid(sign * logit)) for sign in (1, -1)]
    scores, first, second = (1 - math.exp(logps[0]), -math.exp(logps[0])), 0.0, 0.0
    for moves in itertools.product((0, 1), repeat=6):
        episodes = [episode(i // 2, i % 2, move, logps[move]) for i, move in enumerate(moves)]
        batch = collated(episodes, rule.credit, "a")
        targets = rule.advantage(Lesson(episodes, {"a": batch}), rule.start)[0]["a"]
        logp_BT = batch.logp_BT.double().requires_grad_()
        loss, _ = rule.objective.loss(Outputs(logp_BT), batch, targets, rule.objective.loss_aggregation(batch))
        (slope_BT,) = torch.autograd.grad(-loss, logp_BT)
        estimate = sum(slope * scores[move] for slope, move in zip(slope_BT[:, 0].tolist(), moves, strict=True))
        chance = math.exp(sum(logps[move] for move in moves))
        first, second = first + chance * estimate, second + chance * estimate**2
    return first, second - first**2


def true_gradient():
    p = 1 / (1 + math.exp(-LOGIT))
    return sum(p * (1 - p) * (c - d) for c, d in PAYS) / 3


@pytest.mark.parametrize("name", ["shrunk", "length", "loo of the role", "loo"])
def test_unbiased(name):
    assert mean_gradient(RULES[name])[0] == pytest.approx(true_gradient(), rel=1e-5)


def test_the_mean_of_a_role_takes_the_turn_itself_along():
    assert mean_gradient(RULES["mean of the role"])[0] == pytest.approx(5 / 6 * true_gradient(), rel=1e-5)


def test_equal_problems_are_better_compared_together(monkeypatch):
    monkeypatch.setitem(globals(), "PAYS", (PAYS[0],) * 3)
    spread = {name: mean_gradient(RULES[name])[1] for name in ("loo", "shrunk", "loo of the role")}
    assert spread["loo of the role"] < spread["shrunk"] < spread["loo"]
