"""Baselines and scales per group of peers. Letters: B turns, N groups.

peers_B numbers the group of each turn, 0 to N - 1; G is the size of a turn's group.
"""

from __future__ import annotations

from collections.abc import Callable

from coevolve.late import Tensor, torch

_SINGLE = 4 * 2.0**-23
"""Credits of a group that are closer than this fraction of the largest differ only by rounding to float32, their own or
that of a model's reward: 1e6 and 1e6 + 1 differ, 1e6 and 1e6 + 1/4 do not."""

_DOUBLE = 4096 * 2.0**-52
"""Credits closer than this fraction of the absolute rewards that they sum differ only by the order of summation: 0.1 +
0.2 - 0.3 is 6e-17 and 0.2 - 0.3 + 0.1 is 3e-17, where both are 0. Enough for sums of some thousand terms."""


def size(peers_B: Tensor) -> Tensor:
    """Return G of each turn's group; shape B."""
    return torch.bincount(peers_B)[peers_B]


def pairs(peers_B: Tensor, place_B: Tensor) -> Tensor:
    """Return a number for each turn, the same for turns with the same group and the same place; shape B."""
    number_B: Tensor = torch.unique(torch.stack([peers_B, place_B]), dim=1, return_inverse=True)[1]
    return number_B


def group_mean(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """Return the mean credit of each turn's group, in float64, as differences to a large mean may be small; shape B."""
    assert credit_B.shape == peers_B.shape and credit_B.ndim == 1, (credit_B.shape, peers_B.shape)
    zero_N = torch.zeros(int(peers_B.max()) + 1, dtype=torch.float64, device=credit_B.device)
    return zero_N.index_add(0, peers_B, credit_B.double())[peers_B] / size(peers_B)


def group_max(x_B: Tensor, peers_B: Tensor) -> Tensor:
    """Return the maximum of each turn's group; shape B."""
    assert x_B.shape == peers_B.shape and x_B.ndim == 1, (x_B.shape, peers_B.shape)
    lowest = -torch.inf if x_B.is_floating_point() else torch.iinfo(x_B.dtype).min
    most_N = torch.full((int(peers_B.max()) + 1,), lowest, dtype=x_B.dtype, device=x_B.device)
    return most_N.scatter_reduce(0, peers_B, x_B, "amax")[peers_B]


def less_mean(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """Return R - mean (MAGRPO, arXiv 2508.04652, equation 1). In expectation (G - 1) / G of the gradient."""
    return (credit_B - group_mean(credit_B, peers_B)).to(credit_B.dtype)


def less_others(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """Return R - mean of the others: leave-one-out (arXiv 2402.14740). Unbiased for groups of one
    size; a turn alone in its group gets 0."""
    size_B = size(peers_B)
    return less_mean(credit_B, peers_B) * size_B / (size_B - 1).clamp(min=1)


def less_max(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """Return R - max: 0 for the best of a group and negative for the others."""
    return credit_B - group_max(credit_B, peers_B)


def less_weighted(credit_B: Tensor, peers_B: Tensor, weight_B: Tensor, place_B: Tensor | None = None) -> Tensor:
    """Return R - weighted mean of the others. Unbiased. A turn without others gets 0. weight_B: positive.

    place_B: turns with the same number as the turn are not among its others: for several turns of one episode in a
    group, whose returns the turn may have changed. None: only the turn itself is left out.

    With the squared norm of each turn's score s = grad log pi as weight, this is (but for leaving the turn out) the
    constant of least variance, E[|s|^2 R] / E[|s|^2]. arXiv 2505.23585 uses the number of tokens for it, which is right
    if the scores of tokens have equal norms and are orthogonal.
    """
    weight_B, credit = weight_B.double(), credit_B.double()
    place_B = torch.arange(len(peers_B), device=peers_B.device) if place_B is None else place_B
    own_B = pairs(peers_B, place_B)

    def others(of_B: Tensor) -> Tensor:
        whole_B, mine_B = (size(key_B) * group_mean(of_B, key_B) for key_B in (peers_B, own_B))
        return whole_B - mine_B

    any_B = size(peers_B) > size(own_B)
    mean_B = others(weight_B * credit) / torch.where(any_B, others(weight_B), 1.0)
    return torch.where(any_B, credit - mean_B, 0.0).to(credit_B.dtype)


def less_shrunk(credit_B: Tensor, peers_B: Tensor, kind_B: Tensor, block_B: Tensor) -> Tensor:
    """Return R - (1 - l) (mean of the others) - l (mean of other groups' means): leave-one-out, shrunk to the batch.

    The James-Stein estimate of many means as a baseline (arXiv 2511.03710). l = v / (v + t): v is the variance of the
    mean of the others, the pooled variance within groups / (G - 1), and t the variance between groups, that of their
    means less the part due to chance. These, and the mean, are of groups of the same kind in other blocks, so that the
    baseline does not depend on the turn: unbiased. With fewer than two such groups l is 0.

    kind_B: groups of one kind (a role) are shrunk to each other. block_B: turns of different blocks are independent
    (``blocks``).
    """
    first_N = torch.stack([(peers_B == n).nonzero()[0, 0] for n in range(int(peers_B.max()) + 1)])
    size_N, mean_N = size(peers_B)[first_N].double(), group_mean(credit_B, peers_B)[first_N]
    squares_N = size_N * group_mean(less_mean(credit_B, peers_B).double().square(), peers_B)[first_N]
    kind_N, block_N = kind_B[first_N], block_B[first_N]
    # A group of one has no variance estimate.
    others_NN = ((kind_N[:, None] == kind_N) & (block_N[:, None] != block_N) & (size_N > 1)).double()
    count_N = others_NN.sum(1)
    prior_N = others_NN @ mean_N / count_N.clamp(min=1)
    within_N = others_NN @ squares_N / (others_NN @ (size_N - 1)).clamp(min=1)
    spread_N = (others_NN * (mean_N - prior_N[:, None]).square()).sum(1) / (count_N - 1).clamp(min=1)
    chance_N = within_N * (others_NN @ (1 / size_N)) / count_N.clamp(min=1)
    off_N = within_N / (size_N - 1).clamp(min=1)
    share_N = off_N / (off_N + (spread_N - chance_N).clamp(min=0)).clamp(min=torch.finfo(torch.float64).tiny)
    share_B = torch.where((count_N > 1) & (size_N > 1), share_N, 0.0)[peers_B]
    apart_B = less_others(credit_B, peers_B).double()
    alone_B = size(peers_B) == 1
    shrunk_B = (1 - share_B) * apart_B + share_B * (credit_B.double() - prior_N[peers_B])
    return torch.where(alone_B, apart_B, shrunk_B).to(credit_B.dtype)


def blocks(peers_B: Tensor, episode_B: Tensor) -> Tensor:
    """Return the same number for turns that share a group or an episode, directly or through others; shape B."""
    block_B = peers_B
    while True:
        least_B = -group_max(-block_B, episode_B)
        least_B = -group_max(-least_B, peers_B)
        if torch.equal(least_B, block_B):
            return block_B
        block_B = least_B


def no_scale(credit_B: Tensor, peers_B: Tensor, paid_B: Tensor | None = None) -> Tensor:
    """Return 1 for every turn."""
    return torch.ones_like(credit_B)


def group_std(credit_B: Tensor, peers_B: Tensor, paid_B: Tensor | None = None) -> Tensor:
    """Return the standard deviation (over G) of each turn's group, as in GRPO (arXiv 2402.03300); 1 where flat."""
    std_B = group_mean(less_mean(credit_B, peers_B).double().square(), peers_B).sqrt().to(credit_B.dtype)
    return torch.where(flat(credit_B, peers_B, paid_B), torch.ones_like(std_B), std_B)


def agent_std(credit_B: Tensor, peers_B: Tensor, paid_B: Tensor | None = None) -> Tensor:
    """Return one number for the policy: root mean square distance of turns to their group's mean; 1 if all are flat.

    Turns alone in their group are not counted.

    Normalising by agent, not by group, keeps the weight of groups with little spread small (arXiv 2602.08847 also
    normalises by agent, around the agent's mean).
    """
    within_B = less_mean(credit_B, peers_B)
    if bool(flat(credit_B, peers_B, paid_B).all()):
        return torch.ones_like(credit_B)
    compared_B = size(peers_B) > 1
    return within_B[compared_B].double().square().mean().sqrt().to(credit_B.dtype).expand_as(credit_B)


def flat(credit_B: Tensor, peers_B: Tensor, paid_B: Tensor | None = None) -> Tensor:
    """Return True for turns whose group has no spread beyond rounding (no signal); shape B. paid_B: as in ``Batch``."""
    spread_B = group_max(credit_B, peers_B) + group_max(-credit_B, peers_B)
    return spread_B <= tolerance(credit_B, peers_B, paid_B)


def tolerance(credit_B: Tensor, peers_B: Tensor, paid_B: Tensor | None = None) -> Tensor:
    """Return the largest difference in each turn's group that may be rounding, that of sums included; shape B."""
    rounding_B = rounding(credit_B, peers_B)
    return rounding_B if paid_B is None else rounding_B + _DOUBLE * group_max(paid_B, peers_B)


def rounding(credit_B: Tensor, peers_B: Tensor) -> Tensor:
    """Return the largest difference in each turn's group that may be rounding to float32; shape B."""
    return _SINGLE * group_max(credit_B.abs(), peers_B) + torch.finfo(torch.float32).tiny


Scale = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def members(peers_B: Tensor) -> list[list[int]]:
    """Return the rows of each group, in the order of their first rows."""
    found: dict[int, list[int]] = {}
    for row, group in enumerate(peers_B.tolist()):
        found.setdefault(group, []).append(row)
    return list(found.values())
