"""PPO on whole responses with a KL penalty per token: the single-agent baseline, and the base of CORY.

A2C and REINFORCE++, at the end of the file, are PPO with other defaults; docs/objectives.md numbers their deviations.

Equations: rewards -eta KL_t at every token and the credit at the last (CORY, arXiv 2410.06101, section 2); GAE
(1506.02438); clipped surrogate and value loss (1707.06347). Deviations from the released CORY code, which builds on an
early TRL:

1. A mini-batch whose mean ratio exceeds 10 is trained on like any other; that code silently replaces its loss by 0.
2. The value head starts at zero, so the first advantages are rewards to go, discounted by gamma lambda.
3. Ratios are to the distribution that was sampled from; a repetition penalty is off unless asked for.
4. eta is fixed unless ``target_kl`` is given. That code always adapts it (target 6), by at most 0.5 % an iteration.
5. ``whiten_rewards`` leaves padding at 0. That code adds the mean to padding as well, from where it leaks into the
   advantages. ``score_clip`` is TRL's (``PPOConfig`` and ``PPOTrainer.step`` of releases up to 0.11): after scaling.
6. The KL of a token's own position is in the loss (``penalty: exact``); as a reward (``full``, as in the paper) it has
   no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from coevolve.algorithms.advantages import Rescale, against_critic, per_policy, rescaled, without_critic
from coevolve.algorithms.exclusions import check_critic
from coevolve.algorithms.losses import (
    check_reuse,
    policy_gradient,
    reused,
    with_entropy,
    with_full_kl,
    with_mismatch,
    with_value,
)
from coevolve.algorithms.penalties import PENALTIES, beside_kl
from coevolve.algorithms.value_norm import in_units, units
from coevolve.algorithms.variant import variant
from coevolve.credit import CreditSpec, credit_name, credit_of
from coevolve.late import Tensor
from coevolve.maths import moments
from coevolve.maths.kl import adapted
from coevolve.maths.loss_aggregation import LOSS_AGGREGATIONS
from coevolve.maths.mismatch import BOUNDS
from coevolve.settings import Count, Fraction, NotNegative, Positive, checked_call
from coevolve.types import Advantage, Algorithm, Batch, Credit, Objective

_RESCALES: dict[str, Rescale | None] = {
    "none": None,
    "scale": moments.scale,
    "normalise": moments.normalise,
}


@checked_call("algorithm")
def ppo(
    *,
    eta: NotNegative = 0.3,
    target_kl: Positive | None = None,
    horizon: Count = 10000,
    gamma: Fraction = 1.0,
    lam: Fraction | None = None,
    clip: Positive | tuple[Positive, Positive] | None = 0.2,
    value_clip: Positive = 0.2,
    value_coef: NotNegative = 0.1,
    value_norm: bool = False,
    epochs: Count = 4,
    minibatch: Count | None = None,
    score_clip: Positive | None = None,
    whiten_rewards: bool = False,
    whiten: bool = True,
    credit: CreditSpec = "own_reward",
    rescale: Literal["none", "scale", "normalise"] = "none",
    loss_aggregation: Literal["token", "turn"] = "token",
    penalty: Literal["full", "sampled", "exact"] = "exact",
    entropy: NotNegative = 0.0,
    critic: bool = True,
    mismatch: Literal["none", "tis", "icepop", "sequence"] = "none",
) -> Algorithm:
    """PPO with a KL penalty per token. Defaults are the IMDB column of table 1 of the CORY paper.

    eta: weight of the KL penalty; with target_kl (nats per turn) it adapts over ``horizon`` turns. gamma, lam: of GAE
    over tokens; lam None is 0.95 with a critic and 1 without. clip: of the ratio, one number or (below, above); None:
    no ratio, for one pass over each batch (A2C). value_norm: values, and ``value_clip``, are in standard deviations of
    the returns so far. minibatch: turns per optimiser step, all of them if None. whiten: scale advantages to mean 0,
    variance 1 over the batch's tokens. credit: a rule of ``coevolve.credit``. rescale: divide credit by its running
    standard deviation ("normalise" also centres it). score_clip: clip credit, after rescaling, to this distance from 0.
    whiten_rewards: divide the tokens' rewards, KL included, by their standard deviation over the batch, keeping their
    mean. loss_aggregation: whether every token or every turn has the same weight. penalty: the KL that eta multiplies:
    exact, over the vocabulary, with later positions in the reward and a token's own in the loss, which takes a forward
    of the reference in every pass; sampled, the log-ratio of the sampled token, with the same expected gradient and
    more variance; or full (the paper), the KL of a token's own position as a reward, which has no gradient there.
    entropy: weight of an entropy bonus in the loss. critic: False has no value head; advantages are rewards to go,
    discounted by ``gamma``. mismatch: correction for a sampler whose log-probabilities differ from the learner's
    (``maths.mismatch``).
    Raises ValueError for a setting out of range, and for two that exclude each other.
    """
    return _ppo({**locals(), "credit": credit_name(credit), "lam": _lam(lam, critic)}, credit_of(credit))


def _lam(lam: float | None, critic: bool) -> float:
    """Return GAE's lambda. It weighs values against returns; without a critic, all values 0, it would be a second
    discount, under which the first of 20 tokens had .38 of the credit."""
    if lam is None:
        return 0.95 if critic else 1.0
    if lam != 1 and not critic:
        raise ValueError(f"algorithm: lam is {lam}, which weighs a critic's values, and critic is false; leave lam "
                         "out, or discount by gamma")  # fmt: skip
    return lam


def _ppo(s: Mapping[str, Any], credit: Credit) -> Algorithm:
    """Build the algorithm. s: the settings of ``ppo``."""
    check_reuse(s["clip"], s["epochs"], s["minibatch"])
    held = PENALTIES[s["penalty"]]
    in_loss = held.in_loss and s["eta"] > 0
    if in_loss and s["whiten_rewards"]:
        raise ValueError(
            f"algorithm: whiten_rewards divides rewards, and penalty {s['penalty']} has a part in the loss too; "
            "set penalty: sampled"
        )
    check_critic(ppo, s)
    return Algorithm(
        credit=credit,
        advantage=_advantage(s, held.paid, in_loss),
        objective=_objective(s, in_loss),
        reference=True,
        critic=s["critic"],
        caution=held.caution if s["eta"] > 0 else "",
        kept=units if s["value_norm"] else None,
        logp_old=BOUNDS[s["mismatch"]] is not None and reused(s["epochs"], s["minibatch"]),
        settings=s,
    )


def _advantage(s: Mapping[str, Any], penalty: Callable[[Batch, float], Tensor], in_loss: bool) -> Advantage:
    """Return the advantage: GAE, or the reward to go without a critic; on rescaled credits if asked for."""
    whiten = s["whiten"] and not in_loss
    rule = against_critic(penalty, s["gamma"], s["lam"], whiten=whiten, whiten_rewards=s["whiten_rewards"])
    rule = rule if s["critic"] else without_critic(rule)
    rule = beside_kl(rule, s["whiten"]) if in_loss else rule
    adapt = None if s["target_kl"] is None else partial(adapted, target=s["target_kl"], horizon=s["horizon"])
    advantage, rescale = per_policy(rule, s["eta"], adapt), _rescale(s["rescale"], s["score_clip"])
    advantage = in_units(advantage) if s["value_norm"] else advantage
    return rescaled(advantage, rescale) if rescale else advantage


def _objective(s: Mapping[str, Any], in_loss: bool) -> Objective:
    """Return the objective: the clipped surrogate plus entropy, the KL of own positions and the value loss."""
    loss = with_entropy(with_mismatch(policy_gradient(s["clip"]), BOUNDS[s["mismatch"]]), s["entropy"])
    loss = with_full_kl(loss) if in_loss else loss
    return Objective(
        loss=with_value(loss, s["value_clip"], s["value_coef"]) if s["critic"] else loss,
        loss_aggregation=LOSS_AGGREGATIONS[s["loss_aggregation"]],
        epochs=s["epochs"],
        minibatch=s["minibatch"],
        kl=in_loss,
    )


def _rescale(name: str, score_clip: float | None) -> Rescale | None:
    rescale = _RESCALES[name]
    if score_clip is None:
        return rescale

    def clipped(credit_B: Tensor, seen: moments.Moments) -> Tensor:
        credit_B = credit_B if rescale is None else rescale(credit_B, seen)
        return credit_B.clamp(-score_clip, score_clip)

    return clipped


a2c = variant(
    "a2c",
    ppo,
    "A2C: the policy gradient against a critic, one pass over each batch without a ratio, and an entropy bonus.",
    clip=None,
    epochs=1,
    lam=1.0,
    value_coef=0.5,
    whiten=False,
    entropy=0.01,
    penalty="sampled",
)

reinforce_pp = variant(
    "reinforce_pp",
    ppo,
    "REINFORCE++: PPO without a critic; what is still to come, whitened over the whole batch, is the advantage.",
    critic=False,
    lam=1.0,
    eta=0.01,
    epochs=1,
    penalty="sampled",
)
