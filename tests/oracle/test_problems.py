"""Baselines that look across problems in a game of two agents: three problems a step, all batches there can be."""

import pytest
from cases import PROTOCOLS
from compare import CLOSE, average, sample_of, slope
from exact import ROLES, expected, team
from problems import BASELINES, CREDITS, LEVELS, judged
from sample import batch_of, estimates
from theory import lookup

from coevolve.algorithms import marloo

UNBIASED = ("none", "loo", "shrunk", "loo, group: role")


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("credit", CREDITS)
def test_unbiased(credit, levels):
    for baseline in UNBIASED:
        found = judged(credit, baseline, levels)
        assert found.size == pytest.approx(1.0, abs=CLOSE)
        assert found.cosine == pytest.approx(1.0, abs=CLOSE)
    # of six turns one is the turn itself
    assert judged(credit, "mean, group: role", levels).size == pytest.approx(5 / 6, abs=CLOSE)


def test_problems_that_pay_alike_are_better_compared_together():
    spread = {baseline: judged("team_return", baseline, "alike").noise for baseline in BASELINES}
    assert spread["loo, group: role"] < spread["shrunk"] < spread["loo"] < spread["none"]


def test_problems_that_pay_differently_are_not_and_two_others_are_few_to_tell_by():
    spread = {baseline: judged("team_return", baseline, "apart").noise for baseline in BASELINES}
    assert spread["loo"] < spread["shrunk"] < spread["loo, group: role"] < spread["none"]


@pytest.mark.parametrize("levels", LEVELS)
def test_all_pairings_help_there_too(levels):
    for baseline in ("loo", "shrunk", "loo, group: role"):
        assert judged("crossed", baseline, levels).noise < judged("team_return", baseline, levels).noise


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("baseline", ["loo", "length"])
@pytest.mark.parametrize("name", ["rounds(2)", "discussion(1)"])
def test_of_several_turns_of_an_episode_none_is_in_anothers_baseline(name, baseline, role):
    """One problem of two members as a batch: were an episode's other turn among the others, a third and more is off."""
    [seed] = (protocol.seed for protocol in PROTOCOLS if protocol.name == name)
    sample, rule = sample_of(name, seed), marloo(group="role", baseline=baseline)
    logp, _ = lookup(sample.tables)
    true_S = slope(expected(sample.protocol.ways, logp, role, team, 1.0), sample.tables[role])
    batch = batch_of(sample, rule, role)
    group_B = sample.places[role][:, 0] // len(sample.tables[role].prompts)
    mean_S, _ = average(sample, estimates(sample, rule, role, batch.replace(role_B=group_B)))
    assert float((mean_S - true_S).norm()) < CLOSE * float(true_S.norm())
