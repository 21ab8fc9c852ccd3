"""GAE and token rewards: literals, reductions, and a naive per-token reference on random ragged turns."""

import torch

from coevolve.maths.advantage import at_last_token, gae, token_rewards

MASK = torch.tensor([[True, True, True], [True, False, False]])


def test_credit_lands_on_the_last_sampled_token():
    assert at_last_token(torch.tensor([2.0, 5.0]), MASK).tolist() == [[0, 0, 2], [5, 0, 0]]


def test_token_rewards_literal():
    kl = torch.tensor([[1.0, 2.0, 3.0], [4.0, 9.0, 9.0]])
    got = token_rewards(torch.tensor([10.0, 20.0]), kl, MASK, eta=0.5)
    assert got.tolist() == [[-0.5, -1.0, 8.5], [18.0, 0.0, 0.0]]


def test_gae_literal():
    # gamma 1, lambda 1/2, values 1, 2, 3, rewards 0, 0, 4:
    # delta = 0 + 2 - 1, 0 + 3 - 2, 4 - 3 = 1, 1, 1;  A_2 = 1, A_1 = 1 + 1/2, A_0 = 1 + 3/4
    reward = torch.tensor([[0.0, 0.0, 4.0], [6.0, 50.0, 50.0]])
    value = torch.tensor([[1.0, 2.0, 3.0], [2.0, 50.0, 50.0]])
    adv, returns = gae(reward, value, MASK, gamma=1.0, lam=0.5)
    assert adv.tolist() == [[1.75, 1.5, 1.0], [4.0, 0.0, 0.0]]
    assert returns.tolist() == [[2.75, 3.5, 4.0], [6.0, 0.0, 0.0]]


def test_gae_reduces_to_reward_to_go():
    reward = torch.tensor([[1.0, 2.0, 4.0], [5.0, 0.0, 0.0]])
    adv, _ = gae(reward, torch.zeros(2, 3), MASK, gamma=1.0, lam=1.0)
    assert adv.tolist() == [[7.0, 6.0, 4.0], [5.0, 0.0, 0.0]]


def test_gae_at_lambda_zero_is_the_one_step_error():
    reward = torch.tensor([[0.0, 0.0, 4.0], [6.0, 0.0, 0.0]])
    value = torch.tensor([[1.0, 2.0, 5.0], [2.0, 0.0, 0.0]])
    adv, _ = gae(reward, value, MASK, gamma=0.5, lam=0.0)
    assert adv.tolist() == [[0.0, 0.5, -1.0], [4.0, 0.0, 0.0]]


def test_gae_agrees_with_the_sum_over_future_errors():
    torch.manual_seed(0)
    lengths = [5, 1, 3, 7]
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    reward, value = torch.randn(4, 7), torch.randn(4, 7)
    adv, returns = gae(reward, value, mask, gamma=0.9, lam=0.8)
    for b, length in enumerate(lengths):
        v = [*value[b, :length].double().tolist(), 0.0]
        errors = [float(reward[b, t]) + 0.9 * v[t + 1] - v[t] for t in range(length)]
        for t in range(length):
            want = sum((0.9 * 0.8) ** k * errors[t + k] for k in range(length - t))
            assert abs(adv[b, t].item() - want) < 1e-5
            assert abs(returns[b, t].item() - want - v[t]) < 1e-5
        assert adv[b, length:].abs().sum() == 0
