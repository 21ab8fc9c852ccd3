"""The test of which models can compute with ``sharing``, made when a model is loaded."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coevolve.policies.attention import NAME, no_mask, shares
from coevolve.policies.cascade import Cascade
from coevolve.policies.forest import Ids, grow
from coevolve.policies.lean import lean, resembles
from coevolve.policies.packed import pack
from coevolve.policies.weights import trunk

_ROWS = ((5, 3, 8), (4, 1), ())
"""What three rows that begin alike go on with."""

_COMMON = 12


@torch.no_grad()
def use_sharing(causal: Any) -> bool:
    """Let the model compute with ``sharing`` if updates and rollouts then give what it gives alone; returns whether.

    Other models (sliding windows, capped scores, positions of another kind, fewer than 16 positions) keep
    transformers' own attention. Rollouts of those that share are ``lean`` if that gives the same again.
    """
    config, body = causal.config.get_text_config(), trunk(causal)
    body.lean = False
    if (getattr(config, "max_position_embeddings", None) or _COMMON + 4) < _COMMON + 4:
        return False
    rows = [np.array([*range(_COMMON), *tail]) % config.vocab_size for tail in _ROWS]
    alone = [body(torch.tensor(row, device=causal.device)[None]).last_hidden_state[0] for row in rows]
    before = causal.config._attn_implementation
    if not (_takes(causal) and _right(causal, rows, alone, nullcontext())):
        causal.set_attn_implementation(before)
        return False
    body.lean = resembles(body)
    body.lean = body.lean and _right(causal, rows, alone, lean(causal, torch.float32, None))
    return True


def _takes(causal: Any) -> bool:
    """Whether the model takes our attention at all."""
    try:
        causal.set_attn_implementation(NAME)
    except (ValueError, NotImplementedError, AttributeError):
        return False
    return shares(causal)


def _right(causal: Any, rows: list[Ids], alone: list[Tensor], within: AbstractContextManager[None]) -> bool:
    """Whether forests and rollouts give what the model gives alone."""
    try:
        with within:
            return _same(_packed(causal, rows), alone) and _same(_rollout(causal, rows), alone)
    except (TypeError, ValueError, NotImplementedError, AttributeError, IndexError, RuntimeError):
        return False  # a model that takes no extra argument, or whose attention is of another kind


def _packed(causal: Any, rows: list[Ids]) -> list[Tensor]:
    """The rows' hidden states from one forward over their forest."""
    forest = grow(rows)
    packed = pack(forest, causal.device)
    found = trunk(causal)(
        input_ids=packed.ids_N[None],
        position_ids=packed.position_N[None],
        attention_mask=no_mask(causal.device),
        use_cache=False,
        sharing=packed,
    ).last_hidden_state[0]
    return [found[torch.from_numpy(leaf.path).to(causal.device)] for leaf in forest.leaf_B]


def _rollout(causal: Any, rows: list[Ids]) -> list[Tensor]:
    """The last hidden states of a prompt and of two tokens after it, as a rollout comes by them; of the first row."""
    row = rows[0]
    memory = Cascade(causal, [row[:-2].tolist(), row[1:-2].tolist()], [0, 0], [0, 0, 1], 2, None)
    found = [memory.hidden_UW[0]]
    for t in (-2, -1):
        ids_B, position_B = (torch.tensor([n] * 3, device=causal.device) for n in (int(row[t]), len(row) + t))
        found.append(memory.step(ids_B, position_B - torch.tensor([0, 0, 1], device=causal.device))[0])
    return [torch.stack(found)]


def _same(found: list[Tensor], alone: list[Tensor]) -> bool:
    """Whether the ends of these rows are the same; the first numbers of each may be left out."""
    return all(
        torch.allclose(ours, theirs[-len(ours) :], rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))
        for ours, theirs in zip(found, alone, strict=False)
    )
