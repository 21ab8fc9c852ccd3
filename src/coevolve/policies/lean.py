"""A forward without gradient, written out for decoders of Llama's kind: what a rollout computes, in few operations.

A rollout's step has few rows, and transformers' modules take some forty small operations a layer for them, most of
which cost more to start than to compute. Here queries, keys and values come from one product, and so do gate and up;
queries and keys are turned together. ``probe`` tests for every model that is loaded whether this is what it computes.
Letters: B sequences of S tokens, W hidden size, H query heads, K key heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutputWithPast

from coevolve.policies.adapters import Adapters
from coevolve.policies.attention import Sharing, shares
from coevolve.policies.linear import FastLinear, fits_twice, laid_out, packed
from coevolve.policies.weights import trunk

_TRUNK = {"embed_tokens", "layers", "norm", "rotary_emb"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
"""The modules of a decoder of Llama's kind, one set inside the other."""

_HEAD_NORMS = {"q_norm", "k_norm"}


def resembles(body: nn.Module) -> bool:
    """Whether the model below the head is made of Llama's modules, and its products are ordinary ones."""
    if _children(body) != _TRUNK:
        return False
    layers: Any = body.layers
    return all(
        _children(layer) == _LAYER
        and _children(layer.self_attn) - _HEAD_NORMS == _ATTENTION
        and _children(layer.mlp) == _MLP
        and all(
            type(module) in (nn.Linear, FastLinear)
            for part in (layer.self_attn, layer.mlp)
            for name, module in part.named_children()
            if name.endswith("_proj")
        )
        for layer in layers
    )


def _children(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


@contextmanager
def lean(causal: Any, dtype: torch.dtype, adapters: Adapters | None) -> Iterator[None]:
    """Let the model below the head compute in dtype with copies of its linear layers' weights, which must not change
    inside; as written here if it shares and ``probe`` has found that right."""
    body = trunk(causal)
    if not (shares(causal) and body.lean and causal.device.type == "cpu" and fits_twice(body)):
        with packed(body, dtype):
            yield
        return
    body.__dict__["forward"] = Lean(body, dtype, adapters)
    try:
        yield
    finally:
        del body.__dict__["forward"]


class Lean:
    """What takes the place of the trunk's forward."""

    def __init__(self, body: Any, dtype: torch.dtype, adapters: Adapters | None) -> None:
        self.body = body

        def product(*layers: Any) -> _Product:
            return _Product(
                layers, laid_out([getattr(layer, "base_layer", layer) for layer in layers], dtype), adapters
            )

        self.layers = [_Layer.of(layer, product) for layer in body.layers]

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, position_ids: Tensor, sharing: Sharing, **_: Any) -> BaseModelOutputWithPast:
        x_BSW = self.body.embed_tokens(input_ids)
        cos_BSD, sin_BSD = self.body.rotary_emb(x_BSW, position_ids)
        half = sin_BSD.shape[-1] // 2
        signed_BSD = torch.cat((-sin_BSD[..., :half], sin_BSD[..., half:]), -1)
        turn = (cos_BSD[:, :, None], signed_BSD[:, :, None])
        for number, layer in enumerate(self.layers):
            x_BSW = layer(number, x_BSW, turn, sharing)
        return BaseModelOutputWithPast(last_hidden_state=_normed(x_BSW, self.body.norm))


@dataclass(frozen=True, slots=True)
class _Product:
    """Linear layers that have the same input, their outputs side by side, with what adapters add to each."""

    layers: Sequence[Any]
    base: Callable[[Tensor], Tensor]
    adapters: Adapters | None

    def __call__(self, x: Tensor) -> Tensor:
        y = self.base(x)
        return y if self.adapters is None else self.adapters.add(self.layers, x, y)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer of the decoder. module: transformers' one, whose norms and settings it has. heads: H and K."""

    module: Any
    heads: Sequence[int]
    head_norm: Tensor | None
    qkv: _Product
    out: _Product
    gate_up: _Product
    down: _Product

    @classmethod
    def of(cls, module: Any, product: Callable[..., _Product]) -> _Layer:
        attention, mlp = module.self_attn, module.mlp
        heads = [layer.out_features // attention.head_dim for layer in (attention.q_proj, attention.k_proj)]
        return cls(
            module,
            heads,
            _head_norm(attention, heads),
            product(attention.q_proj, attention.k_proj, attention.v_proj),
            product(attention.o_proj),
            product(mlp.gate_proj, mlp.up_proj),
            product(mlp.down_proj),
        )

    def __call__(self, number: int, x_BSW: Tensor, turn: tuple[Tensor, Tensor], sharing: Sharing) -> Tensor:
        x_BSW = x_BSW + self._attended(number, _normed(x_BSW, self.module.input_layernorm), turn, sharing)
        gate_up = self.gate_up(_normed(x_BSW, self.module.post_attention_layernorm))
        gate, up = gate_up.chunk(2, -1)
        return x_BSW + self.down(self.module.mlp.act_fn(gate) * up)

    def _attended(self, number: int, x_BSW: Tensor, turn: tuple[Tensor, Tensor], sharing: Sharing) -> Tensor:
        attention, (h, k) = self.module.self_attn, self.heads
        made = torch.unflatten(self.qkv(x_BSW), -1, (-1, attention.head_dim))
        both = made[:, :, : h + k]
        if self.head_norm is not None:
            both = functional.rms_norm(both.float(), both.shape[-1:], None, attention.q_norm.variance_epsilon)
            both = self.head_norm * both.to(made.dtype)
        both = torch.addcmul(both * turn[0], both.roll(both.shape[-1] // 2, -1), turn[1])
        q, k_, v = (x.transpose(1, 2) for x in (both[:, :, :h], both[:, :, h:], made[:, :, h + k :]))
        return self.out(sharing.attend(number, q, k_, v, attention.scaling).flatten(2))


def _head_norm(attention: Any, heads: Sequence[int]) -> Tensor | None:
    """The weights of the norms of queries and keys, [H + K, D], if there are any."""
    if not hasattr(attention, "q_norm"):
        return None
    norms = (attention.q_norm, attention.k_norm)
    return torch.cat([norm.weight.expand(n, -1) for norm, n in zip(norms, heads, strict=True)])


def _normed(x: Tensor, norm: Any) -> Tensor:
    return functional.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
