"""Checked calls of an algorithm's loss aggregation (token weights) and of its loss on a micro-batch.

Both may be the user's own code. Letters: B rows, T action tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

from torch import Tensor

from coevolve.faults import blame
from coevolve.files import shown
from coevolve.types import Batch, Objective, Outputs, Targets

OURS = frozenset({"loss", "grad_norm", "entropy", "drift", "lr", "updates"})
"""The metrics that a learner reports itself (``LocalLearner.update``), which a loss's own must not replace."""


def token_weights(objective: Objective, batch: Batch, where: str) -> Tensor:
    """Return the weight of each token of a mini-batch, [B, T]. where: policy and step, for error messages.

    Raises ValueError if the loss aggregation raises or returns anything else.
    """
    with blame(f"the loss aggregation, {where}"):
        found: Any = objective.loss_aggregation(batch)
        want = list(batch.mask_BT.shape)
        if not isinstance(found, Tensor) or list(found.shape) != want:
            raise ValueError(f"it returned {_said(found)}; want a tensor of the shape {want}, a weight for each token")
    return found


def loss_of(
    objective: Objective, out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor, where: str
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Return a micro-batch's loss and metrics. Raises ValueError if the loss function fails or returns anything
    else."""
    with blame(f"the loss, {where}"):
        found: Any = objective.loss(out, batch, targets, weight_BT)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise ValueError(f"it returned {_said(found)}; want a scalar and the metrics, such as `return loss, {{}}`")
        loss, metrics = found
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ValueError(f"it returned {_said(loss)}; want a scalar, the weighted sum over the tokens")
        if not loss.requires_grad:
            raise ValueError("its scalar has no gradient; want one made of what the policy says (`out.logp_BT`)")
        if not isinstance(metrics, Mapping):
            raise ValueError(f"its metrics are {_said(metrics)}; want a mapping from names to scalars")
        for key, value in metrics.items():
            if key in OURS:
                raise ValueError(
                    f"its metric {key!r} has the name of one of the learner's; want another, 'loss/{key}' for a "
                    "term of the loss"
                )
            if not isinstance(value, Real) and not (isinstance(value, Tensor) and value.numel() == 1):
                raise ValueError(f"its metric {key!r} is {_said(value)}; want a scalar")
    return loss, metrics


def _said(value: Any) -> str:
    """Return a short description of a value for a message: a tensor by its shape."""
    return f"a tensor of the shape {list(value.shape)}" if isinstance(value, Tensor) else shown(value)
