"""Baselines that look across problems in a game of two agents: three problems a step, all batches there can be."""

import pytest
from compare import CLOSE
from problems import BASELINES, CREDITS, LEVELS, judged

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
