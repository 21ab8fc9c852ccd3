"""How much each token of a batch counts in a loss that is a weighted sum. Letters: B turns, T action tokens.

All of them count a turn ``weight_B`` times, so that the many continuations of a tree do not outweigh its root.
"""

from __future__ import annotations

from coevolve.late import Tensor
from coevolve.types import Batch, LossAggregation

TINY = 1e-30
"""Instead of 0, where all turns count for nothing."""


def per_token(batch: Batch) -> Tensor:
    """Every token of the batch alike, weights of sum 1: long turns weigh more than short ones."""
    weight_BT = batch.mask_BT * batch.weight_B[:, None]
    return weight_BT / weight_BT.sum().clamp(min=TINY)


def per_turn(batch: Batch) -> Tensor:
    """Every turn alike, weights of sum 1: a token weighs 1 / (tokens of its turn)."""
    each_B = batch.weight_B / batch.mask_BT.sum(1).clamp(min=1) / batch.weight_B.sum().clamp(min=TINY)
    return batch.mask_BT * each_B[:, None]


def per_sequence(batch: Batch) -> Tensor:
    """Log-probabilities summed over a turn, then over an episode's turns by their weight, then averaged over episodes.

    This is the policy gradient of the expected return (MAGRPO, arXiv 2508.04652, equation 2, G = episodes of a group).
    """
    return batch.mask_BT * (batch.weight_B / len(batch))[:, None]


LOSS_AGGREGATIONS: dict[str, LossAggregation] = {"token": per_token, "turn": per_turn, "sequence": per_sequence}
