"""Turns compared with their peers: baselines and scales per group. Letters: B turns, N groups.

peers_B numbers the group of each turn, 0 to N - 1; G is the size of a turn's group.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_FLAT = 1e-5
"""Returns of a group closer to each other than this share of their size differ by rounding, not by worth."""


def size(peers_B: Tensor) -> Tensor:
    """G of each turn's group; shape B."""
    return torch.bincount(peers_B)[peers_B]


def group_mean(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """Mean credit of each turn's group; shape B."""
    assert credit_B.shape == peers_B.shape and credit_B.ndim == 1, (credit_B.shape, peers_B.shape)
    total_N = torch.zeros(int(peers_B.max()) + 1, dtype=credit_B.dtype).index_add(0, peers_B, credit_B)
    return total_N[peers_B] / size(peers_B)


def less_mean(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """R - mean: MAGRPO (arXiv 2508.04652, equation 1). In expectation (G - 1) / G of the gradient."""
    return credit_B - group_mean(credit_B, peers_B)


def less_others(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """R - mean of the others: leave-one-out (arXiv 2402.14740). Unbiased. A turn alone in its group gets 0."""
    size_B = size(peers_B)
    return less_mean(credit_B, peers_B) * size_B / (size_B - 1).clamp(min=1)


def less_max(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """R - max: never positive, so the best of a group is kept and the others are pushed away."""
    assert credit_B.shape == peers_B.shape and credit_B.ndim == 1, (credit_B.shape, peers_B.shape)
    most_N = torch.full((int(peers_B.max()) + 1,), -torch.inf, dtype=credit_B.dtype)
    return credit_B - most_N.scatter_reduce(0, peers_B, credit_B, "amax")[peers_B]


def as_it_is(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """R: REINFORCE without a baseline."""
    return credit_B


def no_scale(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """1 everywhere."""
    return torch.ones_like(credit_B)


def group_std(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """Standard deviation (over G) of the credits of each turn's group, as in GRPO (arXiv 2402.03300); 1 where equal."""
    mean_B = group_mean(credit_B, peers_B)
    std_B = group_mean((credit_B - mean_B).square(), peers_B).sqrt()
    return torch.where(flat(credit_B, peers_B), torch.ones_like(std_B), std_B)


def agent_std(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """One number for the policy: root mean square distance of its turns to their group's mean; 1 if all are 0.

    Turns alone in their group have no distance to count.

    Normalising by agent instead of by group keeps the weight of groups that differ little small (arXiv 2602.08847
    normalises by agent too, around the agent's mean).
    """
    within_B = credit_B - group_mean(credit_B, peers_B)
    if bool(flat(credit_B, peers_B).all()):
        return torch.ones_like(credit_B)
    compared_B = size(peers_B) > 1
    return within_B[compared_B].square().mean().sqrt().expand_as(credit_B)


def flat(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """True for turns whose group has no spread beyond rounding, so no signal; shape B."""
    mean_B = group_mean(credit_B, peers_B)
    deviation_B = group_mean((credit_B - mean_B).square(), peers_B).sqrt()
    return deviation_B <= _FLAT * group_mean(credit_B.abs(), peers_B)


Compare = Callable[[Tensor, Tensor], Tensor]
BASELINES: dict[str, Compare] = {"mean": less_mean, "loo": less_others, "max": less_max, "none": as_it_is}
SCALES: dict[str, Compare] = {"none": no_scale, "group": group_std, "agent": agent_std}
