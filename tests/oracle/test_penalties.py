"""The KL penalty over responses of several tokens, by enumeration: which kinds have the gradient of r - eta KL."""

import pytest
import torch
from prefixes import ETA, Tables

from coevolve.algorithms import a2c, ppo, reinforce_pp


def rule_of(penalty, **settings):
    return ppo(eta=ETA, lam=1.0, whiten=False, penalty=penalty, **settings)


def off(tables, rule):
    """Of the gradient's length."""
    truth = tables.truth()
    return float((tables.mean(tables.estimates(rule)) - truth).norm() / truth.norm())


@pytest.mark.parametrize("seed", range(3))
def test_exact_and_sampled_are_the_gradient_and_full_is_not(seed):
    tables = Tables(seed)
    assert off(tables, rule_of("exact")) < 1e-9
    assert off(tables, rule_of("sampled")) < 1e-9
    assert off(tables, rule_of("full")) > 0.3


def test_discounted_exact_is_what_sampled_is_in_the_mean():
    tables, plain = Tables(0), rule_of("sampled")
    wanted, found = (tables.mean(tables.estimates(rule_of(one, gamma=0.7))) for one in ("sampled", "exact"))
    assert torch.allclose(found, wanted, atol=1e-9)
    assert not torch.allclose(found, tables.mean(tables.estimates(plain)), atol=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_exact_varies_less_than_sampled(seed):
    tables = Tables(seed)
    tables.pay_B = torch.zeros_like(tables.pay_B)  # of the penalty alone
    chance_B = tables.batch().logp_BT.sum(1).exp()

    def variance(penalty):
        found = tables.estimates(rule_of(penalty))
        return float((chance_B * (found - tables.mean(found)).square().sum((1, 2))).sum())

    assert variance("exact") < 0.5 * variance("sampled")


@pytest.mark.parametrize("rule", [a2c, reinforce_pp])
def test_those_of_ppos_parts_have_it_too(rule):
    assert off(Tables(0), rule(eta=ETA, whiten=False, entropy=0.0, penalty="exact")) < 1e-9
    assert off(Tables(0), rule(eta=ETA, whiten=False, entropy=0.0)) < 1e-9
