"""Policy gradients from a group of returns: the common builder of MAGRPO and its variants, GRPO, RLOO and REINFORCE.

A turn's credit is compared with its peers' (``maths.groups``), every token of the turn gets the difference as its
advantage, and one loss follows: plain REINFORCE, or PPO's clipped ratio where a batch is reused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from coevolve.maths import groups
from coevolve.maths.credit import Worth, own_reward, team_reward, tree_to_go
from coevolve.maths.kl import ESTIMATORS, FixedKL
from coevolve.maths.losses import clipped_policy, reference_kl, score_function
from coevolve.maths.weights import WEIGHTS
from coevolve.settings import Count, Fraction, NotNegative, Positive, checked_call
from coevolve.types import Advantage, Algorithm, Batch, Loss, Outputs, Targets

_WORTHS: dict[str, Worth] = {"team": team_reward, "own": own_reward}


@checked_call("algorithm")
def group_relative(
    *,
    baseline: Literal["mean", "loo", "max", "none"],
    std: Literal["none", "group", "agent"] = "none",
    credit: Literal["team", "own"] = "team",
    gamma: Fraction = 1.0,
    clip: Positive | None = None,
    epochs: Count = 1,
    minibatch: Count | None = None,
    weights: Literal["sequence", "turn", "token"] = "sequence",
    beta: NotNegative = 0.0,
    kl: Literal["loss", "reward"] = "loss",
    estimator: Literal["k1", "k2", "k3"] = "k3",
) -> Algorithm:
    """A group-relative policy gradient as a value.

    baseline: what a return is compared with, in its group. std: divide by the standard deviation of the returns, of
    the group or of all the agent's turns. credit: the team's reward, or each agent its own. gamma: discount from one
    joint to the next. clip: PPO's clipped ratio; it is needed where ``epochs`` or ``minibatch`` reuse a batch. weights:
    see ``maths.weights``. beta: weight of the KL to the start model, none at 0; kl: as a term of the loss, or taken
    from the return before it is compared; estimator: ``maths.kl``. Raises ValueError for settings out of range.
    """
    settings = dict(locals())
    if clip is None and (epochs > 1 or minibatch is not None):
        raise ValueError("algorithm: epochs and minibatch take several steps on one batch; set clip, PPO's ratio, too")
    return Algorithm(
        credit=tree_to_go(gamma, _WORTHS[credit]),
        advantage=_advantage(baseline, groups.SCALES[std], ESTIMATORS[estimator] if kl == "reward" else None),
        loss=_loss(clip, ESTIMATORS[estimator] if kl == "loss" else None),
        weights=WEIGHTS[weights],
        kl=FixedKL(beta),
        epochs=epochs,
        minibatch=minibatch,
        reference=beta > 0,
        settings=settings,
    )


def _advantage(baseline: str, scale: groups.Scale, penalty: Callable[[Tensor], Tensor] | None) -> Advantage:
    compare = groups.BASELINES[baseline]

    def advantage(batch: Batch, beta: float) -> Targets:
        signal = {} if compare is groups.as_it_is else _signal(batch)
        if signal.get("groups_of_one") == 1.0:
            raise ValueError(
                "every turn is alone in its group, so there is nothing to compare it with; set members to at least 2, "
                "use a play that samples several continuations (tree, best_of), or, where a role rarely speaks, more "
                "problems a step"
            )
        credit_B = batch.credit_B
        if penalty is not None and beta > 0:
            credit_B = credit_B - beta * (penalty(_log_ratio(batch)) * batch.mask_BT).sum(1)
        adv_B = compare(credit_B, batch.peers_B) / scale(credit_B, batch.peers_B, batch.paid_B)
        return Targets(adv_B[:, None] * batch.mask_BT, eta=beta, metrics=signal)

    return advantage


def _log_ratio(batch: Batch) -> Tensor:
    assert batch.logp_ref_BT is not None, "a KL penalty needs a reference"
    return (batch.logp_BT - batch.logp_ref_BT).masked_fill(~batch.mask_BT, 0.0)


def _signal(batch: Batch) -> dict[str, float]:
    """Which share of the turns had nobody to be compared with, and which only equals: neither teaches anything."""
    alone_B = groups.size(batch.peers_B) == 1
    flat_B = groups.flat(batch.credit_B, batch.peers_B, batch.paid_B) & ~alone_B
    return {"groups_of_one": float(alone_B.float().mean()), "groups_flat": float(flat_B.float().mean())}


def _loss(clip: float | None, penalty: Callable[[Tensor], Tensor] | None) -> Loss:
    def policy_loss(
        out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if clip is None:
            return score_function(out.logp_BT, targets.adv_BT, batch.mask_BT, weight_BT), {}
        loss, clipped = clipped_policy(out.logp_BT, batch.logp_BT, targets.adv_BT, batch.mask_BT, weight_BT, clip)
        return loss, {"clip_fraction": clipped}

    def loss(out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        total, metrics = policy_loss(out, batch, targets, weight_BT)
        metrics = {"loss/policy": total.detach(), **metrics}
        if penalty is not None and targets.eta > 0:
            assert batch.logp_ref_BT is not None, "a KL penalty needs a reference"
            term = reference_kl(out.logp_BT, batch.logp_ref_BT, batch.mask_BT, weight_BT, penalty)
            metrics["loss/kl"] = term.detach()
            total = total + targets.eta * term
        return total, metrics

    return loss
