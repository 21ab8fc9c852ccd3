"""The forward of a rollout on the CPU for decoders of Llama's kind: matrix products, and compiled loops between them.

A rollout's step has few rows, and transformers' modules run some forty small operations per layer for them, most of
which cost more to start than to compute. Here queries, keys and values come from one product, and so do gate and up.
Letters: B sequences of S tokens, N tokens of all sequences, W hidden size, I size between gate and down, H query heads,
K key heads, A = H + K, X = A + K, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import SiLUActivation

from coevolve.compute.attention import Attention
from coevolve.compute.cpu.arrays import array, buffer, either
from coevolve.compute.cpu.attention import PrefixCache
from coevolve.compute.cpu.loops import between
from coevolve.compute.cpu.products import Panels, panels
from coevolve.models.adapters import Adapters

MOST = 1 << 28
"""The most weights of a model's products that are copied for a rollout, during which they are in memory twice."""

MOST_KEPT = 1 << 31
"""The most weights if they are frozen and the copy is made once and kept: it takes 4 GiB in bfloat16, and for a while
at the start, when the loops are compared with the model in float32, 8 GiB."""

_TRUNK = {"embed_tokens", "layers", "norm", "rotary_emb"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
"""The names of the modules in a decoder of Llama's kind: of the trunk, a layer, its attention and its MLP."""

_HEAD_NORMS = {"q_norm", "k_norm"}

SILU = (nn.SiLU, SiLUActivation)

CosSin = tuple[Any, Any]
"""The cosines and sines of every token's rotary embedding."""


def unlike(body: nn.Module, kept: bool) -> str | None:
    """Return why this decoder cannot compute the model below the head; None if it can. The model must consist of
    Llama's modules with ordinary linear layers, no other parameters, and few enough weights to copy. kept: whether the
    copy is made once, not for every rollout."""
    if _children(body) != _TRUNK:
        return "it is no decoder of Llama's kind"
    layers: Any = body.layers
    products = [m for name, m in body.named_modules() if name.endswith("_proj")]
    alike = all(
        _children(layer) == _LAYER
        and _children(layer.self_attn) - _HEAD_NORMS == _ATTENTION
        and _children(layer.mlp) == _MLP
        for layer in layers
    ) and all(name.rpartition(".")[2] in ("weight", "bias") for name, _ in body.named_parameters())
    if not alike or not all(type(product) is nn.Linear and product.in_features % 2 == 0 for product in products):
        return "its layers are not Llama's"
    most, when = (MOST_KEPT, "and keep") if kept else (MOST, "for every rollout")
    if sum(product.weight.numel() for product in products) > most:
        return f"it has more than {most // 10**6} million weights to copy {when}"
    return None


def _children(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


class Decoder:
    """The model below the head, computed in dtype with copies of its products' weights, which must not change."""

    def __init__(self, body: Any, dtype: torch.dtype, adapters: Adapters) -> None:
        self.body, self.dtype = body, dtype
        self.layers = [_Layer.of(layer, dtype, None if adapters.bare else adapters) for layer in body.layers]

    @torch.no_grad()
    def __call__(self, ids_BS: Tensor, position_BS: Tensor, attention: Attention) -> Tensor:
        """Return the last hidden states, [B, S, W]."""
        x_BSW = self.body.embed_tokens(ids_BS)
        cos_BSD, sin_BSD = rotation(self.body, x_BSW, position_BS)
        cos_sin: CosSin = (cos_BSD, sin_BSD)
        if isinstance(attention, PrefixCache):
            cos_sin = (array(cos_BSD)[:, 0], array(sin_BSD)[:, 0])
        y_BSW = torch.zeros(x_BSW.shape, dtype=self.dtype)
        for number, layer in enumerate(self.layers):
            x_BSW, y_BSW = layer(number, x_BSW, y_BSW, cos_sin, attention)
        return _added(x_BSW, y_BSW, self.body.norm, torch.float32)[1]


@dataclass(frozen=True, slots=True)
class _Product:
    """Linear layers with the same input, as one product plus their adapters, outputs side by side."""

    layers: Sequence[Any]
    base: Panels
    adapters: Adapters | None

    def __call__(self, x: Tensor) -> Tensor:
        y = self.base(x)
        return y if self.adapters is None else self.adapters.add(self.layers, x, y)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer of the decoder. module: transformers' layer, whose norms and settings are used. dtype: of the products.
    heads: H and K. products: queries, keys and values; output; gate and up; down."""

    module: Any
    dtype: torch.dtype
    heads: Sequence[int]
    norm_AD: Tensor | None
    products: tuple[_Product, ...]

    @classmethod
    def of(cls, module: Any, dtype: torch.dtype, adapters: Adapters | None) -> _Layer:
        attention, mlp = module.self_attn, module.mlp
        heads = [layer.out_features // attention.head_dim for layer in (attention.q_proj, attention.k_proj)]
        products = (
            _Product(layers, panels([getattr(x, "base_layer", x) for x in layers], dtype), adapters)
            for layers in (
                (attention.q_proj, attention.k_proj, attention.v_proj),
                (attention.o_proj,),
                (mlp.gate_proj, mlp.up_proj),
                (mlp.down_proj,),
            )
        )
        return cls(module, dtype, heads, _norms_AD(attention, heads), tuple(products))

    def __call__(
        self, number: int, x_BSW: Tensor, y_BSW: Tensor, cos_sin: CosSin, attention: Attention
    ) -> tuple[Tensor, Tensor]:
        """Run the layer. Its input is the sum of x and y, and its output the sum of the two returned tensors."""
        *_, gate_up, down = self.products
        x_BSW, normed_BSW = _added(x_BSW, y_BSW, self.module.input_layernorm, self.dtype)
        attended_BSW = self._attended(number, normed_BSW, cos_sin, attention)
        x_BSW, normed_BSW = _added(x_BSW, attended_BSW, self.module.post_attention_layernorm, self.dtype)
        return x_BSW, down(_gated(gate_up(normed_BSW), self.module.mlp.act_fn))

    def _attended(self, number: int, x_BSW: Tensor, cos_sin: CosSin, ours: Attention) -> Tensor:
        attention, (queries, keys), (qkv, out, *_) = self.module.self_attn, self.heads, self.products
        heads_BSXD = torch.unflatten(qkv(x_BSW), -1, (-1, attention.head_dim))
        if self.norm_AD is not None:
            x_BSAD, v_BSKD = heads_BSXD.tensor_split((queries + keys,), 2)
            normed = functional.rms_norm(x_BSAD.float(), x_BSAD.shape[-1:], None, attention.q_norm.variance_epsilon)
            heads_BSXD = torch.cat((self.norm_AD * normed.to(x_BSAD.dtype), v_BSKD), 2)
        if isinstance(ours, PrefixCache):
            return out(ours.attend_heads(number, either(heads_BSXD)[:, 0], *cos_sin, attention.scaling).flatten(2))
        x_BSAD, v_BSKD = heads_BSXD.tensor_split((queries + keys,), 2)
        q_BSHD, k_BSKD = _rotated(x_BSAD, *cos_sin).tensor_split((queries,), 2)
        k_BSKD = k_BSKD.to(heads_BSXD.dtype)  # the dtype of new tokens' keys in the KV cache and in updates
        q, k, v = (x.transpose(1, 2) for x in (q_BSHD, k_BSKD, v_BSKD))
        return out(ours.attend(number, q, k, v, attention.scaling).flatten(2))


def _norms_AD(attention: Any, heads: Sequence[int]) -> Tensor | None:
    """Return the weights of the norms of queries and keys, or None if the model has none."""
    if not hasattr(attention, "q_norm"):
        return None
    norms = (attention.q_norm, attention.k_norm)
    return torch.cat([norm.weight.expand(n, -1) for norm, n in zip(norms, heads, strict=True)])


def rotation(body: Any, x_BSW: Tensor, position_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin for whole heads, [B, S, D]. Raises NotImplementedError if only a part of each is rotated."""
    cos_BSD, sin_BSD = body.rotary_emb(x_BSW, position_BS)
    if cos_BSD.shape[-1] != body.layers[0].self_attn.head_dim or cos_BSD.shape[-1] % 2:
        raise NotImplementedError("heads that are rotated in part")
    return cos_BSD, sin_BSD


def _added(x: Tensor, y: Tensor, norm: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return x + y in float32, and its norm in dtype."""
    y_NW = either(y).reshape(-1, y.shape[-1])
    (sum_NW, both), (out_NW, out) = buffer(y_NW.shape, torch.float32), buffer(y_NW.shape, dtype)
    given = (array(x).reshape(y_NW.shape), y_NW, array(norm.weight.detach()), norm.variance_epsilon)
    between.added(*given, sum_NW, np.empty(len(y_NW), np.float32), out_NW)
    return both.view(x.shape), out.view(x.shape)


def _rotated(x_BSAD: Tensor, cos_BSD: Tensor, sin_BSD: Tensor) -> Tensor:
    """Rotate each head: its halves (a, b) become (a cos - b sin, b cos + a sin)."""
    half = x_BSAD.shape[-1] // 2
    signed_BSD = torch.cat((-sin_BSD[..., :half], sin_BSD[..., half:]), -1)
    return torch.addcmul(x_BSAD * cos_BSD.unsqueeze(2), x_BSAD.roll(half, -1), signed_BSD.unsqueeze(2))


def _gated(both: Tensor, activation: Any) -> Tensor:
    """Return activation(gate) * up, of gate and up side by side."""
    if not isinstance(activation, SILU):
        gate, up = both.chunk(2, -1)
        product: Tensor = activation(gate) * up
        return product
    both_NI = either(both).reshape(-1, both.shape[-1])
    out_NI, out = buffer((len(both_NI), both.shape[-1] // 2), both.dtype)
    between.gated(both_NI, out_NI)
    return out.view(*both.shape[:-1], -1)
