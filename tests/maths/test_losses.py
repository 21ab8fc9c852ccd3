"""PPO's two losses: literals, reductions, naive references."""

import math

import pytest
import torch

from coevolve.maths import kl
from coevolve.maths.losses import (
    clipped_policy,
    clipped_turns,
    clipped_value,
    reference_kl,
    score_function,
    weighted_policy,
)

ONE = torch.tensor([[True, True]])


def evenly(mask):
    return mask / mask.sum()


def logs(*ratios):
    return torch.tensor([[math.log(r) for r in ratios]])


def test_policy_literal():
    # advantages +1 and -1, ratio 1.5 for both, clip 0.2:
    # A=+1: max(-1.5, -1.2) = -1.2, clipped;  A=-1: max(1.5, 1.2) = 1.5, not clipped;  mean 0.15
    adv = torch.tensor([[1.0, -1.0]])
    loss, clipped = clipped_policy(logs(1.5, 1.5), torch.zeros(1, 2), adv, ONE, evenly(ONE), 0.2)
    assert loss.item() == pytest.approx(0.15, abs=1e-6)
    assert clipped.item() == 0.5


def test_policy_low_side():
    # ratio 0.5: A=+1: max(-0.5, -0.8) = -0.5 not clipped;  A=-1: max(0.5, 0.8) = 0.8 clipped;  mean 0.15
    adv = torch.tensor([[1.0, -1.0]])
    loss, clipped = clipped_policy(logs(0.5, 0.5), torch.zeros(1, 2), adv, ONE, evenly(ONE), 0.2)
    assert loss.item() == pytest.approx(0.15, abs=1e-6)
    assert clipped.item() == 0.5


