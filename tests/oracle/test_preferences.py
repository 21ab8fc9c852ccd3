"""MADPO's expected step against the gradient of the joint DPO loss, by enumeration: all pairs there can be."""

import dataclasses
import itertools
from statistics import fmean

import pytest
import torch
from cases import PROTOCOLS
from compare import slope
from exact import ROLES
from sample import batch_of, everything
from tabular import MOVES
from torch.nn.functional import logsigmoid

from coevolve.algorithms import madpo
from coevolve.tasks.games import GAMES
from coevolve.types import Lesson, Outputs

BETA = 0.5
PLAY = next(p for p in PROTOCOLS if p.name == "rounds(1), chicken")
PAIR = dataclasses.replace(PLAY, members=2)


def pairs():
    return everything(PAIR)


@pytest.fixture(scope="module", name="sample")
def _sample():
    return pairs()


def step(sample, rule, role, chances_N=None):
    """What the agent's update descends by, in the mean over groups, by the logit of C. chances_N: other ones than the
    policies', such as all for one group."""
    chances_N = sample.chances_N if chances_N is None else chances_N
    batches = {name: batch_of(sample, rule, name) for name in ROLES}
    targets, _ = rule.advantage(Lesson(sample.episodes, batches), {})
    batch, table = batches[role], sample.tables[role]
    logp_BT = table.logp_SA[table.prompts_of(batch)].gather(1, batch.action_BT)
    group_B = torch.tensor([int(sample.episodes[e].problem.id) for e in batch.episode_B.tolist()])
    chance_B = chances_N[group_B] * sample.groups
    weight_BT = rule.objective.loss_aggregation(batch) * chance_B[:, None]
    loss, _ = rule.objective.loss(Outputs(logp_BT), batch, targets[role], weight_BT)
    return slope(loss, table)


def wanted(sample, role, margin, reference=True):
    """The same of the loss itself: winners and losers drawn independently by the policies as they are. reference:
    whether likelihoods are relative to the start model's."""
    total = torch.zeros((), dtype=torch.float64)
    joints = list(itertools.product(range(2), repeat=2))

    def score(joint):
        found = 0.0
        for name, move in zip(ROLES, joint, strict=True):
            if margin == "own" and name != role:
                continue
            table = sample.tables[name]
            logp = table.logp_SA if name == role else table.logp_SA.detach()
            found = found + logp[0, move] - (table.reference_SA[0, move] if reference else 0.0)
        return found

    def chance(joint):
        return sum(sample.tables[n].logp_SA[0, m].detach() for n, m in zip(ROLES, joint, strict=True)).exp()

    def pay(joint):
        return fmean(GAMES["chicken"][""]["".join(MOVES[m] for m in joint)])

    for one, other in itertools.product(joints, repeat=2):
        if pay(one) > pay(other):  # drawn in either order
            total = total - 2 * chance(one) * chance(other) * logsigmoid(BETA * (score(one) - score(other)))
    return slope(total, sample.tables[role])


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("margin", ["joint", "own"])
@pytest.mark.parametrize("role", ROLES)
def test_the_step_is_that_of_the_joint_loss(sample, role, margin, reference):
    rule = madpo(beta=BETA, margin=margin, reference=reference)
    found, want = step(sample, rule, role), wanted(sample, role, margin, reference)
    assert want.abs().max() > 1e-3
    assert torch.allclose(found, want, rtol=1e-5)


def test_the_two_margins_with_and_without_a_reference_are_four_losses(sample):
    every = [wanted(sample, "a", margin, reference) for margin in ("joint", "own") for reference in (True, False)]
    assert not any(torch.allclose(one, other, rtol=1e-3) for one, other in itertools.combinations(every, 2))
