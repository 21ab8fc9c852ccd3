"""PPO on whole responses with a KL penalty per token: the single-agent baseline, and the base of CORY.

Equations: rewards -eta KL_t at every token and the credit at the last (CORY, arXiv 2410.06101, section 2); GAE
(1506.02438); clipped surrogate and value loss (1707.06347). Deviations from the released CORY code, which builds on an
early TRL:

1. A mini-batch whose mean ratio exceeds 10 is trained on like any other; that code silently replaces its loss by 0.
2. The value head starts at zero, so the first advantages are those of plain reward-to-go.
3. Ratios are taken against the distribution that was sampled; a repetition penalty is off unless asked for.
4. eta is fixed unless ``target_kl`` is given. That code always adapts it (target 6), by at most 0.5 % an iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from coevolve.maths import credit as credits
from coevolve.maths import masked, moments
from coevolve.maths.advantage import gae, token_rewards
from coevolve.maths.kl import AdaptiveKL, FixedKL
from coevolve.maths.losses import clipped_policy, clipped_value
from coevolve.maths.weights import WEIGHTS
from coevolve.types import Advantage, Algorithm, Batch, Credit, Loss, Outputs, Targets


def full_kl(batch: Batch) -> Tensor:
    """KL(policy || reference) where each token was drawn, the same for any token.

    So as a reward it steers only which states come next; the policy gradient does not feel the KL of its own state.
    """
    assert batch.kl_BT is not None, "the KL penalty needs a reference"
    return batch.kl_BT


def log_ratio(batch: Batch) -> Tensor:
    """log pi(a) - log pi_0(a) of the sampled token: full_kl on average, with the gradient of the KL as a reward."""
    assert batch.logp_ref_BT is not None, "the KL penalty needs a reference"
    return batch.logp_BT - batch.logp_ref_BT


_CREDITS: dict[str, Credit] = {
    "own": credits.own,
    "team_sum": credits.team_sum,
    "team_mean": credits.team_mean,
    "to_go": credits.to_go(),
}
_RESCALES: dict[str, Callable[[Tensor, moments.Moments], Tensor] | None] = {
    "none": None,
    "scale": moments.scale,
    "normalise": moments.normalise,
}
_PENALTIES: dict[str, Callable[[Batch], Tensor]] = {"full": full_kl, "sampled": log_ratio}
_COUNTS = ("epochs", "minibatch", "horizon")


def ppo(
    *,
    eta: float = 0.3,
    target_kl: float | None = None,
    horizon: int = 10000,
    gamma: float = 1.0,
    lam: float = 0.95,
    clip: float = 0.2,
    value_clip: float = 0.2,
    value_coef: float = 0.1,
    epochs: int = 4,
    minibatch: int | None = None,
    whiten: bool = True,
    credit: Literal["own", "team_sum", "team_mean", "to_go"] = "own",
    rescale: Literal["none", "scale", "normalise"] = "none",
    weights: Literal["token", "turn"] = "token",
    penalty: Literal["full", "sampled"] = "full",
) -> Algorithm:
    """PPO as a value. Defaults are the IMDB column of the paper's table 1.

    eta: weight of the KL penalty; with target_kl (nats per turn) it adapts over ``horizon`` turns. minibatch: turns per
    optimiser step, all of them if None. whiten: advantages to mean 0, variance 1 over the batch's tokens. credit: what
    a turn is paid. rescale: credit divided by its running standard deviation ("normalise" also centres it). weights:
    does every token count alike, or every turn. penalty: what eta multiplies at each token, the KL over the whole
    vocabulary (the paper) or the log-ratio of the sampled token, which has the same mean and the gradient of the KL.
    Raises ValueError for a setting out of range.
    """
    settings = dict(locals())
    _check(epochs=epochs, minibatch=minibatch, horizon=horizon, eta=eta, clip=clip, value_clip=value_clip)
    if not (0 <= gamma <= 1 and 0 <= lam <= 1):
        raise ValueError(f"algorithm: gamma is {gamma} and lam is {lam}; want both in [0, 1]")
    return Algorithm(
        credit=_CREDITS[credit],
        advantage=_advantage(_PENALTIES[penalty], gamma, lam, whiten),
        loss=_loss(clip, value_clip, value_coef),
        weights=WEIGHTS[weights],
        kl=FixedKL(eta) if target_kl is None else AdaptiveKL(eta, target_kl, horizon),
        epochs=epochs,
        minibatch=minibatch,
        reference=True,
        critic=True,
        rescale=_RESCALES[rescale],
        settings=settings,
    )


def _check(**settings: float | None) -> None:
    """Counts are at least 1, coefficients not negative."""
    for name, value in settings.items():
        low = 1 if name in _COUNTS else 0
        if value is not None and value < low:
            raise ValueError(f"algorithm: {name} is {value}; want at least {low}")


def _advantage(penalty: Callable[[Batch], Tensor], gamma: float, lam: float, whiten: bool) -> Advantage:
    def advantage(batch: Batch, eta: float) -> Targets:
        assert batch.value_BT is not None, "PPO needs a critic"
        reward_BT = token_rewards(batch.credit_B, penalty(batch), batch.mask_BT, eta)
        adv_BT, return_BT = gae(reward_BT, batch.value_BT, batch.mask_BT, gamma, lam)
        return Targets(masked.whiten(adv_BT, batch.mask_BT) if whiten else adv_BT, return_BT)

    return advantage


def _loss(clip: float, value_clip: float, value_coef: float) -> Loss:
    def loss(out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        assert out.value_BT is not None and batch.value_BT is not None and targets.return_BT is not None
        policy, clipped = clipped_policy(out.logp_BT, batch.logp_BT, targets.adv_BT, batch.mask_BT, weight_BT, clip)
        value = clipped_value(out.value_BT, batch.value_BT, targets.return_BT, batch.mask_BT, weight_BT, value_clip)
        metrics = {"loss/policy": policy.detach(), "loss/value": value.detach(), "clip_fraction": clipped}
        return policy + value_coef * value, metrics

    return loss
