"""The forward of an update on the CPU, with its gradient, written out for decoders of Llama's kind: what is between the
products is one pass over memory each, compiled.

In PyTorch's operators a norm, a rotation and a gate are half a dozen passes each, and their gradients twice as many.
The linear layers are the model's own, with their adapters. Letters: N packed tokens, X
of them wanted, W hidden size, H query heads, K key heads, D head dimension, I between gate and down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad

from coevolve.policies.lean import SILU, rotation
from coevolve.policies.looped import array, loops, module
from coevolve.policies.packed import Packed, filled
from coevolve.policies.weights import trunk


def serves(causal: Any) -> bool:
    """Whether the model is of the kind, as ``probe`` has found, and the loops are there."""
    return bool(trunk(causal).takes_lean) and loops(trunk(causal)) is not None


def forward(causal: Any, packed: Packed, where_X: Tensor) -> Tensor:
    """The last hidden states of these packed tokens, [X, W].

    Of the last layer the others need keys and values only. The wanted are filled up too: there are few shapes.
    """
    body, wanted = trunk(causal), len(where_X)
    where_X = pad(where_X, (0, filled(wanted) - wanted))
    x_NW = body.embed_tokens(packed.ids_N)
    y_NW = torch.zeros_like(x_NW)
    cos_ND, sin_ND = (x_1ND[0].float() for x_1ND in rotation(body, x_NW[None], packed.position_N[None]))
    turn = [cos_ND, sin_ND, _back(sin_ND)]
    for number, layer in enumerate(body.layers):
        attention, mlp = layer.self_attn, layer.mlp
        x_NW, normed_NW = _added(x_NW, y_NW, layer.input_layernorm)
        attended_NW = _attended(number, attention, normed_NW, turn, packed)
        if number == len(body.layers) - 1:
            x_NW, attended_NW = embedding(where_X, x_NW), embedding(where_X, attended_NW)
        x_NW, normed_NW = _added(x_NW, attention.o_proj(attended_NW), layer.post_attention_layernorm)
        y_NW = mlp.down_proj(_gated(mlp.gate_proj(normed_NW), mlp.up_proj(normed_NW), mlp.act_fn))
    return _added(x_NW, y_NW, body.norm)[1][:wanted]


def _attended(number: int, attention: Any, x_NW: Tensor, turn: list[Tensor], packed: Packed) -> Tensor:
    products = (attention.q_proj, attention.k_proj, attention.v_proj)
    q_NHD, k_NKD, v_NKD = (product(x_NW).unflatten(-1, (-1, attention.head_dim)) for product in products)
    if hasattr(attention, "q_norm"):
        q_NHD, k_NKD = attention.q_norm(q_NHD), attention.k_norm(k_NKD)
    turned = (_Turn.apply(x, *turn) for x in (q_NHD, k_NKD))  # type: ignore[no-untyped-call]
    q, k, v = (x.transpose(0, 1)[None] for x in (*turned, v_NKD))
    return packed.attend(number, q, k, v, attention.scaling)[0].flatten(1)


def _added(x_NW: Tensor, y_NW: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
    """x + y, and its norm."""
    both: tuple[Tensor, Tensor] = _Added.apply(  # type: ignore[no-untyped-call]
        x_NW, y_NW, norm.weight, norm.variance_epsilon
    )
    return both


def _gated(gate_NI: Tensor, up_NI: Tensor, activation: Any) -> Tensor:
    """activation(gate) up."""
    found: Tensor = (
        _Gate.apply(gate_NI, up_NI)  # type: ignore[no-untyped-call]
        if isinstance(activation, SILU)
        else activation(gate_NI) * up_NI
    )
    return found


def _loop(name: str, inputs: Sequence[Tensor | float], outputs: Sequence[Tensor]) -> None:
    """Call a compiled loop. Inputs may be of any kind and are copied if need be, outputs must not."""
    given = [array(x.detach().contiguous()) if isinstance(x, Tensor) else x for x in inputs]
    assert all(x.dtype == torch.float32 and x.is_contiguous() for x in outputs)
    getattr(module(), name)(*given, *(x.numpy() for x in outputs))


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NW: Tensor, y_NW: Tensor, weight_W: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        sum_NW, out_NW, scale_N = torch.empty(x_NW.shape), torch.empty(x_NW.shape), torch.empty(len(x_NW))
        _loop("added", (x_NW, y_NW, weight_W, epsilon), (sum_NW, scale_N, out_NW))
        ctx.save_for_backward(sum_NW, weight_W, scale_N)
        return sum_NW, out_NW

    @staticmethod
    def backward(ctx: Any, grad_sum_NW: Tensor, grad_out_NW: Tensor) -> tuple[Tensor | None, ...]:
        sum_NW, weight_W, scale_N = ctx.saved_tensors
        grad_NW, grad_W = torch.empty(sum_NW.shape), torch.zeros(weight_W.shape)
        _loop("added_gradient", (grad_sum_NW, grad_out_NW, sum_NW, weight_W, scale_N), (grad_NW, grad_W))
        return grad_NW, grad_NW, grad_W, None


def _back(sin_ND: Tensor) -> Tensor:
    """The sine for the gradient: the first half's is what the second half gets of it, and the other way round."""
    return -sin_ND.roll(sin_ND.shape[-1] // 2, -1)


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NHD: Tensor, cos_ND: Tensor, sin_ND: Tensor, back_ND: Tensor) -> Tensor:
        ctx.save_for_backward(cos_ND, back_ND)
        return _Turn.turned(x_NHD, cos_ND, sin_ND)

    @staticmethod
    def backward(ctx: Any, grad_NHD: Tensor) -> tuple[Tensor | None, ...]:
        return _Turn.turned(grad_NHD, *ctx.saved_tensors), None, None, None

    @staticmethod
    def turned(x_NHD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
        out_NHD = torch.empty(x_NHD.shape)
        _loop("turn", (x_NHD, cos_ND, sin_ND), (out_NHD,))
        return out_NHD


class _Gate(torch.autograd.Function):
    """silu(gate) up."""

    @staticmethod
    def forward(ctx: Any, gate_NI: Tensor, up_NI: Tensor) -> Tensor:
        ctx.save_for_backward(gate_NI, up_NI)
        out_NI = torch.empty(gate_NI.shape)
        _loop("gated_apart", (gate_NI, up_NI), (out_NI,))
        return out_NI

    @staticmethod
    def backward(ctx: Any, grad_NI: Tensor) -> tuple[Tensor, Tensor]:
        gate_NI, up_NI = ctx.saved_tensors
        grad_gate_NI, grad_up_NI = torch.empty(gate_NI.shape), torch.empty(up_NI.shape)
        _loop("gate_gradient", (grad_NI, gate_NI, up_NI), (grad_gate_NI, grad_up_NI))
        return grad_gate_NI, grad_up_NI
