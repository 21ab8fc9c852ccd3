"""PPO on whole responses with a KL penalty per token: the single-agent baseline, and the base of CORY.

Equations: rewards -eta KL_t at every token and the credit at the last (CORY, arXiv 2410.06101, section 2); GAE
(1506.02438); clipped surrogate and value loss (1707.06347). Deviations from the released CORY code, which builds on an
early TRL:

1. A mini-batch whose mean ratio exceeds 10 is trained on like any other; that code silently replaces its loss by 0.
2. The value head starts at zero, so the first advantages are those of plain reward-to-go.
3. Ratios are taken against the distribution that was sampled; a repetition penalty is off unless asked for.
4. eta is fixed unless ``target_kl`` is given. That code always adapts it (target 6), by at most 0.5 % an iteration.
5. ``whiten_rewards`` leaves padding at 0. That code adds the mean to padding as well, from where it leaks into the
   advantages. ``score_clip`` is TRL's (``PPOConfig`` and ``PPOTrainer.step`` of releases up to 0.11): after scaling.
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
from coevolve.settings import Count, Fraction, NotNegative, Positive, checked_call
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
Rescale = Callable[[Tensor, moments.Moments], Tensor]
_RESCALES: dict[str, Rescale | None] = {
    "none": None,
    "scale": moments.scale,
    "normalise": moments.normalise,
}
_PENALTIES: dict[str, Callable[[Batch], Tensor]] = {"full": full_kl, "sampled": log_ratio}


@checked_call("algorithm")
def ppo(
    *,
    eta: NotNegative = 0.3,
    target_kl: Positive | None = None,
    horizon: Count = 10000,
    gamma: Fraction = 1.0,
    lam: Fraction = 0.95,
    clip: Positive = 0.2,
    value_clip: Positive = 0.2,
    value_coef: NotNegative = 0.1,
    epochs: Count = 4,
    minibatch: Count | None = None,
    score_clip: Positive | None = None,
    whiten_rewards: bool = False,
    whiten: bool = True,
    credit: Literal["own", "team_sum", "team_mean", "to_go"] = "own",
    rescale: Literal["none", "scale", "normalise"] = "none",
    weights: Literal["token", "turn"] = "token",
    penalty: Literal["full", "sampled"] = "full",
) -> Algorithm:
    """PPO as a value. Defaults are the IMDB column of the paper's table 1.

    eta: weight of the KL penalty; with target_kl (nats per turn) it adapts over ``horizon`` turns. minibatch: turns per
    optimiser step, all of them if None. whiten: advantages to mean 0, variance 1 over the batch's tokens. credit: what
    a turn is paid. rescale: credit divided by its running standard deviation ("normalise" also centres it). score_clip:
    credit, rescaled or not, is at most this far from 0. whiten_rewards: the tokens' rewards, KL included, divided by
    their standard deviation over the batch around their mean, which stays. weights: does every token count alike, or
    every turn. penalty: what eta multiplies at each token, the KL over the whole vocabulary (the paper) or the
    log-ratio of the sampled token, which has the same mean and the gradient of the KL.
    Raises ValueError for a setting out of range.
    """
    settings = dict(locals())
    return Algorithm(
        credit=_CREDITS[credit],
        advantage=_advantage(_PENALTIES[penalty], gamma, lam, whiten, whiten_rewards),
        loss=_loss(clip, value_clip, value_coef),
        weights=WEIGHTS[weights],
        kl=FixedKL(eta) if target_kl is None else AdaptiveKL(eta, target_kl, horizon),
        epochs=epochs,
        minibatch=minibatch,
        reference=True,
        critic=True,
        rescale=_rescale(rescale, score_clip),
        settings=settings,
    )


def _rescale(name: str, score_clip: float | None) -> Rescale | None:
    rescale = _RESCALES[name]
    if score_clip is None:
        return rescale

    def clipped(credit_B: Tensor, seen: moments.Moments) -> Tensor:
        credit_B = credit_B if rescale is None else rescale(credit_B, seen)
        return credit_B.clamp(-score_clip, score_clip)

    return clipped


def _advantage(
    penalty: Callable[[Batch], Tensor], gamma: float, lam: float, whiten: bool, whiten_rewards: bool
) -> Advantage:
    def advantage(batch: Batch, eta: float) -> Targets:
        assert batch.value_BT is not None, "PPO needs a critic"
        reward_BT = token_rewards(batch.credit_B, penalty(batch), batch.mask_BT, eta)
        if whiten_rewards:
            reward_BT = masked.whiten(reward_BT, batch.mask_BT, shift_mean=False)
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
