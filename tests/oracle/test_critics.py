"""Actors with a critic against the exact gradient: all groups of two turns there can be, each with its probability.

A critic that is right about every state makes one turn of reward as good as the whole return; one that is wrong does no
harm where the whole return is kept (``lam: 1``), and biases where it is not. One that has read the answer takes the
gradient away when it is right. Letters: N groups, S prompts.
"""

import dataclasses
import itertools
from collections import defaultdict

import pytest
import torch
from cases import PROTOCOLS
from compare import CLOSE, average, sample_of, slope
from credits import specs, with_critic
from exact import ROLES, WORTHS, chance, expected
from sample import everything
from tabular import TOKENS
from theory import lookup

from coevolve.algorithms import iac, maac
from coevolve.collate import collate, rows_of
from coevolve.types import Lesson, Outputs


def by_name(play):
    return next(protocol for protocol in PROTOCOLS if protocol.name == play)


TWICE = by_name("rounds(2)")
CREDITS = ("team_return", "own_return")
RULES = {"iac": iac, "maac": lambda **settings: maac(critic="judge", **settings)}


def alone():
    return everything(dataclasses.replace(TWICE, members=1))


@pytest.fixture(scope="module", name="sample")
def _sample():
    return alone()


def values(sample, name="iac", value="v", credit="team_return"):
    """(role, what its critic reads) -> the expected return from there on; of ``maac`` it is the roles' mean, since what
    it reads does not say whose turn it is."""
    logp, _ = lookup(sample.tables)
    paid, reached = defaultdict(float), defaultdict(float)
    for way in sample.protocol.ways:
        p = float(chance(way, logp).detach())
        for t, act in enumerate(way):
            for c, role in itertools.product(act.choices, ROLES):
                if name == "maac" or role == c.role:
                    key = role, read(act.choices if name == "maac" else [c], value)
                    paid[key] += p * sum(WORTHS[credit](one.pay, c.role) for one in way[t:])
                    reached[key] += p
    return {key: paid[key] / reached[key] for key in paid}


def read(choices, value):
    """The prompts, and of a Q what was answered."""
    return "".join(c.prompt for c in choices) + ("".join(c.move for c in choices) if value == "q" else "")


def wrong(*what):
    """3 and more of everything, by another number for each thing that a role's critic reads."""
    seen = defaultdict(itertools.count)
    return {(role, text): 3.0 + next(seen[role]) for role, text in values(*what)}


def groups(sample, rule, worth, role, state=None):
    """Every group's estimate, [N, S]. worth: what the head says, as ``values`` has it. state: what earlier steps have
    left."""
    rows = rows_of(sample.episodes, rule.credit, None)
    rows += [dataclasses.replace(row, extra=True) for row in rule.rows(sample.episodes, rows)]
    batches = {}
    for name in dict.fromkeys(row.turn.policy for row in rows):
        mine, batch = [row for row in rows if row.turn.policy == name], collate(rows, name)
        said = [worth[r.turn.role, text(r)] if r.extra else 0.0 for r in mine]
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


EVERY = list(itertools.product(RULES, ROLES))


@pytest.mark.parametrize(("name", "role"), EVERY)
def test_a_right_critic_is_as_good_as_the_return(sample, name, role):
    for lam in (0.0, 0.5, 1.0):
        assert bias(sample, name, values(sample, name), role, lam=lam) < CLOSE


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("play", ["chain", "rounds(2), done", "discussion(1)"])
def test_a_right_critic_on_other_plays(play, credit):
    once = everything(dataclasses.replace(by_name(play), members=1))
    right = values(once, "iac", "v", credit)
    for role, lam in itertools.product(ROLES, (0.0, 1.0)):
        assert bias(once, "iac", right, role, credit=credit, lam=lam) < CLOSE


@pytest.mark.slow
def test_a_right_critic_in_a_tree():
    tree = sample_of("tree(2, 2), aligned", by_name("tree(2, 2), aligned").seed)
    assert bias(tree, "iac", values(tree), "b", lam=0.0) < CLOSE  # looks ahead to the mean of two branches


@pytest.mark.parametrize(("name", "role"), EVERY)
def test_a_wrong_critic_biases_unless_the_whole_return_is_kept(sample, name, role):
    assert bias(sample, name, wrong(sample, name), role, lam=1.0) < CLOSE
    assert bias(sample, name, wrong(sample, name), role, lam=0.0) > 0.05


@pytest.mark.parametrize(("name", "role"), EVERY)
def test_ones_own_return_against_any_critic(sample, name, role):
    assert bias(sample, name, wrong(sample, name), role, credit="own_return", lam=1.0) < CLOSE


@pytest.mark.parametrize("role", ROLES)
def test_ones_own_return_wants_a_critic_of_ones_own(sample, role):
    own = {name: values(sample, name, "v", "own_return") for name in RULES}
    assert bias(sample, "iac", own["iac"], role, credit="own_return", lam=0.0) < CLOSE
    assert bias(sample, "maac", own["maac"], role, credit="own_return", lam=0.0) > 0.05  # it can say only the mean


@pytest.mark.parametrize(("name", "credit"), [("iac", "team_return"), ("iac", "own_return"), ("maac", "team_return")])
@pytest.mark.parametrize("role", ROLES)
def test_a_critic_that_has_read_the_answer_leaves_nothing_to_learn(sample, name, credit, role):
    for lam in (0.0, 1.0):
        right = values(sample, name, "q", credit)
        assert bias(sample, name, right, role, credit=credit, value="q", lam=lam) == pytest.approx(1.0)


@pytest.mark.parametrize(("name", "role"), EVERY)
def test_values_in_units_of_returns_are_right_or_wrong_as_they_are(sample, name, role):
    past = {"values": {one: {"count": 3, "mean": 2.0, "squares": 0.5} for one in (*ROLES, "judge")}}
    right = {key: (value - 2.0) / 0.5 for key, value in values(sample, name).items()}
    for lam in (0.0, 1.0):
        assert bias(sample, name, right, role, past, value_norm=True, lam=lam) < CLOSE
    assert bias(sample, name, values(sample, name), role, past, value_norm=True, lam=1.0) < CLOSE
    assert bias(sample, name, values(sample, name), role, past, value_norm=True, lam=0.0) > 0.05


@pytest.mark.parametrize("play", ["chain", "rounds(1), chicken", "rounds(2)", "discussion(1)"])
def test_a_head_beside_any_credit_is_a_baseline(play):
    """PPO's, whatever it says."""
    protocol, beside = by_name(play), []
    sample = sample_of(play, protocol.seed)
    for label, spec in specs(protocol):
        try:
            right, wrong = (headed(sample, spec, by) for by in (0.0, 3.0))
        except ValueError:  # this credit is not defined here
            continue
        beside.append(label)
        assert (right - wrong).norm() < CLOSE * right.norm(), label
    assert len(beside) >= 8


def headed(sample, spec, wrong):
    """The mean gradient of both agents."""
    return torch.cat([average(sample, with_critic(sample, spec, role, wrong))[0] for role in ROLES])
