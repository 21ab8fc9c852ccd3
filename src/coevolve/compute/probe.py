"""The tests of which models can compute with ``sharing``, ``lean`` and with compiled loops, made when one is loaded."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coevolve.compute.attention import NAME, shares
from coevolve.compute.cpu import prefix_cache as looped
from coevolve.compute.cpu import training as fused
from coevolve.compute.cpu.decoder import lean, resembles
from coevolve.compute.cpu.prefix_cache import Looped, loops
from coevolve.compute.forward import by_modules
from coevolve.compute.packed_tokens import Packed, pack
from coevolve.compute.prefix_cache import Cascade
from coevolve.compute.prefix_tree import Ids, grow
from coevolve.models.weights import trunk

_ROWS = ((5, 3, 8), (4, 1), ())
"""What three rows that begin alike go on with."""

_COMMON = 12

_UNFIT = (TypeError, ValueError, NotImplementedError, AttributeError, IndexError, KeyError, RuntimeError)
"""What a model raises that takes no extra argument, or whose attention is of another kind."""


@torch.no_grad()
def use_sharing(causal: Any) -> bool:
    """Let the model compute with ``sharing`` if updates and rollouts then give what it gives alone; returns whether.

    Other models (sliding windows, capped scores, positions of another kind, fewer than 16 positions) keep
    transformers' own attention.
    """
    config = causal.config.get_text_config()
    trunk(causal).takes_lean = trunk(causal).takes_loops = False
    if (getattr(config, "max_position_embeddings", None) or _COMMON + 4) < _COMMON + 4:
        return False
    rows = _rows(config)
    alone = [trunk(causal)(torch.tensor(row, device=causal.device)[None]).last_hidden_state[0] for row in rows]
    before = causal.config._attn_implementation
    try:
        causal.set_attn_implementation(NAME)
        with looped.tried(False):
            same = shares(causal) and _same(_packed(causal, rows), alone) and _same(_rollout(causal, rows), alone)
    except _UNFIT:
        same = False
    if not same:
        causal.set_attn_implementation(before)
    return same


@torch.no_grad()
def use_lean(causal: Any) -> bool:
    """Let rollouts on the CPU be ``lean`` if that gives what the model's own modules give, at its first and at its
    last positions, in forests and token by token; returns whether."""
    body = trunk(causal)
    if causal.device.type != "cpu" or not shares(causal) or not resembles(body):
        return False
    try:
        with looped.tried(False):
            theirs = _found(causal)
            body.takes_lean = True
            with lean(causal, torch.float32, None):
                ours = _found(causal)
        body.takes_lean = _all_same(ours, theirs)
    except _UNFIT:
        body.takes_lean = False
    return bool(body.takes_lean)


@torch.no_grad()
def use_loops(causal: Any) -> bool:
    """Let rollouts and updates use the compiled loops if they give the same; returns whether.

    Warns if they do not, which would be an error here, not a model of another kind.
    """
    body = trunk(causal)
    if causal.device.type != "cpu" or not shares(causal) or looped.module() is None:
        return False
    with looped.tried(False):
        theirs = _found(causal)
    body.takes_loops = True
    try:
        with looped.tried(True), lean(causal, torch.float32, None) if body.takes_lean else nullcontext():
            found = _found(causal)
        if body.takes_lean:  # and what updates compute with
            rows = _rows(causal.config.get_text_config())
            with looped.tried(True):
                found += [_packed(causal, rows, at, fused.forward) for at in (0, _late(causal))]
            theirs += theirs[:2]
        body.takes_loops = _all_same(found, theirs)
    except Exception as error:  # noqa: BLE001 (numba has errors of its own; whatever it is, the model does without)
        warnings.warn(f"compiled loops fail: {error!r}", stacklevel=2)
        body.takes_loops = False
    if not body.takes_loops:
        kind = type(causal).__name__
        warnings.warn(f"compiled loops do not compute what {kind} does; it samples and learns without", stacklevel=2)
    return bool(body.takes_loops)


def _found(causal: Any) -> list[list[Tensor]]:
    """Hidden states of a forest at the first and at the last positions, and of two rollouts."""
    rows = _rows(causal.config.get_text_config())
    rollouts = (_rollout(causal, rows, copies) for copies in (1, 2))  # few rows, and more, are computed otherwise
    return [_packed(causal, rows), _packed(causal, rows, _late(causal)), *rollouts]


def _late(causal: Any) -> int:
    """Where rows begin that reach the last position: some decoders differ from Llama's only far from the beginning,
    such as those whose queries grow with the position."""
    positions = getattr(causal.config.get_text_config(), "max_position_embeddings", None) or 0
    return max(0, positions - _COMMON - 4)


def _all_same(found: list[list[Tensor]], right: list[list[Tensor]]) -> bool:
    return all(_same(x, y) for x, y in zip(found, right, strict=True))


def _rows(config: Any) -> list[Ids]:
    return [np.array([*range(_COMMON), *tail]) % config.vocab_size for tail in _ROWS]


def _packed(
    causal: Any, rows: list[Ids], start: int = 0, forward: Callable[[Any, Packed, Tensor], Tensor] = by_modules
) -> list[Tensor]:
    """The rows' hidden states from one forward over their forest, which begins at this position."""
    forest = grow(rows)
    packed = pack(forest, causal.device, loops(trunk(causal)))
    where = torch.from_numpy(np.concatenate([leaf.path for leaf in forest.leaf_B])).to(causal.device)
    found = forward(causal, dataclasses.replace(packed, position_N=packed.position_N + start), where)
    return list(torch.split(found, [len(leaf.path) for leaf in forest.leaf_B]))


def _rollout(causal: Any, rows: list[Ids], copies: int = 1) -> list[Tensor]:
    """The last hidden states of a prompt and of two tokens after it, as a rollout of three rows, or of copies of these,
    comes by them; of the first row."""
    row = rows[0]
    kind = Looped if loops(trunk(causal)) is not None else Cascade
    memory = kind(causal, [row[:-2].tolist(), row[1:-2].tolist()], [0, 0], [0, 0, 1] * copies, 2, None)
    found = [memory.hidden_UW[0]]
    for t in (-2, -1):
        ids_B, position_B = (torch.tensor([n] * 3 * copies, device=causal.device) for n in (int(row[t]), len(row) + t))
        found.append(memory.step(ids_B, position_B - torch.tensor([0, 0, 1] * copies, device=causal.device))[0])
    return [torch.stack(found)]


def _same(found: list[Tensor], alone: list[Tensor]) -> bool:
    """Whether the ends of these rows are the same; the first numbers of each may be left out."""
    return all(
        torch.allclose(ours, theirs[-len(ours) :], rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))
        for ours, theirs in zip(found, alone, strict=False)
    )
