"""A forward without gradient, written out for decoders of Llama's kind: what a rollout computes, in few operations.

A rollout's step has few rows, and transformers' modules take some forty small operations a layer for them, most of
which cost more to start than to compute. Here queries, keys and values come from one product, and so do gate and up;
queries and keys are turned together; and where there are compiled loops, a layer is one of them for one token of every
row (``layer``), and for more tokens what is between two products. ``probe`` compares all this with the model's modules
when it is loaded on the CPU. Letters: B sequences of S tokens, N of all, W hidden size, I between gate and down, H
query heads, K key heads, A = H + K, X = A + K, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import SiLUActivation
from transformers.modeling_outputs import BaseModelOutputWithPast

from coevolve.compute.attention import Sharing, shares
from coevolve.compute.cpu.arrays import array, either, room
from coevolve.compute.cpu.layer import Adapted, Layer, as_loop, nobodys
from coevolve.compute.cpu.panels import Panels
from coevolve.compute.cpu.prefix_cache import Looped, loops
from coevolve.compute.linear import MOST, FastLinear, laid_out, packed
from coevolve.models.adapters import Adapters
from coevolve.models.weights import trunk

_TRUNK = {"embed_tokens", "layers", "norm", "rotary_emb"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
"""The modules of a decoder of Llama's kind, one set inside the other."""

_HEAD_NORMS = {"q_norm", "k_norm"}

SILU = (nn.SiLU, SiLUActivation)


def resembles(body: nn.Module) -> bool:
    """Whether the model below the head is made of Llama's modules, with no parameter elsewhere and ordinary products,
    few enough to have their weights twice."""
    if _children(body) != _TRUNK:
        return False
    layers: Any = body.layers
    products = [m for name, m in body.named_modules() if name.endswith("_proj")]
    return (
        all(
            _children(layer) == _LAYER
            and _children(layer.self_attn) - _HEAD_NORMS == _ATTENTION
            and _children(layer.mlp) == _MLP
            for layer in layers
        )
        and all(name.rpartition(".")[2] in ("weight", "bias") for name, _ in body.named_parameters())
        and all(type(product) in (nn.Linear, FastLinear) for product in products)
        and sum(product.weight.numel() for product in products) <= MOST
    )


