"""Choice of a model's backend when it is loaded, after each candidate's results were compared with the model's own.

``auto`` chooses, on the CPU, the compiled loops (``cpu``) if numba is installed and they give the model's results; else
``torch``, which then reports the reason. (A recipe that asks for several threads gets ``torch``: ``learners.build``.)
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from coevolve.compute.attention import NAME, Attention, FlashAttention, PathAttention
from coevolve.compute.prefix_tree import Ids, grow
from coevolve.compute.reference import ReferenceBackend
from coevolve.compute.torch_backend import TorchBackend, tree_hidden
from coevolve.interfaces import Backend, Sampler
from coevolve.models.adapters import Adapters
from coevolve.models.spec import Compute
from coevolve.models.weights import Base, trunk
from coevolve.runtime.processor import bfloat16_by, multiplied_in

_ROWS = ((5, 3, 8), (4, 1), ())
"""The ends of three test rows with a common prefix."""

_COMMON = 12

_MANY = 1024
"""Number of rows, typical of an update's layers, for which ``about`` names the dtype of products."""

_HALF = 0.03
"""Tolerance of numbers in bfloat16, relative to the largest."""

_UNFIT = (TypeError, ValueError, NotImplementedError, AttributeError, IndexError, KeyError, RuntimeError)
"""Exceptions of models that accept no extra argument, or whose attention is of another kind."""


def choose(base: Base, asked: Compute, model: str, kept: bool = False) -> Backend:
    """Return the backend of a model just loaded. kept: whether the compiled loops may sample from a copy of the weights
    that is kept, up to a larger size (``runtime.placement.keeps_copy``). Raises ValueError if the backend asked for
    does not fit."""
    if asked == "reference":
        return ReferenceBackend(base)
    tree = _use_our_attention(base)
    why_not = "" if asked == "torch" else _why_not_cpu(base, tree, kept)
    if why_not is None:
        from coevolve.compute.cpu.backend import CpuBackend

        return CpuBackend(base)
    if asked == "cpu":
        raise ValueError(f"compute is cpu, which does not fit the model {model!r}: {why_not}; say compute: auto")
    flash = tree and base.causal.device.type == "cuda"
    return TorchBackend(base, tree, why_not, _why_not_flash(base) if flash else "")


def about(backend: Backend, dtype: torch.dtype) -> str:
    """Return one line that describes the backend's computation in this dtype."""
    if backend.name == "cpu" and dtype == torch.bfloat16:
        wide = multiplied_in(dtype, torch.device("cpu"), _MANY) == torch.float32
        return backend.about + ", layers of updates multiply bfloat16 in float32" * wide
    return backend.about


def planned(
    causal: Any, device: torch.device, asked: Compute, four_bit: bool = False, kept: bool = False
) -> tuple[str, str]:
    """Return the name of the backend that ``choose`` will choose, from a model without weights (on the meta device),
    and a description of it. Raises ValueError if that shows already that ``cpu`` does not fit."""
    if asked in ("reference", "torch"):
        return asked, asked
    why_not = _why_not_here(device) or ("its base is in 4 bits" if four_bit else _unlike(causal, kept))
    if why_not and asked == "cpu":
        raise ValueError(f"compute is cpu, which does not fit: {why_not}; say compute: auto")
    if why_not:
        return "torch", f"torch; not cpu: {why_not}"
    return "cpu", "cpu, if compiled loops give what the model gives"


