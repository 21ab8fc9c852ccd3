"""A sampler whose numbers are not the learner's, by enumeration: what each bound on the ratio leaves of the bias."""

import dataclasses
from functools import partial

import pytest
import torch
from prefixes import Tables

from coevolve.algorithms import mareinforce, ppo
from coevolve.algorithms.losses import policy_gradient, with_mismatch
from coevolve.maths.mismatch import BOUNDS, sequence, tis

CORRECTED = [name for name, bound in BOUNDS.items() if bound is not None]


def off(bound, seed, noise=0.6, tokens=3):
    """How far the mean estimate is from the gradient, of whose length; pi' has the learner's logits and noise."""
    tables, other = Tables(seed, tokens), Tables(seed, tokens)
    shift = torch.randn(other.logits.shape, generator=torch.Generator().manual_seed(99 + seed), dtype=torch.float64)
    other.logits = (other.logits + noise * shift).detach().requires_grad_()
    sampled_BT, rule = other.batch().logp_BT, mareinforce()
    loss = with_mismatch(policy_gradient(), bound)
    rule = dataclasses.replace(rule, objective=dataclasses.replace(rule.objective, loss=loss))
    truth = tables.truth(eta=0.0)
    return float((tables.mean(tables.estimates(rule, sampled_BT), sampled_BT) - truth).norm() / truth.norm())


@pytest.mark.parametrize("seed", range(3))
def test_the_bias_shrinks_with_the_cap(seed):
    """Of responses of one token; beyond the largest ratio there is none."""
    caps = [off(partial(tis, cap=cap), seed, tokens=1) for cap in (1.0, 1.2, 1.5, 2.0, 4.0, 1e9)]
    assert off(None, seed, tokens=1) > caps[0] > caps[1] > caps[-1]
    assert caps == sorted(caps, reverse=True)
    assert caps[-1] < 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_one_ratio_for_the_whole_response_is_unbiased_without_a_cap(seed):
    assert off(partial(sequence, cap=1e9), seed) < 1e-9
    assert off(partial(sequence, cap=6.0), seed) < 0.3 * off(None, seed)


@pytest.mark.parametrize("seed", range(3))
def test_ratios_of_tokens_leave_the_bias_of_what_surrounds_them(seed):
    """Each corrects its own token, not what led there nor what follows: with a sampler as far off as this one, that can
    be as wrong as no ratio at all."""
    assert off(partial(tis, cap=1e9), seed) > 0.2


@pytest.mark.parametrize("mismatch", CORRECTED)
def test_of_the_same_numbers_nothing_is_taken(mismatch):
    assert off(BOUNDS[mismatch], 0, noise=0.0) < 1e-9


@pytest.mark.parametrize("mismatch", CORRECTED)
def test_ppos_ratio_is_against_the_learners_own(mismatch):
    """At the first step there is no ratio to be clipped, however far the sampler is off."""
    tables = Tables(0)
    rule = ppo(eta=0.0, clip=1e-6, epochs=1, whiten=False, lam=1.0, mismatch=mismatch)
    sampled_BT = tables.batch().logp_BT - 0.1
    found = tables.estimates(rule, sampled_BT)
    ratio = torch.exp(torch.tensor(0.3 if mismatch == "sequence" else 0.1, dtype=torch.float64))
    plain = tables.estimates(ppo(eta=0.0, epochs=1, whiten=False, lam=1.0))
    assert torch.allclose(found, ratio * plain)
