"""One token per row from logits: inverse-CDF with the row's own uniform number, so the batch around it has no say.

Letters: B rows, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coevolve.types import Sampling


class Draw(NamedTuple):
    """Tokens; their log-probability at the sampling temperature (1 when greedy); what truncation added to it."""

    token_B: Tensor
    logp_B: Tensor
    excess_B: Tensor | None


def draw(logits_BV: Tensor, uniform_B: Tensor, sampling: Sampling, seen_BV: Tensor | None = None) -> Draw:
    """Sample from softmax(logits / temperature), or take the largest where temperature is 0.

    seen_BV (bool): tokens already in the row, for the repetition penalty. Top-k, top-p and the penalty change what is
    drawn, never what logp_B describes; excess_B is then log q(token) - logp for the distribution q that was drawn from.
    """
    logits_BV = logits_BV.float()
    greedy = sampling.temperature == 0
    scaled_BV = logits_BV if greedy else logits_BV / sampling.temperature
    total_B = scaled_BV.logsumexp(-1)
    if not sampling.truncated:
        token_B = scaled_BV.argmax(-1) if greedy else _invert((scaled_BV - total_B[:, None]).exp(), uniform_B)
        return Draw(token_B, _at(scaled_BV, token_B) - total_B, None)
    if sampling.repetition_penalty != 1.0:
        assert seen_BV is not None, "a repetition penalty needs the tokens seen so far"
        logits_BV = _penalised(logits_BV, seen_BV, sampling.repetition_penalty)
    chosen_BV = truncate(logits_BV if greedy else logits_BV / sampling.temperature, sampling.top_k, sampling.top_p)
    drawn_BV = chosen_BV.softmax(-1)
    token_B = chosen_BV.argmax(-1) if greedy else _invert(drawn_BV, uniform_B)
    logp_B = _at(scaled_BV, token_B) - total_B
    return Draw(token_B, logp_B, _at(drawn_BV, token_B).log() - logp_B)


def truncate(logits_BV: Tensor, top_k: int, top_p: float) -> Tensor:
    """Logits with everything outside the top k, and then outside the nucleus of mass top_p, at -inf.

    The nucleus is the smallest set of most likely tokens with mass >= top_p (arXiv 1904.09751); ties at the k-th logit
    all stay.
    """
    if 0 < top_k < logits_BV.shape[-1]:
        worst_B1 = logits_BV.topk(top_k, -1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < worst_B1, -torch.inf)
    if top_p < 1:
        sorted_BV, order_BV = logits_BV.sort(-1, descending=True)
        mass_BV = sorted_BV.softmax(-1)
        outside_BV = mass_BV.cumsum(-1) - mass_BV >= top_p
        logits_BV = logits_BV.masked_fill(outside_BV.scatter(-1, order_BV, outside_BV), -torch.inf)
    return logits_BV


def _penalised(logits_BV: Tensor, seen_BV: Tensor, penalty: float) -> Tensor:
    """Seen tokens less likely: positive logits divided, negative multiplied (arXiv 1909.05858, as transformers)."""
    worse_BV = torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return torch.where(seen_BV, worse_BV, logits_BV)


def _invert(probs_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The first token whose cumulative probability exceeds the uniform number.

    In float64: a float32 sum over a large vocabulary would lose the tail and could miss the end.
    """
    cdf_BV = probs_BV.cumsum(-1, dtype=torch.float64)
    target_B1 = uniform_B.double()[:, None] * cdf_BV[:, -1:]
    return torch.searchsorted(cdf_BV, target_B1, right=True)[:, 0]


def _at(x_BV: Tensor, token_B: Tensor) -> Tensor:
    return x_BV.gather(-1, token_B[:, None])[:, 0]
