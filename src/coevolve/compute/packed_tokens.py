"""Attention over packed tokens of a prefix tree: a token sees its path and its own segment up to itself, nothing else.

The two are attention over different keys, put together by their log-sum-exp; segments of similar length are handled
side by side, and a path is read once for all tokens that continue it (their *family*). Letters: N packed tokens; M
segments, families or paths in a block, L places of each; H query heads, K key heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coevolve.compute import kernels
from coevolve.compute import partial_attention as partial
from coevolve.compute.kernels import Seen
from coevolve.compute.prefix_tree import Ids, PrefixTree


@dataclass(frozen=True, slots=True)
class Places:
    """Packed tokens side by side: M runs in L places each. from_X: the token of every place, a filling one where a
    run is over (late_ML, None if nowhere). token_X, place_X: every real token and the number of its place."""

    shape: tuple[int, int]
    from_X: Tensor
    late_ML: Tensor | None
    token_X: Tensor
    place_X: Tensor

    def take(self, x: Tensor) -> Tensor:
        """[N, H, D] to [M, H, L, D], and [N, H] to [M, H, L]."""
        taken: Tensor = torch.unflatten(x.index_select(0, self.from_X), 0, self.shape)
        return taken.transpose(1, 2)

    def real(self, x: Tensor) -> Tensor:
        """[M, H, L, D] to the rows of ``token_X``, [X, H, D]; also without D."""
        return x.transpose(1, 2).flatten(0, 1).index_select(0, self.place_X)


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """A tree on a device. own: its segments. families: all that continues a path, and the path.

    N is filled up, by one token at least, with tokens that nobody looks at.
    """

    ids_N: Tensor
    position_N: Tensor
    own: list[Places]
    families: list[tuple[Places, Places]]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """[1, H, N, D] and twice [1, K, N, D] to [1, N, H, D]; the same in every layer."""
        q, k, v = map(_rows, (query, key, value))
        out: Tensor = _Attention.apply(q, k, v, self, scaling)  # type: ignore[no-untyped-call]
        return out[None].to(query.dtype)


def padded(tree: PrefixTree, device: torch.device) -> tuple[Tensor, Tensor]:
    """The tree's token ids and positions on the device, filled up."""
    n = len(tree.ids_N)
    ids_N, position_N = (torch.from_numpy(np.pad(x, (0, filled(n) - n))) for x in (tree.ids_N, tree.position_N))
    return ids_N.to(device), position_N.to(device)


def pack(tree: PrefixTree, device: torch.device) -> PackedTokens:
    """The tree as index tensors on the device."""
    n = len(tree.ids_N)
    own = [np.arange(s.place, s.place + s.end - s.start) for s in tree.segments]
    family: dict[int, list[Ids]] = {}
    path: dict[int, Ids] = {}
    for segment, tokens in zip(tree.segments, own, strict=True):
        if segment.parent is not None:
            family.setdefault(segment.parent.place, []).append(tokens)
            path[segment.parent.place] = segment.parent.path
    continuing = [np.concatenate(tokens) for tokens in family.values()]
    paths = list(path.values())
    return PackedTokens(
        *padded(tree, device),
        [places([own[i] for i in block], n, device) for block in _similar(own)],
        [
            (places([continuing[i] for i in block], n, device), places([paths[i] for i in block], n, device))
            for block in _similar(continuing, paths)
        ],
    )


def filled(n: int) -> int:
    """Up to how many n packed tokens are filled up: by 8 or a thirtieth at most, to one of 32 numbers per doubling,
    because a processor's library keeps something for every shape it has seen."""
    step = 1 << max(3, n.bit_length() - 6)
    return n - n % step + step


def _similar(*columns: Sequence[Ids]) -> list[list[int]]:
    """Numbers of runs in blocks whose lengths, in every column, differ by less than a factor of two."""
    blocks: dict[tuple[int, ...], list[int]] = {}
    for i, runs in enumerate(zip(*columns, strict=True)):
        blocks.setdefault(tuple(len(run).bit_length() for run in runs), []).append(i)
    return list(blocks.values())


def places(runs: Sequence[Ids], filling: int, device: torch.device) -> Places:
    """Runs of packed tokens as places on the device; filling: the number of a token to fill up with."""
    lengths = np.array([len(run) for run in runs])
    from_ML = np.full((len(runs), lengths.max()), filling, np.int64)
    late_ML = np.arange(from_ML.shape[1]) >= lengths[:, None]
    from_ML[~late_ML] = np.concatenate(runs)
    columns = (from_ML.ravel(), late_ML, from_ML[~late_ML], np.flatnonzero(~late_ML))
    from_X, late, token_X, place_X = (torch.from_numpy(x).to(device) for x in columns)
    return Places((len(runs), from_ML.shape[1]), from_X, late if late_ML.any() else None, token_X, place_X)


def _rows(x: Tensor) -> Tensor:
    """[1, H, N, D] as [N, H, D]."""
    x = x[0].transpose(0, 1)
    return (x.float() if kernels.wide(x.device) else x).contiguous()


class _Attention(torch.autograd.Function):
    """Attention of [N, H, D] over [N, K, D]; keeps no scores for the gradient."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, packed: PackedTokens, scaling: float) -> Tensor:
        # Filling tokens keep an infinite log-sum-exp: as queries they then weigh nothing in the gradient.
        out, lse = torch.zeros_like(q), q.new_full(q.shape[:2], torch.inf, dtype=torch.float32)
        for own in packed.own:
            found = partial.forward(own.take(q), own.take(k), own.take(v), None, True, scaling)
            for whole, part in zip((out, lse), found, strict=True):
                whole.index_copy_(0, own.token_X, own.real(part))
        for family, path in packed.families:
            above, above_lse = partial.forward(family.take(q), path.take(k), path.take(v), path.late_ML, False, scaling)
            tokens, below_lse = family.token_X, lse[family.token_X]
            above_lse = family.real(above_lse)
            share = torch.sigmoid(above_lse - below_lse).unsqueeze(-1).to(q.dtype)  # of the path: e^a / (e^a + e^b)
            out.index_copy_(0, tokens, torch.lerp(out[tokens], family.real(above), share))
            lse.index_copy_(0, tokens, torch.logaddexp(above_lse, below_lse))
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.packed, ctx.scaling = packed, scaling
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        grad = grad.contiguous()
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for own in ctx.packed.own:
            taken = Seen(*(own.take(x) for x in (grad, q, k, v, out, lse)))
            for whole, part in zip((dq, dk, dv), partial.backward(taken, None, True, ctx.scaling), strict=True):
                whole.index_copy_(0, own.token_X, own.real(part))
        for family, path in ctx.packed.families:
            asked, seen = (family.take(x) for x in (grad, q)), (family.take(x) for x in (out, lse))
            taken = Seen(*(*asked, path.take(k), path.take(v), *seen))
            part_q, part_k, part_v = partial.backward(taken, path.late_ML, False, ctx.scaling)
            dq.index_copy_(0, family.token_X, dq[family.token_X] + family.real(part_q))
            _add(dk, path, part_k)
            _add(dv, path, part_v)
        return dq, dk, dv, None, None


def _add(whole_NKD: Tensor, path: Places, part: Tensor) -> None:
    """Add up what belongs to tokens that may be in several paths. The gradient of an embedding is a fast such sum."""
    rows_XW = path.real(part).flatten(1)
    total_NW = torch.ops.aten.embedding_dense_backward(rows_XW, path.token_X, len(whole_NKD), -1, False)
    whole_NKD += total_NW.view(whole_NKD.shape)
