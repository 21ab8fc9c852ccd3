"""Sampling of one token per row from logits, by inverse CDF with the row's own uniform number: independent of the
batch.

Letters: B rows, V vocabulary, K blocks of the vocabulary, I tokens inside one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coevolve.types import Sampling

BLOCK = 64
"""Number of tokens in a block, whose mass is added up in float32."""

_MOST = 1 << 24
"""Logits that are processed at a time: sorting them for a nucleus takes eight times their memory."""


class Draw(NamedTuple):
    """Tokens, their log-probabilities at the sampling temperature (1 when greedy), and what truncation added to
    these."""

    token_B: Tensor
    logp_B: Tensor
    excess_B: Tensor | None


def draw(logits_BV: Tensor, uniform_B: Tensor, sampling: Sampling, seen_BV: Tensor | None = None) -> Draw:
    """Sample from softmax(logits / temperature), or take the largest where temperature is 0.

    seen_BV (bool): tokens already in the row, for the repetition penalty. Top-k, top-p and the penalty change what is
    drawn, never what logp_B describes; excess_B is then log q(token) - logp for the distribution q that was drawn from.
    """
    rows = max(1, _MOST // logits_BV.shape[1])
    found = [
        _draw(logits_BV[s], uniform_B[s], sampling, None if seen_BV is None else seen_BV[s])
        for s in (slice(i, i + rows) for i in range(0, len(logits_BV), rows))
    ]
    if len(found) == 1:
        return found[0]
    tokens, logps, excesses = zip(*found, strict=True)
    return Draw(torch.cat(tokens), torch.cat(logps), torch.cat(excesses) if sampling.truncated else None)


def _draw(logits_BV: Tensor, uniform_B: Tensor, sampling: Sampling, seen_BV: Tensor | None) -> Draw:
    logits_BV = logits_BV.float()
    greedy = sampling.temperature == 0
    scaled_BV = logits_BV if greedy or sampling.temperature == 1 else logits_BV / sampling.temperature
    top_B1 = scaled_BV.amax(-1, keepdim=True)
    mass_BV = (scaled_BV - top_B1).exp_()
    blocks_BK = _block_sums(mass_BV)
    lse_B = top_B1[:, 0] + blocks_BK.sum(-1).log().float()
    if not sampling.truncated:
        token_B = scaled_BV.argmax(-1) if greedy else _invert(mass_BV, blocks_BK, uniform_B)
        return Draw(token_B, _at(scaled_BV, token_B) - lse_B, None)
    if sampling.repetition_penalty != 1.0:
        assert seen_BV is not None, "a repetition penalty needs the tokens seen so far"
        logits_BV = _penalised(logits_BV, seen_BV, sampling.repetition_penalty)
    chosen_BV = truncate(logits_BV if greedy else logits_BV / sampling.temperature, sampling.top_k, sampling.top_p)
    drawn_BV = chosen_BV.softmax(-1)
    token_B = chosen_BV.argmax(-1) if greedy else _invert(drawn_BV, _block_sums(drawn_BV), uniform_B)
    logp_B = _at(scaled_BV, token_B) - lse_B
    return Draw(token_B, logp_B, _at(drawn_BV, token_B).log() - logp_B)


def truncate(logits_BV: Tensor, top_k: int, top_p: float) -> Tensor:
    """Return the logits with tokens outside the top k, and then outside the nucleus of mass top_p, set to -inf.

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
    """Make seen tokens less likely: positive logits are divided, negative multiplied (arXiv 1909.05858, as
    transformers)."""
    worse_BV = torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return torch.where(seen_BV, worse_BV, logits_BV)


def _block_sums(mass_BV: Tensor) -> Tensor:
    """Return the mass of each block of BLOCK tokens, in float64."""
    return _blocks(mass_BV).sum(-1).double()


def _blocks(mass_BV: Tensor) -> Tensor:
    vocabulary = mass_BV.shape[-1]
    return torch.nn.functional.pad(mass_BV, (0, -vocabulary % BLOCK)).view(len(mass_BV), -1, BLOCK)


def _invert(mass_BV: Tensor, blocks_BK: Tensor, uniform_B: Tensor) -> Tensor:
    """Return the first token whose cumulative mass exceeds uniform * total: find its block, then the token inside.

    Cumulative sums are float64, since float32 would lose the tail of a large vocabulary. Over the whole vocabulary they
    would be slow, hence the blocks.
    """
    cdf_BK = blocks_BK.cumsum(-1)
    target_B1 = uniform_B.double()[:, None] * cdf_BK[:, -1:]
    # Clamped because NaN would index out of range, but must reach the log-probabilities.
    block_B1 = torch.searchsorted(cdf_BK, target_B1, right=True).clamp(max=blocks_BK.shape[1] - 1)
    mass_B1 = blocks_BK.gather(-1, block_B1)
    share_B1 = 1 - (cdf_BK.gather(-1, block_B1) - target_B1) / mass_B1  # of the block that lies before the target
    rows_B = torch.arange(len(mass_BV), device=mass_BV.device)
    inside_BI = _blocks(mass_BV)[rows_B, block_B1[:, 0]].double().cumsum(-1)
    # Below 1, so that rounding cannot step past the last token with mass.
    inner_B1 = share_B1.clamp(0, 1 - 2**-40) * inside_BI[:, -1:]
    token_B1 = block_B1 * BLOCK + torch.searchsorted(inside_BI, inner_B1, right=True)
    return token_B1[:, 0].clamp(max=mass_BV.shape[1] - 1)


def _at(x_BV: Tensor, token_B: Tensor) -> Tensor:
    return x_BV.gather(-1, token_B[:, None])[:, 0]