def _children(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


@contextmanager
def lean(causal: Any, dtype: torch.dtype, adapters: Adapters | None) -> Iterator[None]:
    """Let the model below the head compute in dtype with copies of its linear layers' weights, which must not change
    inside; as written here if it shares and ``probe`` has said so (``takes_lean``)."""
    body = trunk(causal)
    if not (shares(causal) and body.takes_lean):
        with packed(body, dtype, loops(body)):
            yield
        return
    before = body.__dict__.get("forward")
    body.__dict__["forward"] = Lean(body, dtype, adapters)
    try:
        yield
    finally:
        del body.__dict__["forward"]
        if before is not None:
            body.__dict__["forward"] = before


class Lean:
    """What takes the place of the forward of the model below the head."""

    def __init__(self, body: Any, dtype: torch.dtype, adapters: Adapters | None) -> None:
        self.body, self.compiled = body, loops(body)
        adapters = None if adapters is None or adapters.bare else adapters
        self.layers = [_Layer.of(layer, dtype, adapters, self.compiled) for layer in body.layers]
        whole = [loop for loop in (layer.loop() for layer in self.layers) if loop is not None]
        self.dtype, self.loops = dtype, whole if len(whole) == len(self.layers) else None

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, position_ids: Tensor, sharing: Sharing, **_: Any) -> BaseModelOutputWithPast:
        x_BSW = self.body.embed_tokens(input_ids)
        cos_BSD, sin_BSD = rotation(self.body, x_BSW, position_ids)
        turn: tuple[Any, Any] = (cos_BSD, sin_BSD)
        if isinstance(sharing, Looped):
            turn = (array(cos_BSD)[:, 0], array(sin_BSD)[:, 0])
        y_BSW = torch.zeros(x_BSW.shape, dtype=self.dtype, device=x_BSW.device)
        if self.loops is not None and isinstance(sharing, Looped):
            assert x_BSW.dtype == torch.float32, "weights are float32, whatever is computed in"
            x_BW, y_BW = array(x_BSW[:, 0]), either(y_BSW[:, 0])
            for number, run in enumerate(self.loops):
                run(number, x_BW, y_BW, turn, sharing)  # into these arrays, which are the tensors' memory
        else:
            for number, layer in enumerate(self.layers):
                x_BSW, y_BSW = layer(number, x_BSW, y_BSW, turn, sharing)
        last_BSW = _added(x_BSW, y_BSW, self.body.norm, torch.float32, self.compiled)[1]
        return BaseModelOutputWithPast(last_hidden_state=last_BSW)


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
    """One layer of the decoder. module: transformers' one, whose norms and settings it has. dtype: of its products.
    heads: H and K. compiled: the loops, if there are any."""

    module: Any
    dtype: torch.dtype
    heads: Sequence[int]
    norm_AD: Tensor | None
    compiled: Any | None
    qkv: _Product
    out: _Product
    gate_up: _Product
    down: _Product

    @classmethod
    def of(cls, module: Any, dtype: torch.dtype, adapters: Adapters | None, compiled: Any | None) -> _Layer:
        attention, mlp = module.self_attn, module.mlp
        heads = [layer.out_features // attention.head_dim for layer in (attention.q_proj, attention.k_proj)]
        products = (
            (attention.q_proj, attention.k_proj, attention.v_proj),
            (attention.o_proj,),
            (mlp.gate_proj, mlp.up_proj),
            (mlp.down_proj,),
        )
        made = (
            _Product(layers, laid_out([getattr(x, "base_layer", x) for x in layers], dtype, compiled), adapters)
            for layers in products
        )
        return cls(module, dtype, heads, _norms_AD(attention, heads), compiled, *made)

    def __call__(
        self, number: int, x_BSW: Tensor, y_BSW: Tensor, turn: tuple[Any, Any], sharing: Sharing
    ) -> tuple[Tensor, Tensor]:
        """The layer's input is the sum of x and y, and so is its output."""
        x_BSW, normed_BSW = self._added(x_BSW, y_BSW, self.module.input_layernorm)
        attended_BSW = self._attended(number, normed_BSW, turn, sharing)
        x_BSW, normed_BSW = self._added(x_BSW, attended_BSW, self.module.post_attention_layernorm)
        return x_BSW, self.down(_gated(self.gate_up(normed_BSW), self.module.mlp.act_fn, self.compiled))

    def loop(self) -> Layer | None:
        """The same for one token of every row, if it can be a loop: with this gate; norms of heads give float32, which
        in bfloat16 is another kind than products make."""
        products = (self.qkv, self.out, self.gate_up, self.down)
        panels = [product.base for product in products if isinstance(product.base, Panels)]
        mixed = self.norm_AD is not None and self.dtype != torch.float32
        if mixed or len(panels) < len(products) or not isinstance(self.module.mlp.act_fn, SILU):
            return None
        return as_loop(self.module, self.norm_AD, panels, self._adapted, self.compiled)

    def _adapted(self) -> Adapted:
        """Whose adapters are on this layer's products now."""
        if self.qkv.adapters is None:
            return nobodys(self.dtype)
        found = (
            product.adapters.panels(product.layers, self.dtype, self.compiled)
            for product in (self.qkv, self.out, self.gate_up, self.down)
            if product.adapters is not None
        )
        return self.qkv.adapters.runs_M, tuple(found)

    def _added(self, x_BSW: Tensor, y_BSW: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
        return _added(x_BSW, y_BSW, norm, self.dtype, self.compiled)

    def _attended(self, number: int, x_BSW: Tensor, turn: tuple[Any, Any], sharing: Sharing) -> Tensor:
        attention, (queries, keys) = self.module.self_attn, self.heads
        heads_BSXD = torch.unflatten(self.qkv(x_BSW), -1, (-1, attention.head_dim))
        if self.norm_AD is not None:
            x_BSAD, v_BSKD = heads_BSXD.tensor_split((queries + keys,), 2)
            normed = functional.rms_norm(x_BSAD.float(), x_BSAD.shape[-1:], None, attention.q_norm.variance_epsilon)
            heads_BSXD = torch.cat((self.norm_AD * normed.to(x_BSAD.dtype), v_BSKD), 2)
        if isinstance(sharing, Looped):
            return self.out(sharing.attend_heads(number, either(heads_BSXD)[:, 0], *turn, attention.scaling).flatten(2))
        x_BSAD, v_BSKD = heads_BSXD.tensor_split((queries + keys,), 2)
        q_BSHD, k_BSKD = _turned(x_BSAD, *turn).tensor_split((queries,), 2)
        if self.compiled is not None:  # as new tokens' keys are remembered, and as updates see them
            k_BSKD = k_BSKD.to(heads_BSXD.dtype)
        q, k, v = (x.transpose(1, 2) for x in (q_BSHD, k_BSKD, v_BSKD))
        return self.out(sharing.attend(number, q, k, v, attention.scaling).flatten(2))


def _norms_AD(attention: Any, heads: Sequence[int]) -> Tensor | None:
    """The weights of the norms of queries and keys, if there are any."""
    if not hasattr(attention, "q_norm"):
        return None
    norms = (attention.q_norm, attention.k_norm)
    return torch.cat([norm.weight.expand(n, -1) for norm, n in zip(norms, heads, strict=True)])


def rotation(body: Any, x_BSW: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin for whole heads, [B, S, D]. Raises NotImplementedError where a part of each does not turn."""
    cos_BSD, sin_BSD = body.rotary_emb(x_BSW, position_ids)
    if cos_BSD.shape[-1] != body.layers[0].self_attn.head_dim or cos_BSD.shape[-1] % 2:
        raise NotImplementedError("heads that turn in part")
    return cos_BSD, sin_BSD


def _added(x: Tensor, y: Tensor, norm: Any, dtype: torch.dtype, compiled: Any | None) -> tuple[Tensor, Tensor]:
    """x + y, and its norm. Loops make it in dtype, the sum in float32; PyTorch in the weight's, which products cast."""
    if compiled is None:
        x = x + y
        return x, functional.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
    y_NW = either(y).reshape(-1, y.shape[-1])
    (sum_NW, both), (out_NW, out) = room(y_NW.shape, torch.float32), room(y_NW.shape, dtype)
    given = (array(x).reshape(y_NW.shape), y_NW, array(norm.weight.detach()), norm.variance_epsilon)
    compiled.added(*given, sum_NW, np.empty(len(y_NW), np.float32), out_NW)
    return both.view(x.shape), out.view(x.shape)


def _turned(x_BSAD: Tensor, cos_BSD: Tensor, sin_BSD: Tensor) -> Tensor:
    """(a, b), its halves, turns into (a cos - b sin, b cos + a sin)."""
    half = x_BSAD.shape[-1] // 2
    signed_BSD = torch.cat((-sin_BSD[..., :half], sin_BSD[..., half:]), -1)
    return torch.addcmul(x_BSAD * cos_BSD.unsqueeze(2), x_BSAD.roll(half, -1), signed_BSD.unsqueeze(2))


def _gated(both: Tensor, activation: Any, compiled: Any | None) -> Tensor:
    """activation(gate) up."""
    if compiled is None or not isinstance(activation, SILU):
        gate, up = both.chunk(2, -1)
        product: Tensor = activation(gate) * up
        return product
    both_NI = either(both).reshape(-1, both.shape[-1])
    out_NI, out = room((len(both_NI), both.shape[-1] // 2), both.dtype)
    compiled.gated(both_NI, out_NI)
    return out.view(*both.shape[:-1], -1)
