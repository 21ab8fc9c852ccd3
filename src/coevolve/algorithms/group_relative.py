"""Policy gradients from a group of returns: the common builder of MAGRPO and its variants, GRPO, RLOO and REINFORCE.

A turn's credit is compared with its peers' (``maths.groups``), every token of the turn gets the difference as its
advantage, and one loss follows: plain REINFORCE, or PPO's clipped ratio where a batch is reused.
"""

from __future__ import annotations

from typing import Literal

from coevolve.algorithms.advantages import against_peers, per_policy
from coevolve.algorithms.losses import policy_gradient, with_kl
from coevolve.credit import CreditSpec, credit_name, credit_of
from coevolve.maths.groups import BASELINES, SCALES
from coevolve.maths.kl import ESTIMATORS
from coevolve.maths.loss_aggregation import LOSS_AGGREGATIONS
from coevolve.settings import Count, NotNegative, Positive, checked_call
from coevolve.types import Algorithm, Objective


@checked_call("algorithm")
def group_relative(
    *,
    baseline: Literal["mean", "loo", "max", "none"],
    std: Literal["none", "group", "agent"] = "none",
    credit: CreditSpec = "team_return",
    clip: Positive | None = None,
    epochs: Count = 1,
    minibatch: Count | None = None,
    loss_aggregation: Literal["sequence", "turn", "token"] = "sequence",
    beta: NotNegative = 0.0,
    kl: Literal["loss", "reward"] = "loss",
    estimator: Literal["k1", "k2", "k3"] = "k3",
) -> Algorithm:
    """A group-relative policy gradient as a value.

    baseline: what a return is compared with, in its group. std: divide by the standard deviation of the returns, of
    the group or of all the agent's turns. credit: a rule of ``coevolve.credit``; the team's return, or each agent its
    own (``own_return``). clip: PPO's clipped ratio; it is needed where ``epochs`` or ``minibatch`` reuse a batch.
    loss_aggregation: see ``maths.loss_aggregation``. beta: weight of the KL to the start model, none at 0; kl: as a
    term of the loss, or taken from the return before it is compared; estimator: ``maths.kl``. Raises ValueError for
    settings out of range.
    """
    settings = {**locals(), "credit": credit_name(credit)}
    if clip is None and (epochs > 1 or minibatch is not None):
        raise ValueError("algorithm: epochs and minibatch take several steps on one batch; set clip, PPO's ratio, too")
    penalty = ESTIMATORS[estimator]
    rule = against_peers(BASELINES[baseline], SCALES[std], penalty if kl == "reward" else None)
    loss = policy_gradient(clip)
    return Algorithm(
        credit=credit_of(credit),
        advantage=per_policy(rule, beta),
        objective=Objective(
            loss=with_kl(loss, penalty) if kl == "loss" and beta > 0 else loss,
            loss_aggregation=LOSS_AGGREGATIONS[loss_aggregation],
            epochs=epochs,
            minibatch=minibatch,
        ),
        reference=beta > 0,
        settings=settings,
    )
