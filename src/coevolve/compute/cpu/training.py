"""The forward of an update on the CPU, with its gradient, for decoders of Llama's kind: every operation between the
matrix products is a compiled loop of one pass over memory.

In PyTorch's operators a norm, a rotation and a gate are half a dozen passes each, and their gradients twice as many.
Linear layers with the same input are one product, unless they have adapters or bfloat16 weights. In bfloat16 the loops
read the products' outputs and write their inputs directly, so nothing is converted in between. Letters: N packed
tokens, X wanted ones, W hidden size, I size between gate and down, H query heads, K key heads, A = H + 2 K, D head
dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad

from coevolve.compute.checkpointing import again
from coevolve.compute.cpu.arrays import either
from coevolve.compute.cpu.attention import TreeAttention
from coevolve.compute.cpu.decoder import SILU, rotation
from coevolve.compute.cpu.loops import between
from coevolve.compute.cpu.products import side_by_side
from coevolve.compute.prefix_tree import filled
from coevolve.models.adapters import Adapters


def forward(body: Any, tree: TreeAttention, where_X: Tensor, adapters: Adapters | None) -> Tensor:
    """Return the last hidden states of the packed tokens ``where_X``, [X, W]. body: the model below its head.

    In the last layer, the other tokens need keys and values only. The wanted tokens are padded, too, so that there are
    few different shapes.
    """
    wanted = len(where_X)
    where_X = pad(where_X, (0, filled(wanted) - wanted))
    x_NW = body.embed_tokens(tree.ids_N)
    y_NW = torch.zeros_like(x_NW)
    cos_sin = [x_1ND[0].float() for x_1ND in rotation(body, x_NW[None], tree.position_N[None])]
    for number, layer in enumerate(body.layers):
        chosen_X = where_X if number == len(body.layers) - 1 else None
        run = partial(_layer, number, layer, cos_sin, tree, adapters, chosen_X)
        x_NW, y_NW = (again if getattr(layer, "gradient_checkpointing", False) else _once)(run, x_NW, y_NW)
    return _added(x_NW, y_NW, body.norm, torch.float32)[1][:wanted]


def _once(run: Callable[..., Any], *given: Tensor) -> Any:
    return run(*given)


def _layer(
    number: int, layer: Any, cos_sin: Sequence[Tensor], tree: TreeAttention, adapters: Adapters | None,
    where_X: Tensor | None, x_NW: Tensor, y_NW: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Run a layer. Its input is the sum of x and y, and its output the sum of the two returned tensors; of the tokens
    ``where_X`` only, if given."""
    attention, mlp = layer.self_attn, layer.mlp
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    x_NW, normed_NW = _added(x_NW, y_NW, layer.input_layernorm, dtype)
    attended_NW = _attended(number, attention, normed_NW, cos_sin, tree, adapters)
    if where_X is not None:
        x_NW, attended_NW = embedding(where_X, x_NW), embedding(where_X, attended_NW)
    out_NW = side_by_side([attention.o_proj], attended_NW.to(dtype), adapters)
    x_NW, normed_NW = _added(x_NW, out_NW, layer.post_attention_layernorm, dtype)
    both_NI = side_by_side([mlp.gate_proj, mlp.up_proj], normed_NW, adapters)
    return x_NW, side_by_side([mlp.down_proj], _gated(both_NI, mlp.act_fn), adapters)


