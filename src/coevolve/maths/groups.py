"""Turns compared with their peers: baselines and scales per group. Letters: B turns, N groups.

peers_B numbers the group of each turn, 0 to N - 1; G is the size of a turn's group.
"""

from __future__ import annotations

from collections.abc import Callable

from coevolve.late import Tensor, torch

_SINGLE = 4 * 2.0**-23
"""Credits of a group closer than this share of the largest differ by rounding to float32, of themselves or of a reward
that a model computed: 1e6 and 1e6 + 1 differ, 1e6 and 1e6 + 1/4 do not."""

_DOUBLE = 4096 * 2.0**-52
"""Credits closer than this share of the rewards they were summed from, signs aside, differ by the order of summing:
0.1 + 0.2 - 0.3 is 6e-17 and 0.2 - 0.3 + 0.1 is 3e-17, where both are 0. Enough for sums of some thousand terms."""


def size(peers_B: Tensor) -> Tensor:
    """G of each turn's group; shape B."""
    return torch.bincount(peers_B)[peers_B]


def group_mean(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """Mean credit of each turn's group, in float64: what is left of a large mean is often small; shape B."""
    assert credit_B.shape == peers_B.shape and credit_B.ndim == 1, (credit_B.shape, peers_B.shape)
    total_N = torch.zeros(int(peers_B.max()) + 1, dtype=torch.float64).index_add(0, peers_B, credit_B.double())
    return total_N[peers_B] / size(peers_B)


def group_max(x_B: Tensor, peers_B: Tensor) -> Tensor:
    """The largest of each turn's group; shape B."""
    assert x_B.shape == peers_B.shape and x_B.ndim == 1, (x_B.shape, peers_B.shape)
    most_N = torch.full((int(peers_B.max()) + 1,), -torch.inf, dtype=x_B.dtype)
    return most_N.scatter_reduce(0, peers_B, x_B, "amax")[peers_B]


def less_mean(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """R - mean: MAGRPO (arXiv 2508.04652, equation 1). In expectation (G - 1) / G of the gradient."""
    return (credit_B - group_mean(credit_B, peers_B)).to(credit_B.dtype)


def less_others(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """R - mean of the others: leave-one-out (arXiv 2402.14740). Unbiased. A turn alone in its group gets 0."""
    size_B = size(peers_B)
    return less_mean(credit_B, peers_B) * size_B / (size_B - 1).clamp(min=1)


def less_max(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """R - max: never positive, so the best of a group is kept and the others are pushed away."""
    return credit_B - group_max(credit_B, peers_B)


def as_it_is(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """R: REINFORCE without a baseline."""
    return credit_B


def no_scale(credit_B: Tensor, peers_B: Tensor, paid_B: Tensor | None = None) -> Tensor:
    """1 everywhere."""
    return torch.ones_like(credit_B)


def group_std(credit_B: Tensor, peers_B: Tensor, paid_B: Tensor | None = None) -> Tensor:
    """Standard deviation (over G) of the credits of each turn's group, as in GRPO (arXiv 2402.03300); 1 where flat."""
    std_B = group_mean(less_mean(credit_B, peers_B).double().square(), peers_B).sqrt().to(credit_B.dtype)
    return torch.where(flat(credit_B, peers_B, paid_B), torch.ones_like(std_B), std_B)


def agent_std(credit_B: Tensor, peers_B: Tensor, paid_B: Tensor | None = None) -> Tensor:
    """One number for the policy: root mean square distance of its turns to their group's mean; 1 if all are flat.

    Turns alone in their group have no distance to count.

    Normalising by agent instead of by group keeps the weight of groups that differ little small (arXiv 2602.08847
    normalises by agent too, around the agent's mean).
    """
    within_B = less_mean(credit_B, peers_B)
    if bool(flat(credit_B, peers_B, paid_B).all()):
        return torch.ones_like(credit_B)
    compared_B = size(peers_B) > 1
    return within_B[compared_B].double().square().mean().sqrt().to(credit_B.dtype).expand_as(credit_B)


def flat(credit_B: Tensor, peers_B: Tensor, paid_B: Tensor | None = None) -> Tensor:
    """True for turns whose group has no spread beyond rounding, so no signal; shape B. paid_B: as in ``Batch``."""
    spread_B = group_max(credit_B, peers_B) + group_max(-credit_B, peers_B)
    rounding_B = _SINGLE * group_max(credit_B.abs(), peers_B) + torch.finfo(torch.float32).tiny
    if paid_B is not None:
        rounding_B = rounding_B + _DOUBLE * group_max(paid_B, peers_B)
    return spread_B <= rounding_B


Compare = Callable[[Tensor, Tensor], Tensor]
Scale = Callable[[Tensor, Tensor, Tensor | None], Tensor]
BASELINES: dict[str, Compare] = {"mean": less_mean, "loo": less_others, "max": less_max, "none": as_it_is}
SCALES: dict[str, Scale] = {"none": no_scale, "group": group_std, "agent": agent_std}
