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

from functools import partial
from typing import Literal

from coevolve.algorithms.advantages import Rescale, against_critic, full_kl, log_ratio, per_policy, rescaled
from coevolve.algorithms.losses import policy_gradient, with_value
from coevolve.credit import CreditSpec, credit_name, credit_of
from coevolve.late import Tensor
from coevolve.maths import moments
from coevolve.maths.kl import adapted
from coevolve.maths.loss_aggregation import LOSS_AGGREGATIONS
from coevolve.settings import Count, Fraction, NotNegative, Positive, checked_call
from coevolve.types import Algorithm, Objective

_RESCALES: dict[str, Rescale | None] = {
    "none": None,
    "scale": moments.scale,
    "normalise": moments.normalise,
}
_PENALTIES = {"full": full_kl, "sampled": log_ratio}


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
    credit: CreditSpec = "own_reward",
    rescale: Literal["none", "scale", "normalise"] = "none",
    loss_aggregation: Literal["token", "turn"] = "token",
    penalty: Literal["full", "sampled"] = "full",
) -> Algorithm:
    """PPO as a value. Defaults are the IMDB column of the paper's table 1.

    eta: weight of the KL penalty; with target_kl (nats per turn) it adapts over ``horizon`` turns. minibatch: turns per
    optimiser step, all of them if None. whiten: advantages to mean 0, variance 1 over the batch's tokens. credit: what
    a turn is paid, a rule of ``coevolve.credit``. rescale: credit divided by its running standard deviation
    ("normalise" also centres it). score_clip: credit, rescaled or not, is at most this far from 0. whiten_rewards: the
    tokens' rewards, KL included, divided by their standard deviation over the batch around their mean, which stays.
    loss_aggregation: does every token count alike, or every turn. penalty: what eta multiplies at each token, the KL
    over the whole vocabulary (the paper) or the log-ratio of the sampled token, which has the same mean and the
    gradient of the KL.
    Raises ValueError for a setting out of range.
    """
    settings = {**locals(), "credit": credit_name(credit)}
    rule = against_critic(_PENALTIES[penalty], gamma, lam, whiten=whiten, whiten_rewards=whiten_rewards)
    adapt = None if target_kl is None else partial(adapted, target=target_kl, horizon=horizon)
    advantage, rescale_credit = per_policy(rule, eta, adapt), _rescale(rescale, score_clip)
    return Algorithm(
        credit=credit_of(credit),
        advantage=rescaled(advantage, rescale_credit) if rescale_credit else advantage,
        objective=Objective(
            loss=with_value(policy_gradient(clip), value_clip, value_coef),
            loss_aggregation=LOSS_AGGREGATIONS[loss_aggregation],
            epochs=epochs,
            minibatch=minibatch,
        ),
        reference=True,
        critic=True,
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