def test_ppo_at_ratio_one_has_the_reinforce_gradient():
    logp = torch.tensor([[-1.0, -2.0, 0.0], [-0.5, 0.0, 0.0]], requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    adv = torch.tensor([[3.0, -1.0, 7.0], [2.0, 7.0, 7.0]])
    clipped_policy(logp, logp.detach(), adv, mask, evenly(mask), 0.2)[0].backward()
    assert torch.allclose(logp.grad, torch.tensor([[-1.0, 1 / 3, 0.0], [-2 / 3, 0.0, 0.0]]))


def test_padding_is_not_scored_even_when_it_is_absurd():
    mask = torch.tensor([[True, False]])
    logp = torch.tensor([[0.0, 1e6]], requires_grad=True)
    loss, _ = clipped_policy(logp, torch.zeros(1, 2), torch.ones(1, 2), mask, evenly(mask), 0.2)
    loss.backward()
    assert loss.item() == -1.0
    assert logp.grad.tolist() == [[-1.0, 0.0]]


def test_value_literal():
    # old 0, clip 0.2, value 1 -> clipped 0.2. return 1: max(0, 0.64) = 0.64; return -1: max(4, 1.44) = 4;
    # half the mean is 1.16
    value, old, returns = torch.ones(1, 2), torch.zeros(1, 2), torch.tensor([[1.0, -1.0]])
    loss = clipped_value(value, old, returns, ONE, evenly(ONE), 0.2)
    assert loss.item() == pytest.approx(1.16)


def test_value_gradient_literal():
    # inside the clip both squares have the slope V - R = -2; the clipped one is larger: no slope; the other: V - R = 2
    value = torch.tensor([[0.1, 1.0, 1.0]], requires_grad=True)
    returns, mask = torch.tensor([[2.1, 1.5, -1.0]]), torch.ones(1, 3, dtype=torch.bool)
    clipped_value(value, torch.zeros(1, 3), returns, mask, torch.ones(1, 3), 0.2).backward()
    assert value.grad.tolist() == [pytest.approx([-2.0, 0.0, 2.0])]


def test_both_agree_with_a_loop_over_tokens():
    torch.manual_seed(1)
    mask = torch.arange(6) < torch.tensor([6, 1, 4])[:, None]
    logp, old, adv, value, before, returns = (torch.randn(3, 6) for _ in range(6))
    policy, _ = clipped_policy(logp, old, adv, mask, evenly(mask), 0.2)
    critic = clipped_value(value, before, returns, mask, evenly(mask), 0.2)
    tokens = [(b, t) for b in range(3) for t in range(6) if mask[b, t]]
    want_policy = want_critic = 0.0
    for b, t in tokens:
        ratio, a = math.exp(logp[b, t] - old[b, t]), float(adv[b, t])
        want_policy += -min(a * ratio, a * min(max(ratio, 0.8), 1.2))
        v, v0, r = float(value[b, t]), float(before[b, t]), float(returns[b, t])
        near = min(max(v, v0 - 0.2), v0 + 0.2)
        want_critic += 0.5 * max((v - r) ** 2, (near - r) ** 2)
    assert policy.item() == pytest.approx(want_policy / len(tokens), rel=1e-5)
    assert critic.item() == pytest.approx(want_critic / len(tokens), rel=1e-5)


def test_micro_batches_add_up():
    torch.manual_seed(2)
    mask = torch.arange(4) < torch.tensor([4, 2, 1])[:, None]
    logp, old, adv = (torch.randn(3, 4) for _ in range(3))
    weight = evenly(mask)
    whole, _ = clipped_policy(logp, old, adv, mask, weight, 0.2)
    parts = [clipped_policy(*(x[[b]] for x in (logp, old, adv, mask, weight)), 0.2)[0] for b in range(3)]
    assert whole.item() == pytest.approx(sum(p.item() for p in parts), rel=1e-6)


def test_score_function_literal():
    # -(2 * -0.5 + -1 * -0.25) / 2 = 0.375; a number outside the mask, even an infinite one, is nothing
    mask = torch.tensor([[True, False], [True, False]])
    logp = torch.tensor([[-0.5, -math.inf], [-0.25, 7.0]])
    adv = torch.tensor([[2.0, 0.0], [-1.0, 0.0]])
    assert score_function(logp, adv, mask, evenly(mask)).item() == pytest.approx(0.375)


def test_at_ratio_one_the_clipped_loss_has_the_score_functions_gradient():
    torch.manual_seed(0)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    adv, start = torch.randn(2, 3) * mask, torch.randn(2, 3)
    grads = []
    for loss in (
        lambda logp: score_function(logp, adv, mask, evenly(mask)),
        lambda logp: clipped_policy(logp, start, adv, mask, evenly(mask), 0.2)[0],
    ):
        logp = start.clone().requires_grad_()
        loss(logp).backward()
        grads.append(logp.grad)
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize(
    ("name", "want"),
    [("k1", math.log(2)), ("k2", math.log(2) ** 2 / 2), ("k3", 0.5 - 1 + math.log(2))],
)
def test_kl_estimators_literal(name, want):
    # log pi - log ref = log 2 at every token, so pi_0 / pi = 1/2; outside the mask an infinite number is nothing
    mask = torch.tensor([[True, True, False]])
    logp, ref = torch.tensor([[0.0, -1.0, -math.inf]]), torch.tensor([[-math.log(2), -1 - math.log(2), -9.0]])
    got = reference_kl(logp, ref, mask, evenly(mask), kl.ESTIMATORS[name])
    assert got.item() == pytest.approx(want, abs=1e-6)


def test_gradients_of_the_kl_estimators():
    """Expected over samples of pi: k1 has none, k2 that of KL(pi || pi_0), k3 that of KL(pi_0 || pi)."""
    ref = torch.tensor([0.25, 0.75]).log()

    def gradient(value):
        z = torch.tensor([0.5, -0.5], requires_grad=True)
        value(z.log_softmax(0)).backward()
        return z.grad

    def expected(estimator):
        return lambda logp: (logp.exp().detach() * estimator(logp - ref)).sum()

    zero = torch.zeros(2)
    torch.testing.assert_close(gradient(expected(kl.k1)), zero, atol=1e-6, rtol=0)
    torch.testing.assert_close(gradient(expected(kl.k2)), gradient(lambda logp: (logp.exp() * (logp - ref)).sum()))
    torch.testing.assert_close(gradient(expected(kl.k3)), gradient(lambda logp: (ref.exp() * (ref - logp)).sum()))
    assert gradient(expected(kl.k2)).abs().max() > 0.05


def test_higher_above_than_below():
    # ratios 1.25 and 0.75, clip (0.2, 0.28): A=+1: -1.25 is within 1.28;  A=-1: max(0.75, 0.8) = 0.8;  mean -0.225
    loss, clipped = clipped_policy(
        logs(1.25, 0.75), torch.zeros(1, 2), torch.tensor([[1.0, -1.0]]), ONE, evenly(ONE), (0.2, 0.28)
    )
    assert loss.item() == pytest.approx(-0.225, abs=1e-6)
    assert clipped.item() == 0.5


def test_the_ratio_of_a_turn_literal():
    # ratios 4 and 1: of the turn sqrt(4) = 2, beyond 1.2, A=+1: -1.2 and no gradient. A=-1: max(2, 1.2) = 2, whose
    # gradient by each log-probability is 2 / 2 times the weight of both tokens, 1
    logp = logs(4.0, 1.0).requires_grad_()
    loss, clipped = clipped_turns(logp, torch.zeros(1, 2), torch.ones(1, 2), ONE, evenly(ONE), 0.2)
    assert loss.item() == pytest.approx(-1.2)
    assert clipped.item() == 1.0
    loss, _ = clipped_turns(logp, torch.zeros(1, 2), -torch.ones(1, 2), ONE, evenly(ONE), 0.2)
    assert loss.item() == pytest.approx(2.0)
    assert torch.autograd.grad(loss, logp)[0].tolist() == [pytest.approx([1.0, 1.0])]


def test_of_one_token_the_turns_ratio_is_the_tokens():
    torch.manual_seed(0)
    mask = torch.ones(6, 1, dtype=torch.bool)
    logp, old, adv = torch.randn(3, 6, 1)
    for found, want in zip(
        clipped_turns(logp, old, adv, mask, evenly(mask), 0.2),
        clipped_policy(logp, old, adv, mask, evenly(mask), 0.2),
        strict=True,
    ):
        assert torch.equal(found, want)


def test_a_turns_ratio_knows_no_padding():
    mask = torch.tensor([[True, False]])
    loss, _ = clipped_turns(torch.tensor([[0.1, 1e6]]), torch.zeros(1, 2), torch.ones(1, 2), mask, evenly(mask), 0.2)
    assert loss.item() == pytest.approx(-math.exp(0.1))


def test_a_detached_ratio_literal():
    # ratios 3 and 0.5, clip (1, 1): weights 2 and 0.5, A=+1 and -1: -(2 log 3 - 0.5 log 0.5) / 2, half of the tokens
    # clipped; gradients -2 / 2 and 0.5 / 2: the clipped one has its own
    logp = logs(3.0, 0.5).requires_grad_()
    loss, clipped = weighted_policy(logp, torch.zeros(1, 2), torch.tensor([[1.0, -1.0]]), ONE, evenly(ONE), (1.0, 1.0))
    assert loss.item() == pytest.approx(-(2 * math.log(3) - 0.5 * math.log(0.5)) / 2)
    assert clipped.item() == 0.5
    assert torch.autograd.grad(loss, logp)[0].tolist() == [pytest.approx([-1.0, 0.25])]


def test_a_detached_ratio_that_is_not_clipped_is_reinforce_by_importance():
    # and that has the gradient of the plain surrogate -A ratio
    torch.manual_seed(0)
    logp, old, adv = torch.randn(2, 5).requires_grad_(), torch.randn(2, 5), torch.randn(2, 5)
    mask = torch.ones(2, 5, dtype=torch.bool)
    loss, clipped = weighted_policy(logp, old, adv, mask, evenly(mask), (1.0, 1e9))
    want = -(adv * (logp - old).exp() * evenly(mask)).sum()
    assert clipped.item() == 0.0
    for a, b in zip(*(torch.autograd.grad(x, logp) for x in (loss, want)), strict=True):
        torch.testing.assert_close(a, b)