def _attended(
    number: int, attention: Any, x_NW: Tensor, cos_sin: Sequence[Tensor], tree: TreeAttention, adapters: Adapters | None
) -> Tensor:
    layers = [attention.q_proj, attention.k_proj, attention.v_proj]
    heads_NAD: Tensor = torch.unflatten(side_by_side(layers, x_NW, adapters), -1, (-1, attention.head_dim))
    counts = [layer.out_features // attention.head_dim for layer in layers]
    if hasattr(attention, "q_norm"):
        q_NHD, k_NKD, v_NKD = torch.split(heads_NAD, counts, 1)
        heads_NAD = torch.cat((attention.q_norm(q_NHD), attention.k_norm(k_NKD), v_NKD), 1)
    found: tuple[Tensor, ...] = _Heads.apply(heads_NAD, counts, *cos_sin)  # type: ignore[no-untyped-call]
    q, k, v = (x.transpose(0, 1)[None] for x in found)
    return tree.attend(number, q, k, v, attention.scaling)[0].flatten(1)


def _added(x_NW: Tensor, y_NW: Tensor, norm: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return x + y in float32, and its norm in dtype."""
    both: tuple[Tensor, Tensor] = _Added.apply(  # type: ignore[no-untyped-call]
        x_NW.float(), y_NW, norm.weight.float(), norm.variance_epsilon, dtype
    )
    return both


def _gated(both_NI: Tensor, activation: Any) -> Tensor:
    """Return activation(gate) * up, of gate and up side by side."""
    if not isinstance(activation, SILU):
        gate_NI, up_NI = both_NI.chunk(2, -1)
        product: Tensor = activation(gate_NI) * up_NI
        return product
    found: Tensor = _Gate.apply(both_NI)  # type: ignore[no-untyped-call]
    return found


def _call(loop: Callable[..., None], inputs: Sequence[Tensor | float], outputs: Sequence[Tensor]) -> None:
    """Call a compiled loop. Inputs are copied if they are not contiguous; outputs must be contiguous."""
    given = [either(x.detach().contiguous()) if isinstance(x, Tensor) else x for x in inputs]
    assert all(x.dtype in (torch.float32, torch.bfloat16) and x.is_contiguous() for x in outputs)
    loop(*given, *map(either, outputs))


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_NW: Tensor, y_NW: Tensor, weight_W: Tensor, epsilon: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        sum_NW, out_NW, scale_N = torch.empty(x_NW.shape), torch.empty(x_NW.shape, dtype=dtype), torch.empty(len(x_NW))
        _call(between.added, (x_NW, y_NW, weight_W, epsilon), (sum_NW, scale_N, out_NW))
        ctx.save_for_backward(sum_NW, weight_W, scale_N)
        ctx.dtype = y_NW.dtype
        return sum_NW, out_NW

    @staticmethod
    def backward(ctx: Any, grad_sum_NW: Tensor, grad_out_NW: Tensor) -> tuple[Tensor | None, ...]:
        sum_NW, weight_W, scale_N = ctx.saved_tensors
        grad_x_NW, grad_W = torch.empty(sum_NW.shape), torch.zeros(weight_W.shape)
        grad_y_NW = grad_x_NW if ctx.dtype == torch.float32 else torch.empty(sum_NW.shape, dtype=ctx.dtype)
        grads = (grad_x_NW, grad_y_NW, grad_W)
        _call(between.added_gradient, (grad_sum_NW, grad_out_NW, sum_NW, weight_W, scale_N), grads)
        return *grads, None, None


class _Heads(torch.autograd.Function):
    """The split into queries, keys and values (``counts`` heads each), in float32, with queries and keys rotated."""

    @staticmethod
    def forward(
        ctx: Any, heads_NAD: Tensor, counts: Sequence[int], cos_ND: Tensor, sin_ND: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos_ND, sin_ND)
        ctx.shape, ctx.dtype = heads_NAD.shape, heads_NAD.dtype
        found = tuple(torch.empty(len(heads_NAD), count, heads_NAD.shape[-1]) for count in counts)
        _call(between.heads, (heads_NAD, cos_ND, sin_ND), found)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos_ND, sin_ND = ctx.saved_tensors
        grad_NAD = torch.empty(ctx.shape, dtype=ctx.dtype)
        _call(between.heads_gradient, (*grads, cos_ND, sin_ND), (grad_NAD,))
        return grad_NAD, None, None, None


class _Gate(torch.autograd.Function):
    """The product silu(gate) * up."""

    @staticmethod
    def forward(ctx: Any, both_NI: Tensor) -> Tensor:
        ctx.save_for_backward(both_NI)
        out_NI = both_NI.new_empty((len(both_NI), both_NI.shape[1] // 2))
        _call(between.gated, (both_NI,), (out_NI,))
        return out_NI

    @staticmethod
    def backward(ctx: Any, grad_NI: Tensor) -> Tensor:
        (both_NI,) = ctx.saved_tensors
        grad_both_NI = torch.empty_like(both_NI)
        _call(between.gate_gradient, (grad_NI, both_NI), (grad_both_NI,))
        return grad_both_NI
