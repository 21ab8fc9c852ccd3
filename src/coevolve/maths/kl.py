"""KL divergences, exact over the vocabulary or from samples, and weights of KL penalties that adapt.

Letters: N positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

from coevolve.late import Tensor, torch


def full(logp_NV: Tensor, ref_NV: Tensor) -> Tensor:
    """Return KL(pi || pi_0) = sum_v pi(v) (log pi(v) - log pi_0(v)) at each position, from log-probabilities; shape N.

    CORY's token penalty (arXiv 2410.06101, section 2): the whole vocabulary, not the log-ratio of the sampled token.
    """
    assert logp_NV.ndim == 2 and logp_NV.shape == ref_NV.shape, (logp_NV.shape, ref_NV.shape)
    p_NV = logp_NV.exp()
    return (p_NV * (logp_NV - ref_NV)).masked_fill(p_NV == 0, 0.0).sum(1)  # 0 log 0 = 0


def k1(log_ratio: Tensor) -> Tensor:
    """Return log pi - log pi_0 of the sampled token: its mean is the KL; its mean gradient is 0."""
    return log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """Return half the squared log-ratio: its mean is a biased KL; its mean gradient is that of the KL."""
    return 0.5 * log_ratio.square()


def k3(log_ratio: Tensor) -> Tensor:
    """Return pi_0 / pi - 1 - log(pi_0 / pi) >= 0: its mean is the KL; its mean gradient is that of KL(pi_0 || pi)."""
    return torch.expm1(-log_ratio) + log_ratio


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""Schulman's estimators of KL(pi || pi_0) from samples of pi, as functions of log pi - log pi_0 (any shape)."""


def halved_or_doubled(coef: float, observed: float, target: float) -> float:
    """Return the next weight of a trust region's KL (arXiv 1707.06347, section 4): half for a KL below target / 1.5,
    double above 1.5 target. Kept within 1e-4 and 1e4, from where it can recover."""
    factor = 0.5 if observed < target / 1.5 else 2.0 if observed > 1.5 * target else 1.0
    return min(max(coef * factor, 1e-4), 1e4)


def adapted(coef: float, observed: float, n: int, *, target: float, horizon: int) -> float:
    """Return the next weight of the penalty, adapted to the observed KL (arXiv 1909.08593, section 2.2).

    After n turns of mean KL ``observed``: coef *= 1 + clip(observed / target - 1, -0.2, 0.2) * n / horizon. n is at
    most the horizon, or the weight could become negative and reward a larger KL.
    """
    error = min(max(observed / target - 1, -0.2), 0.2)
    return coef * (1 + error * min(n, horizon) / horizon)
