"""Actors with a critic against the exact gradient: all groups of two turns there can be, each with its probability.

A critic that is right about every state makes one turn of reward as good as the whole return; one that is wrong does no
harm where the whole return is kept (``lam: 1``), and biases where it is not. Letters: N groups, S prompts.
"""

import dataclasses

import pytest
import torch
from cases import PROTOCOLS
from compare import CLOSE, average, slope
from exact import ROLES, WORTHS, chance, expected, team
from sample import everything
from tabular import TOKENS
from theory import lookup

from coevolve.algorithms import iac, maac
from coevolve.collate import collate, rows_of
from coevolve.types import Lesson, Outputs

[TWICE] = (protocol for protocol in PROTOCOLS if protocol.name == "rounds(2)")
RULES = {"iac": iac, "maac": lambda **settings: maac(critic="judge", **settings)}


def alone():
    return everything(dataclasses.replace(TWICE, members=1))


@pytest.fixture(scope="module", name="sample")
def _sample():
    return alone()


def values(sample):
    """What a state is worth, by the prompts of both agents: the expected return from there on."""
    logp, _ = lookup(sample.tables)
    worth, reached = {}, {}
    for way in sample.protocol.ways:
        p = float(chance(way, logp).detach())
        for t, act in enumerate(way):
            state = "".join(c.prompt for c in act.choices)
            worth[state] = worth.get(state, 0.0) + p * sum(team(one.pay, "a") for one in way[t:])
            reached[state] = reached.get(state, 0.0) + p
    return {state: worth[state] / reached[state] for state in worth}


def wrong(sample):
    return {state: 3.0 + number for number, state in enumerate(values(sample))}


def groups(sample, rule, worth, role, state=None):
    """Every group's estimate, [N, S]. worth: state -> what the head says; an agent's own prompt says as much as both
    here. state: what earlier steps have left."""
    by_own = {}
    for way in sample.protocol.ways:
        for act in way:
            for c in act.choices:
                by_own[c.role, c.prompt] = worth["".join(c.prompt for c in act.choices)]
    rows = rows_of(sample.episodes, rule.credit, None)
    rows += [dataclasses.replace(row, extra=True) for row in rule.rows(sample.episodes, rows)]
    batches = {}
    for name in dict.fromkeys(row.turn.policy for row in rows):
        mine, batch = [row for row in rows if row.turn.policy == name], collate(rows, name)
        said = [by_own.get((r.turn.role, text(r)), worth.get(text(r))) if r.extra else 0.0 for r in mine]
        batches[name] = batch.replace(value_BT=torch.tensor(said)[:, None])
    targets, batch = rule.advantage(Lesson(sample.episodes, batches), state or {})[0][role], batches[role]
    logp_BT = batch.logp_BT.double().requires_grad_()
    loss, _ = rule.objective.loss(Outputs(logp_BT), batch, targets, rule.objective.loss_aggregation(batch))
    (slope_BT,) = torch.autograd.grad(-loss, logp_BT)
    assert not slope_BT[batch.extra_B].any()  # nobody said these
    own, table = batch.select((~batch.extra_B).nonzero()[:, 0]), sample.tables[role]
    prompt_B = table.prompts_of(own)
    push_B = slope_BT[~batch.extra_B, 0] * ((own.action_BT[:, 0] == 0).double() - table.logp_SA[prompt_B, 0].exp())
    cells = own.episode_B * len(table.prompts) + prompt_B
    by_group = torch.bincount(cells, push_B.detach(), sample.groups * len(table.prompts))
    return sample.groups * by_group.view(sample.groups, -1)


def text(row):
    return "".join(TOKENS[i] for i in row.turn.prompt_ids)


def bias(sample, name, worth, role, state=None, credit="team_return", **settings):
    logp, _ = lookup(sample.tables)
    true_S = slope(expected(sample.protocol.ways, logp, role, WORTHS[credit], 1.0), sample.tables[role])
    rule = RULES[name](whiten=False, credit=credit, **settings)
    mean_S, _ = average(sample, groups(sample, rule, worth, role, state))
    return float((mean_S - true_S).norm() / true_S.norm())


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", RULES)
def test_a_right_critic_is_as_good_as_the_return(sample, name, role):
    for lam in (0.0, 0.5, 1.0):
        assert bias(sample, name, values(sample), role, lam=lam) < CLOSE


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", RULES)
def test_a_wrong_critic_biases_unless_the_whole_return_is_kept(sample, name, role):
    assert bias(sample, name, wrong(sample), role, lam=1.0) < CLOSE
    assert bias(sample, name, wrong(sample), role, lam=0.0) > 0.05


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", RULES)
def test_ones_own_return_against_any_critic(sample, name, role):
    assert bias(sample, name, wrong(sample), role, credit="own_return", lam=1.0) < CLOSE


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", RULES)
def test_values_in_units_of_returns_are_right_or_wrong_as_they_are(sample, name, role):
    past = {"values": {one: {"count": 3, "mean": 2.0, "squares": 0.5} for one in (*ROLES, "judge")}}
    right = {state: (value - 2.0) / 0.5 for state, value in values(sample).items()}
    for lam in (0.0, 1.0):
        assert bias(sample, name, right, role, past, value_norm=True, lam=lam) < CLOSE
    assert bias(sample, name, values(sample), role, past, value_norm=True, lam=1.0) < CLOSE
    assert bias(sample, name, values(sample), role, past, value_norm=True, lam=0.0) > 0.05
