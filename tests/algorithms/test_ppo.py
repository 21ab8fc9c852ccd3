"""PPO put together: targets by hand, and what each KL penalty does to the gradient."""

import math

import pytest
import torch
from lesson_cases import targets_of

from coevolve import cory, ppo
from coevolve.maths.advantage import token_rewards
from coevolve.types import Batch


def batch(logp, ref, kl, credit, value=None):
    rows, tokens = len(logp), len(logp[0])
    ones = torch.ones(rows, dtype=torch.long)
    return Batch(
        ids_BS=torch.zeros(rows, tokens + 1, dtype=torch.long),
        start_B=ones,
        length_B=ones * (tokens + 1),
        action_BT=torch.zeros(rows, tokens, dtype=torch.long),
        mask_BT=torch.ones(rows, tokens, dtype=torch.bool),
        logp_BT=torch.tensor(logp),
        credit_B=torch.tensor(credit),
        reward_B=torch.tensor(credit),
        peers_B=ones,
        temperature_B=torch.ones(rows),
        weight_B=torch.ones(rows),
        role_B=ones,
        episode_B=ones,
        joint_B=ones,
        extra_B=torch.zeros(rows, dtype=torch.bool),
        roles=("a", "b"),
        kl_BT=torch.tensor(kl),
        logp_ref_BT=torch.tensor(ref),
        value_BT=torch.zeros(rows, tokens) if value is None else torch.tensor(value),
    )


def test_targets_literal():
    # gamma 1, lambda 1, values 0, eta 0.5: rewards -0.5 * 1, 3 - 0.5 * 2 -> to go 1.5, 2
    given = batch([[-1.0, -1.0]], [[-2.0, -1.5]], [[1.0, 2.0]], [3.0])
    targets = targets_of(ppo(eta=0.5, lam=1.0, whiten=False), given)
    assert targets.adv_BT.tolist() == [[1.5, 2.0]]
    assert targets.return_BT.tolist() == [[1.5, 2.0]]
    # sampled: log-ratios 1, 0.5 -> rewards -0.5, 3 - 0.25 -> to go 2.25, 2.75
    sampled = targets_of(ppo(eta=0.5, lam=1.0, whiten=False, penalty="sampled"), given)
    assert sampled.adv_BT.tolist() == [[2.25, 2.75]]
    # whitened: deviations -0.25, +0.25, unbiased variance 0.125
    whitened = targets_of(ppo(eta=0.5, lam=1.0), given).adv_BT
    assert whitened.tolist() == [[pytest.approx(-math.sqrt(0.5)), pytest.approx(math.sqrt(0.5))]]


def expected_gradient(penalty):
    """Of one token from pi = softmax(z) with the penalty as its only reward, summed over both tokens."""
    z = torch.tensor([1.0, 0.0], requires_grad=True)
    logp, ref = z.log_softmax(0), torch.tensor([0.5, 0.5]).log()
    kl = (logp.exp() * (logp - ref)).sum().item()
    total = 0.0
    for token in range(2):
        given = batch([[logp[token].item()]], [[ref[token].item()]], [[kl]], [0.0])
        adv = targets_of(ppo(eta=1.0, whiten=False, penalty=penalty), given).adv_BT
        total = total + logp[token].exp().detach() * adv.item() * logp[token]
    total.backward()
    return z.grad


def test_only_the_sampled_penalty_has_the_gradient_of_the_kl():
    z = torch.tensor([1.0, 0.0], requires_grad=True)
    logp = z.log_softmax(0)
    (-(logp.exp() * (logp - math.log(0.5))).sum()).backward()
    assert torch.allclose(expected_gradient("sampled"), z.grad, atol=1e-6)
    assert torch.allclose(expected_gradient("full"), torch.zeros(2), atol=1e-6)
    assert z.grad.abs().max() > 0.1


def test_cory_is_ppo_with_the_sum_of_the_team():
    assert cory().settings == ppo(credit="team_sum").settings
    assert cory().objective.epochs == 4


@pytest.mark.parametrize(
    "wrong", [{"epochs": 0}, {"minibatch": 0}, {"eta": -1.0}, {"lam": 1.5}, {"clip": -0.1}, {"horizon": 0}]
)
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        cory(**wrong)


def test_token_rewards_are_what_the_paper_says():
    got = token_rewards(torch.tensor([3.0]), torch.tensor([[1.0, 2.0]]), torch.ones(1, 2, dtype=torch.bool), 0.3)
    assert got.tolist() == [[pytest.approx(-0.3), pytest.approx(2.4)]]
