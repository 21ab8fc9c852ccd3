"""Losses, and terms that are added to them. Letters: B turns, T action tokens.

Each is a function of a module with its settings bound, so that learners in other processes can be sent it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from coevolve.late import Tensor
from coevolve.maths.losses import clipped_policy, clipped_value, reference_kl, score_function
from coevolve.types import Batch, Loss, Outputs, Targets

Found = tuple[Tensor, dict[str, Tensor]]


def policy_gradient(clip: float | None = None) -> Loss:
    """REINFORCE on the advantages; with ``clip`` PPO's clipped ratio, for batches that are used several times."""
    return _score_function if clip is None else partial(_clipped_ratio, clip=clip)


def with_value(loss: Loss, clip: float, coef: float) -> Loss:
    """The loss plus coef times the clipped error of the critic."""
    return partial(_with_value, loss=loss, clip=clip, coef=coef)


def with_kl(loss: Loss, estimator: Callable[[Tensor], Tensor]) -> Loss:
    """The loss plus ``Targets.eta`` times the KL to the reference. estimator: one of ``kl.ESTIMATORS``."""
    return partial(_with_kl, loss=loss, estimator=estimator)


def _score_function(out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor) -> Found:
    found = score_function(out.logp_BT, targets.adv_BT, batch.mask_BT, weight_BT)
    return found, {"loss/policy": found.detach()}


def _clipped_ratio(out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor, *, clip: float) -> Found:
    found, clipped = clipped_policy(out.logp_BT, batch.logp_BT, targets.adv_BT, batch.mask_BT, weight_BT, clip)
    return found, {"loss/policy": found.detach(), "clip_fraction": clipped}


def _with_value(
    out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor, *, loss: Loss, clip: float, coef: float
) -> Found:
    assert out.value_BT is not None and batch.value_BT is not None and targets.return_BT is not None
    total, metrics = loss(out, batch, targets, weight_BT)
    value = clipped_value(out.value_BT, batch.value_BT, targets.return_BT, batch.mask_BT, weight_BT, clip)
    return total + coef * value, {**metrics, "loss/value": value.detach()}


def _with_kl(
    out: Outputs,
    batch: Batch,
    targets: Targets,
    weight_BT: Tensor,
    *,
    loss: Loss,
    estimator: Callable[[Tensor], Tensor],
) -> Found:
    assert batch.logp_ref_BT is not None, "a KL penalty needs a reference"
    total, metrics = loss(out, batch, targets, weight_BT)
    term = reference_kl(out.logp_BT, batch.logp_ref_BT, batch.mask_BT, weight_BT, estimator)
    return total + targets.eta * term, {**metrics, "loss/kl": term.detach()}
