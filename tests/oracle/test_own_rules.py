"""The estimators of ``examples/`` against the exact gradient: all groups there can be, each with its probability."""

import itertools
from pathlib import Path

import pytest
import torch
from cases import PROTOCOLS
from compare import average, slope
from exact import ROLES, WORTHS, expected
from sample import batch_of, estimates, everything
from tabular import MOVES, TOKENS, Table
from theory import lookup

from coevolve.algorithms import mareinforce, marloo
from coevolve.collate import collate, rows_of
from coevolve.recipe.components import from_file
from coevolve.tasks.games import GAMES
from coevolve.types import Episode, Joint, Lesson, Outputs, Problem, Turn

EXAMPLES = Path(__file__).parents[2] / "examples"
BY_NAME = {protocol.name: protocol for protocol in PROTOCOLS}


def example(name):
    return from_file(str(EXAMPLES / name), (), "algorithm")


@pytest.fixture(scope="module")
def sample():
    return everything(BY_NAME["rounds(1), chicken"])


def truth(sample, role, worth):
    logp, _ = lookup(sample.tables)
    return slope(expected(sample.protocol.ways, logp, role, worth, 1.0), sample.tables[role])


@pytest.mark.parametrize("role", ROLES)
def test_a_moving_baseline_is_unbiased(sample, role):
    rule = example("rae.py:rae")()
    found_NS = estimates(sample, rule, role, batch_of(sample, rule, role), {"baselines": {f" as {role}": 1.3}})
    assert torch.allclose(average(sample, found_NS)[0], truth(sample, role, WORTHS["own_return"]), rtol=1e-5)


@pytest.mark.parametrize("role", ROLES)
def test_our_own_moving_baseline_is_unbiased_whatever_its_past(sample, role):
    rule, past = marloo(baseline="moving"), {"moving": {"": {one: [1.3, 0.4] for one in ROLES}}}
    found_NS = estimates(sample, rule, role, batch_of(sample, rule, role), past)
    assert torch.allclose(average(sample, found_NS)[0], truth(sample, role, WORTHS["team_return"]), rtol=1e-5)
    assert not torch.allclose(found_NS, estimates(sample, rule, role, batch_of(sample, rule, role)))


@pytest.mark.parametrize("role", ROLES)
def test_a_baseline_of_the_same_partners_is_unbiased(sample, role):
    rule = example("partner_baseline.py:against_same_partners")()
    found_NS = estimates(sample, rule, role, batch_of(sample, rule, role))
    assert torch.allclose(average(sample, found_NS)[0], truth(sample, role, WORTHS["team_return"]), rtol=1e-5)
    assert spread(sample, found_NS) < spread(sample, leave_one_out(sample, role))


@pytest.mark.parametrize("role", ROLES)
def test_the_credit_of_all_pairings_is_unbiased_and_varies_less(sample, role):
    rule = mareinforce(credit=example("crossed.py:crossed")())
    found_NS = estimates(sample, rule, role, batch_of(sample, rule, role))
    assert torch.allclose(average(sample, found_NS)[0], truth(sample, role, WORTHS["team_return"]), rtol=1e-5)
    assert spread(sample, found_NS) < spread(sample, leave_one_out(sample, role))


def leave_one_out(sample, role):
    return estimates(sample, marloo(), role, batch_of(sample, marloo(), role))


def spread(sample, found_NS):
    """The variance of a group's estimate."""
    return float(sample.chances_N @ found_NS.square().sum(1)) - float(average(sample, found_NS)[0].square().sum())


def test_answers_behind_the_bare_prompt_have_the_gradient_of_answering_alone():
    """One table in both roles of a chain; every episode there can be, each with its probability."""
    rule, table, pays = example("bare_prompt.py:answered_alone")(), Table(["c", "cC", "cD"], 3), GAMES["harmony"][""]
    logp = {prompt: table.logp_SA[number] for prompt, number in table.number.items()}
    episodes, chances = [], []
    for x, y in itertools.product(range(2), repeat=2):
        told = "c" + MOVES[x]
        first, second = (
            Turn(role, "ann", Problem("p"), 0, 0, [TOKENS.index(t) for t in prompt], [move],
                 [logp[prompt][move].item()], MOVES[move], False)
            for role, prompt, move in (("pioneer", "c", x), ("observer", told, y))
        )  # fmt: skip
        second.heard = (first,)
        first.reward, second.reward = pays[MOVES[x] + MOVES[y]]
        episodes.append(Episode(Problem("p"), 0, [first, second], [Joint((first, second), (0.0, 0.0))]))
        chances.append((logp["c"][x] + logp[told][y]).exp().item())
    rows = rows_of(episodes, rule.credit, None)
    batch = collate([*rows, *rule.rows(episodes, rows)], "ann")
    targets, _ = rule.advantage(Lesson(episodes, {"ann": batch}), {})
    logp_BT = table.logp_SA[table.prompts_of(batch)].gather(1, batch.action_BT)
    # Four episodes count a quarter each in the loss: here they count by their probability.
    weight_BT = rule.objective.loss_aggregation(batch) * 4 * torch.tensor(chances)[batch.episode_B][:, None]
    loss, _ = rule.objective.loss(Outputs(logp_BT), batch, targets["ann"], weight_BT)

    wanted = torch.zeros((), dtype=torch.float64)
    for x, y in itertools.product(range(2), repeat=2):
        told, (first, second) = "c" + MOVES[x], pays[MOVES[x] + MOVES[y]]
        chance, alone = (logp["c"][x] + logp[told][y]).exp().item(), logp["c"][x].exp().item()
        wanted = wanted + chance * (first * logp["c"][x] + second * logp[told][y])
        wanted = wanted + alone * second * logp["c"][y].exp()  # the same answer, to nobody's hint
    assert torch.allclose(slope(-loss, table), slope(wanted, table), rtol=1e-5)