def slow_dtype(backend: Backend, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return the reason why an update in this dtype takes many times as long as in float32, or None. In PyTorch's own
    layers, a bfloat16 product at a 1.5-billion-parameter model's shapes took 4 times as long forwards and 150 times as
    long backwards with AVX2 alone."""
    if backend.name == "cpu" or device.type != "cpu" or dtype != torch.bfloat16 or bfloat16_by() != "nothing":
        return None
    return "this processor has no instructions for bfloat16 (AVX512-BF16 or AMX)"


def _why_not_here(device: torch.device) -> str | None:
    if device.type != "cpu":
        return f"it is on {device}"
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed (coevolve[fast])"
    off = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
    return "numba is told not to compile (NUMBA_DISABLE_JIT)" if off else None


def _unlike(causal: Any, kept: bool) -> str | None:
    """Return why the compiled loops cannot compute a model of these modules, or cannot be imported; None if they
    can."""
    try:
        from coevolve.compute.cpu.decoder import unlike

        return unlike(trunk(causal), kept)
    except Exception as error:  # noqa: BLE001 (of a numba that fits no NumPy, for example)
        return _failed(error)


def _failed(error: Exception) -> str:
    return f"compiled loops fail: {error!r}"


@torch.no_grad()
def _use_our_attention(base: Base) -> bool:
    """Switch the model to the prefix-tree attention if a forward then gives the model's own results; return whether.

    Other models (sliding windows, capped scores, positions of another kind, fewer than 16 positions) keep their own.
    Models with a sliding window in the mask only, longer than the test rows, are recognised by their cache.
    """
    causal = base.causal
    config = causal.config.get_text_config()
    if (getattr(config, "max_position_embeddings", None) or _COMMON + 4) < _COMMON + 4:
        return False
    if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=causal.config).layers):
        return False
    rows = _rows(config)
    alone = [trunk(causal)(torch.tensor(row, device=causal.device)[None]).last_hidden_state[0] for row in rows]
    before = causal.config._attn_implementation
    try:
        causal.set_attn_implementation(NAME)
        taken = config._attn_implementation == NAME
        same = taken and _same(_torch_tree(base, rows, 0), alone)
    except _UNFIT:
        same = False
    if not same:
        causal.set_attn_implementation(before)
    return same


@torch.no_grad()
def _why_not_cpu(base: Base, tree: bool, kept: bool = False) -> str | None:
    """Return why the compiled loops do not fit; None if they give the model's results in trees and rollouts, at its
    first and last positions."""
    if why := _why_not_here(base.causal.device):
        return why
    if not tree:
        return "its attention is of another kind"
    if why := _unlike(base.causal, kept):
        return why
    try:
        from coevolve.compute.cpu.backend import CpuBackend

        rows, late = _rows(base.causal.config.get_text_config()), _late(base)
        ours = [_cpu_tree(base, rows, 0), _cpu_tree(base, rows, late)]
        theirs = [_torch_tree(base, rows, 0), _torch_tree(base, rows, late)]
        adapters = Adapters([None], base.causal.device)
        fast = CpuBackend(base).sampler(adapters, torch.float32)
        plain = TorchBackend(base, tree).sampler(adapters, torch.float32)
        for copies in (1, 2):  # few rows, and more
            ours.append(_rollout(rows[0], fast, copies))
            theirs.append(_rollout(rows[0], plain, copies))
        same = all(_same(x, y) for x, y in zip(ours, theirs, strict=True))
    except Exception as error:  # noqa: BLE001 (numba has errors of its own; with any, torch is used instead)
        return _failed(error)
    return None if same else "compiled loops give other numbers than the model"


def _why_not_flash(base: Base) -> str | None:
    """Return why FlashAttention does not fit trees in 16 bits; None if it gives the results and gradients of the other
    attention."""
    causal, device = base.causal, base.causal.device
    tree = grow(_rows(causal.config.get_text_config()))
    probe = _Probe(tree, device)
    try:
        with torch.no_grad():
            tree_hidden(causal, probe, torch.arange(1, device=device))
        ours, theirs = (_with_gradients(kind(tree, device), probe) for kind in (FlashAttention, PathAttention))
    except (*_UNFIT, ImportError) as error:
        return f"it fails: {error!r}"
    same = all(
        torch.allclose(x, y, rtol=_HALF, atol=_HALF * float(y.abs().max())) for x, y in zip(ours, theirs, strict=True)
    )
    return None if same else "it gives other numbers than PyTorch's attention with a mask"


class _Probe(PathAttention):
    """The attention over a tree, which notes the shapes of the queries, keys and values of the last layer."""

    shapes: tuple[torch.Size, ...]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.shapes, self.scaling = (query.shape, key.shape, value.shape), scaling
        return super().attend(layer, query, key, value, scaling)


def _with_gradients(attention: Attention, like: _Probe) -> list[Tensor]:
    """Return the attention of random bfloat16 queries, keys and values of these shapes, and its gradients."""
    random, device = torch.Generator().manual_seed(0), like.ids_N.device
    given = [torch.randn(shape, generator=random).to(device, torch.bfloat16).requires_grad_() for shape in like.shapes]
    out = attention.attend(0, given[0], given[1], given[2], like.scaling)
    return [x.detach().float() for x in (out, *torch.autograd.grad(out.float().square().sum(), given))]


def _torch_tree(base: Base, rows: list[Ids], start: int) -> list[Tensor]:
    device = base.causal.device
    return _packed(rows, start, lambda tree: PathAttention(tree, device), partial(tree_hidden, base.causal), device)


def _cpu_tree(base: Base, rows: list[Ids], start: int) -> list[Tensor]:
    from coevolve.compute.cpu import training
    from coevolve.compute.cpu.attention import TreeAttention

    def forward(tree: TreeAttention, where_X: Tensor) -> Tensor:
        return training.forward(trunk(base.causal), tree, where_X, None)

    return _packed(rows, start, TreeAttention, forward, base.causal.device)


def _packed(
    rows: list[Ids], start: int, pack: Any, forward: Callable[[Any, Tensor], Tensor], device: torch.device
) -> list[Tensor]:
    """Return the rows' hidden states from one forward over their tree, whose first position is ``start``.

    pack: a tree -> its packed tokens. forward: (packed tokens, the numbers of the wanted ones) -> the last hidden
    states of these, [X, W].
    """
    tree = grow(rows)
    later = dataclasses.replace(tree, position_N=tree.position_N + start)
    where = torch.from_numpy(np.concatenate([leaf.path for leaf in tree.leaf_B])).to(device)
    return list(torch.split(forward(pack(later), where), [len(leaf.path) for leaf in tree.leaf_B]))


def _rollout(row: Ids, sampler: Sampler, copies: int) -> list[Tensor]:
    """Return the row's last hidden states, for a prompt and two tokens after it, from a rollout of three rows (times
    ``copies``)."""
    behind = torch.tensor([0, 0, 1] * copies)
    cache = sampler.session([row[:-2].tolist(), row[1:-2].tolist()], [0, 0], behind.tolist(), 2)
    found, device = [cache.hidden_UW[0]], cache.hidden_UW.device
    for t in (-2, -1):
        ids_B = torch.full((3 * copies,), int(row[t]), device=device)
        found.append(cache.step(ids_B, (len(row) + t - behind).to(device))[0])
    return [torch.stack(found)]


def _late(base: Base) -> int:
    """Return the first position of test rows that end just before the last one: some decoders differ from Llama only at
    high positions, such as those whose queries grow with the position."""
    positions = getattr(base.causal.config.get_text_config(), "max_position_embeddings", None) or 0
    return max(0, positions - _COMMON - 4)


def _rows(config: Any) -> list[Ids]:
    return [np.array([*range(_COMMON), *tail]) % config.vocab_size for tail in _ROWS]


def _same(found: list[Tensor], alone: list[Tensor]) -> bool:
    """Return whether the rows agree; ``found`` may lack the first positions of a row."""
    return all(
        torch.allclose(ours, theirs[-len(ours) :], rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))
        for ours, theirs in zip(found, alone, strict=False)
    )
