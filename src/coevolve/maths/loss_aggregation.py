"""Weights of the tokens of a batch in a loss, which is a weighted sum. Letters: B turns, T action tokens.

All of them multiply a turn by ``weight_B``, so that the many continuations of a tree do not outweigh its root.
"""

from __future__ import annotations

from coevolve.late import Tensor
from coevolve.types import Batch, LossAggregation

TINY = 1e-30
"""A lower bound of divisors, which are 0 if all turns have weight 0."""


def per_token(batch: Batch) -> Tensor:
    """Return the same weight for every token, with sum 1: long turns count more than short ones."""
    weight_BT = batch.mask_BT * batch.weight_B[:, None]
    return weight_BT / weight_BT.sum().clamp(min=TINY)


def per_turn(batch: Batch) -> Tensor:
    """Return the same weight for every turn, with sum 1: a token's is in proportion to 1 / (tokens of its turn)."""
    each_B = batch.weight_B / batch.mask_BT.sum(1).clamp(min=1) / batch.weight_B.sum().clamp(min=TINY)
    return batch.mask_BT * each_B[:, None]


def per_sequence(batch: Batch) -> Tensor:
    """Return weights that sum over a turn's tokens, then over an episode's weighted turns, then average over episodes.

    This is the policy gradient of the expected return (MAGRPO, arXiv 2508.04652, equation 2, G = episodes of a group).
    """
    return batch.mask_BT * (batch.weight_B / len(batch))[:, None]


LOSS_AGGREGATIONS: dict[str, LossAggregation] = {"token": per_token, "turn": per_turn, "sequence": per_sequence}
