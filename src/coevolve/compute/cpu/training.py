"""The forward of an update on the CPU, written out for decoders of Llama's kind.

Linear layers of the same input are one product, unless they are more than that, such as those with adapters; of the
last layer only what is wanted is computed. Letters: N packed tokens, X of them wanted, W hidden size, I between gate
and down, H query heads, K key heads, A = H + 2 K, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad

from coevolve.compute.cpu.attention import TreeAttention
from coevolve.compute.cpu.decoder import added, gated, rotation, turned
from coevolve.compute.cpu.products import side_by_side
from coevolve.compute.prefix_tree import filled
from coevolve.models.adapters import Adapters


def forward(body: Any, tree: TreeAttention, where_X: Tensor, adapters: Adapters | None) -> Tensor:
    """The last hidden states of these packed tokens, [X, W]. body: the model below its head.

    Of the last layer the others need keys and values only. The wanted are filled up too: there are few shapes.
    """
    wanted = len(where_X)
    where_X = pad(where_X, (0, filled(wanted) - wanted))
    x_NW = body.embed_tokens(tree.ids_N)
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    y_NW = torch.zeros_like(x_NW)
    turn = [x_1ND[0].float() for x_1ND in rotation(body, x_NW[None], tree.position_N[None])]
    for number, layer in enumerate(body.layers):
        attention, mlp = layer.self_attn, layer.mlp
        x_NW, normed_NW = added(x_NW, y_NW, layer.input_layernorm, dtype)
        attended_NW = _attended(number, attention, normed_NW, turn, tree, adapters)
        if number == len(body.layers) - 1:
            x_NW, attended_NW = embedding(where_X, x_NW), embedding(where_X, attended_NW)
        out_NW = side_by_side([attention.o_proj], attended_NW.to(dtype), adapters)
        x_NW, normed_NW = added(x_NW, out_NW, layer.post_attention_layernorm, dtype)
        both_NI = side_by_side([mlp.gate_proj, mlp.up_proj], normed_NW, adapters)
        y_NW = side_by_side([mlp.down_proj], gated(both_NI, mlp.act_fn), adapters)
    return added(x_NW, y_NW, body.norm, torch.float32)[1][:wanted]


def _attended(
    number: int, attention: Any, x_NW: Tensor, turn: Sequence[Tensor], tree: TreeAttention, adapters: Adapters | None
) -> Tensor:
    layers = [attention.q_proj, attention.k_proj, attention.v_proj]
    heads_NAD: Tensor = torch.unflatten(side_by_side(layers, x_NW, adapters), -1, (-1, attention.head_dim))
    counts = [layer.out_features // attention.head_dim for layer in layers]
    if hasattr(attention, "q_norm"):
        q_NHD, k_NKD, v_NKD = torch.split(heads_NAD, counts, 1)
        heads_NAD = torch.cat((attention.q_norm(q_NHD), attention.k_norm(k_NKD), v_NKD), 1)
    both_NAD, v_NKD = heads_NAD.tensor_split((counts[0] + counts[1],), 1)
    q_NHD, k_NKD = turned(both_NAD, *turn).tensor_split((counts[0],), 1)
    k_NKD = k_NKD.to(heads_NAD.dtype)  # so does a rollout remember them, and both must see the same
    q, k, v = (x.transpose(0, 1)[None] for x in (q_NHD, k_NKD, v_NKD))
    return tree.attend(number, q, k, v, attention.scaling)[0].flatten(1)
