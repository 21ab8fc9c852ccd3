"""What learning, sampling and publishing take, in bytes: formulas that a dry run prints before anything is bought.

All numbers of parameters, tokens and layers go in, bytes come out; ``ACTIVATIONS`` were counted. ``copy`` is the bytes
of a weight in a copy that is not trained: 2 in bfloat16, 4 in float32, which ours are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coevolve.compute.logprobs import GPU_ROWS
from coevolve.models.spec import PolicySpec

ACTIVATIONS = {"bfloat16": 85, "float32": 140}
"""Bytes kept for the gradient per token, layer and hidden size; 82 and 135 were counted at the shapes of 1.5 billion
parameters (full weights by ``torch`` on a CPU; adapters keep 68 and 128), and a GPU copies keys for every head."""
AGAIN = 4
"""Likewise where layers are computed again: a layer's input, in float32."""


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


def activations(shape: Shape, tokens: int, per: int) -> int:
    """Of a micro-batch. per: bytes per token, layer and hidden size (``ACTIVATIONS``, ``AGAIN``)."""
    return per * shape.layers * shape.hidden * tokens


def learning(shape: Shape, spec: PolicySpec) -> dict[str, int]:
    """What a policy takes while it learns from a micro-batch, beside its state. Trained weights that are computed with
    in bfloat16 are rounded, and the rounded ones kept for the gradient of every layer that is not computed again."""
    again = spec.gradient_checkpointing
    rounded = spec.weights == "full" and spec.dtype == "bfloat16" and not again
    return {
        "rounded": 2 * shape.parameters * rounded,
        "activations": activations(shape, spec.micro_tokens, AGAIN if again else ACTIVATIONS[spec.dtype]),
        "logits": logits(shape.vocabulary),
    }


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


def on_card(state: Mapping[str, int], shape: Shape, ranks: int, spec: PolicySpec) -> dict[str, int]:
    """A card's share. state: of one process that has all (``optim.plan_memory``)."""
    sharded = spec.weights == "full"
    parts = {part: size // ranks if sharded else size for part, size in state.items()}
    models = 1 + bool(state["reference"])
    if sharded:
        parts["borrowed"] = models * whole_at_once(shape)
    return parts | learning(shape, spec)
