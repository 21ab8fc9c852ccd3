"""Losses, and terms that are added to them. Letters: B turns, T action tokens.

Each is a module-level function or a ``partial`` of one, so that it can be pickled for learners in other processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from coevolve.late import Tensor
from coevolve.maths import mismatch
from coevolve.maths.kl import k3
from coevolve.maths.losses import Clip, Surrogate, clipped_policy, clipped_value, reference_kl, score_function
from coevolve.types import Batch, Loss, Outputs, Targets

Found = tuple[Tensor, dict[str, Tensor]]

KL_WEIGHT = "kl_weight_B"
"""The column of ``Targets`` with each row's weight of a KL in the loss (``with_full_kl``)."""


def policy_gradient(clip: Clip | None = None, surrogate: Surrogate = clipped_policy) -> Loss:
    """Return the policy gradient loss: REINFORCE, or with ``clip`` PPO's clipped ratio or another surrogate
    (``maths.losses.RATIOS``), for batches that are used several times."""
    return _score_function if clip is None else partial(_clipped_ratio, clip=clip, surrogate=surrogate)


def reused(epochs: int, minibatch: int | None) -> bool:
    """Return whether a batch is used in several optimiser steps."""
    return epochs > 1 or minibatch is not None


def check_reuse(clip: Clip | None, epochs: int, minibatch: int | None) -> None:
    """Raise ValueError if a batch would be used several times without a ratio."""
    if clip is None and reused(epochs, minibatch):
        raise ValueError("algorithm: epochs and minibatch take several steps on one batch; set clip, PPO's ratio, too")


def with_value(loss: Loss, clip: float, coef: float) -> Loss:
    """Return the loss plus coef times the clipped value loss."""
    return partial(_with_value, loss=loss, clip=clip, coef=coef)


def with_turn_value(loss: Loss, clip: float | None, coef: float) -> Loss:
    """Return the loss plus coef times half the squared error of a critic of whole turns, on the added rows only.

    Values are those before the rows' first token. clip: as in ``with_value``, or None.
    """
    return partial(_with_turn_value, loss=loss, clip=math.inf if clip is None else clip, coef=coef)


def with_kl(loss: Loss, estimator: Callable[[Tensor], Tensor]) -> Loss:
    """Return the loss plus ``Targets.eta`` times the KL to the reference. estimator: one of ``kl.ESTIMATORS``."""
    return partial(_with_kl, loss=loss, estimator=estimator)


def with_full_kl(loss: Loss) -> Loss:
    """Return the loss plus a weight times the KL to the reference over the whole vocabulary, its gradient included.

    The weight is ``Targets.columns[KL_WEIGHT]`` where the advantage gives one, else ``Targets.eta``. For an
    ``Objective`` with ``kl``.
    """
    return partial(_with_full_kl, loss=loss)


def with_trust(loss: Loss) -> Loss:
    """Return the loss plus ``Targets.columns["trust_B"]`` times KL(sampling policy || current policy), estimated from
    the sampled tokens (``kl.k3``)."""
    return partial(_with_trust, loss=loss)


def with_mismatch(loss: Loss, bound: mismatch.Bound | None) -> Loss:
    """Return the loss corrected for a sampler whose log-probabilities differ from the learner's: token weights are
    multiplied by a bounded ratio (``maths.mismatch``), and ratios in the loss are to the learner's log-probabilities.

    These are ``Batch.logp_old_BT`` or, without it, the current ones, which are the same in the only step on a batch.
    bound: None returns the loss itself.
    """
    return loss if bound is None else partial(_with_mismatch, loss=loss, bound=bound)


def with_entropy(loss: Loss, coef: float) -> Loss:
    """Return the loss less coef times the entropy of the tokens' distributions, in nats; at 0 the loss itself."""
    return partial(_with_entropy, loss=loss, coef=coef) if coef > 0 else loss


def _score_function(out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor) -> Found:
    found = score_function(out.logp_BT, targets.adv_BT, batch.mask_BT, weight_BT)
    return found, {"loss/policy": found.detach()}


def _clipped_ratio(
    out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor, *, clip: Clip, surrogate: Surrogate
) -> Found:
    found, clipped = surrogate(out.logp_BT, batch.logp_BT, targets.adv_BT, batch.mask_BT, weight_BT, clip)
    return found, {"loss/policy": found.detach(), "clip_fraction": clipped}


def _with_value(
    out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor, *, loss: Loss, clip: float, coef: float
) -> Found:
    assert out.value_BT is not None and batch.value_BT is not None and targets.return_BT is not None
    total, metrics = loss(out, batch, targets, weight_BT)
    value = clipped_value(out.value_BT, batch.value_BT, targets.return_BT, batch.mask_BT, weight_BT, clip)
    return total + coef * value, {**metrics, "loss/value": value.detach()}


def _with_turn_value(
    out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor, *, loss: Loss, clip: float, coef: float
) -> Found:
    total, metrics = loss(out, batch, targets, weight_BT)
    if out.value_BT is None or batch.value_BT is None:  # this policy is no critic
        return total, dict(metrics)
    assert targets.return_BT is not None
    asked_BT = weight_BT * batch.extra_B[:, None]
    value = clipped_value(out.value_BT, batch.value_BT, targets.return_BT, batch.mask_BT, asked_BT, clip)
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


def _with_full_kl(out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor, *, loss: Loss) -> Found:
    assert out.kl_BT is not None, "a full KL in the loss needs an objective with kl, and a reference"
    total, metrics = loss(out, batch, targets, weight_BT)
    kl_B = (out.kl_BT * weight_BT).sum(1)
    term = (targets.columns.get(KL_WEIGHT, targets.eta) * kl_B).sum()
    return total + term, {**metrics, "loss/kl": kl_B.sum().detach()}


def _with_entropy(out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor, *, loss: Loss, coef: float) -> Found:
    assert out.entropy_BT is not None, "an entropy bonus needs entropies"
    total, metrics = loss(out, batch, targets, weight_BT)
    entropy = (out.entropy_BT * weight_BT).sum()
    return total - coef * entropy, {**metrics, "loss/entropy": -entropy.detach()}


def _with_trust(out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor, *, loss: Loss) -> Found:
    total, metrics = loss(out, batch, targets, weight_BT)
    moved_BT = k3((batch.logp_BT - out.logp_BT).masked_fill(~batch.mask_BT, 0.0)) * weight_BT
    term = (targets.columns["trust_B"][:, None] * moved_BT).sum()
    return total + term, {**metrics, "loss/trust": moved_BT.sum().detach()}


def _with_mismatch(
    out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor, *, loss: Loss, bound: mismatch.Bound
) -> Found:
    old_BT = out.logp_BT.detach() if batch.logp_old_BT is None else batch.logp_old_BT
    sampled_BT = batch.mask_BT & ~batch.extra_B[:, None]
    found_BT, said = mismatch.weight(old_BT, batch.logp_BT, sampled_BT, bound)
    total, metrics = loss(out, batch.replace(logp_BT=old_BT), targets, weight_BT * found_BT)
    sums = {f"mismatch/{name}": (said[name] * weight_BT).sum() for name in ("kl", "masked")}
    return total, {**metrics, **sums, "mismatch/max": said["max"].max()}
