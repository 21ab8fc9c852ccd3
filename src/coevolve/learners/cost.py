"""What learning, sampling and publishing take, in bytes: formulas that a dry run prints before anything is bought.

All numbers of parameters, tokens and layers go in, bytes come out, and nothing is measured. ``copy`` is the bytes of a
weight in a copy that is not trained: 2 in bfloat16, 4 in float32, which ours are.
"""

from __future__ import annotations

from dataclasses import dataclass

from coevolve.compute.logprobs import GPU_ROWS

ACTIVATIONS = 85
"""Bytes kept for the gradient per token, layer and hidden size where layers are not computed again; an estimate by
reading (130 kB a token and layer at a hidden size of 1536)."""


@dataclass(frozen=True)
class Shape:
    """A model's numbers. outside: parameters outside of layers (embedding, head). kv: key heads x head dimension."""

    parameters: int
    outside: int
    layers: int
    hidden: int
    kv: int
    vocabulary: int


def train_state(parameters: int, trained: int, copy: int = 2) -> int:
    """Float32 weights, gradients and two moments of what is trained, beside a copy of the whole."""
    return 16 * trained + copy * parameters


def activations(shape: Shape, tokens: int, per: int = ACTIVATIONS) -> int:
    """Of a micro-batch. per: bytes per token, layer and hidden size; 2 where layers are computed again."""
    return per * shape.layers * shape.hidden * tokens


def logits(vocabulary: int) -> int:
    """Of the tokens whose logits a GPU makes at a time, with their gradient, in float32."""
    return 8 * GPU_ROWS * vocabulary


def kv_cache(shape: Shape, rows: int, prompt: int, response: int, group: int) -> int:
    """Keys and values in 2 bytes, a group's prompt once."""
    return 4 * shape.layers * shape.kv * rows * (prompt + group * response) // group


def published(parameters: int, trained: int, lora: bool, copy: int = 2) -> int:
    """What a new version of the weights is, as engines are given it."""
    return copy * (trained if lora else parameters)


def whole_at_once(shape: Shape) -> int:
    """Float32 weights that a rank borrows of the others: those outside of layers, and of two layers."""
    return 4 * (shape.outside + 2 * (shape.parameters - shape.outside) // shape.layers)


def on_card(
    state: dict[str, int], shape: Shape, ranks: int, sharded: bool, tokens: int, again: bool = False
) -> dict[str, int]:
    """A card's share. state: of one process that has all (``optim.plan_memory``); tokens: of a micro-batch; again:
    layers are computed again for the gradient."""
    parts = {part: size // ranks if sharded else size for part, size in state.items()}
    models = 1 + bool(state["reference"])
    if sharded:
        parts["borrowed"] = models * whole_at_once(shape)
    kept = activations(shape, tokens, 2 if again else ACTIVATIONS)
    return parts | {"activations": kept, "logits": logits(shape.vocabulary)}
