"""What learning, sampling and publishing take, in bytes: formulas that a dry run prints before anything is bought.

All numbers of parameters, tokens and layers go in, bytes come out; ``ACTIVATIONS`` were counted. ``copy`` is the bytes
of a weight in a copy that is not trained: 2 in bfloat16, 4 in float32, which ours are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coevolve.compute.logprobs import GPU_ROWS
from coevolve.models.spec import PolicySpec

_FLOAT = 4  # bytes of a float32, which all weights that are trained and all gradients are, and moments as a rule
_HALF = 2  # bytes of a bfloat16
# Dettmers et al. 2021 (arXiv 2110.02861): a byte, and a float32 for the scale of 256.
_EIGHT_BIT = 1 + _FLOAT / 256
# QLoRA (arXiv 2305.14314, section 3): half a byte, a byte per 64 weights for their scale, a float32 per 256 scales.
_FOUR_BIT = 0.5 + 1 / 64 + _FLOAT / (64 * 256)

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


def plan_memory(spec: PolicySpec, parameters: int, reference: bool, critic: bool, linear: int = 0) -> dict[str, int]:
    """Bytes one policy will need for weights, gradients, optimizer and reference; an estimate, without activations.

    parameters: of its model. linear: how many of these are weights of linear layers below the head, which is what
    load_in_4bit makes small and bfloat16 halves (``models.narrow``, which may halve the embedding, too: not counted). A
    lora policy's base, the reference, and a frozen policy's weights exist once per model, however many policies use
    them.
    """
    # A model of hidden size D has about 12 D^2 parameters in each of about D / 64 layers.
    hidden = round((parameters * 64 / 12) ** (1 / 3))
    if spec.weights == "full":
        trained = parameters
    elif spec.weights == "lora":
        trained = round(parameters * 2 * spec.lora.rank / hidden)  # A and B of a D x D matrix
    else:
        trained = 0
    value = hidden + 1 if critic and trained else 0
    adapter = trained if spec.weights == "lora" else 0
    held = _FOUR_BIT if spec.load_in_4bit else _HALF if spec.dtype == "bfloat16" else _FLOAT
    saved = round((_FLOAT - held) * linear)
    moment = _FLOAT if spec.optimizer == "adamw" else _EIGHT_BIT
    return {
        "weights": _FLOAT * (parameters + adapter + value) - saved * (spec.weights != "full"),
        "gradients": _FLOAT * (trained + value),
        "optimizer": round(2 * moment * (trained + value)),
        "reference": _FLOAT * parameters - saved if reference and spec.weights == "full" else 0,
    }


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


def published(parameters: int, trained: int, lora: bool, copy: int = 2) -> int:
    """What a new version of the weights is, as engines are given it."""
    return copy * (trained if lora else parameters)


def whole_at_once(shape: Shape) -> int:
    """Float32 weights that a rank borrows of the others: those outside of layers, and of two layers."""
    return 4 * (shape.outside + 2 * (shape.parameters - shape.outside) // shape.layers)


def on_card(state: Mapping[str, int], shape: Shape, ranks: int, spec: PolicySpec) -> dict[str, int]:
    """A card's share. state: of one process that has all (``plan_memory``)."""
    sharded = spec.weights == "full"
    parts = {part: size // ranks if sharded else size for part, size in state.items()}
    models = 1 + bool(state["reference"])
    if sharded:
        parts["borrowed"] = models * whole_at_once(shape)
    return parts | learning(shape, spec)
