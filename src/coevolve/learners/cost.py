"""Estimates of the memory for training, sampling and publishing, which a dry run prints before hardware is bought.

The functions take numbers of parameters, tokens and layers and return bytes; the constants in ``ACTIVATIONS`` are a
little above measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from coevolve.compute.logprobs import GPU_ROWS
from coevolve.models.spec import PolicySpec

_FLOAT = 4  # bytes of a float32: all trained weights and gradients, and moments unless they are in 8 bits
_HALF = 2  # bytes of a bfloat16
# Dettmers et al. 2021 (arXiv 2110.02861): a byte, and a float32 for the scale of 256.
_EIGHT_BIT = 1 + _FLOAT / 256
# QLoRA (arXiv 2305.14314, section 3): half a byte, a byte per 64 weights for their scale, a float32 per 256 scales.
_FOUR_BIT = 0.5 + 1 / 64 + _FLOAT / (64 * 256)

ACTIVATIONS = {"bfloat16": 85, "float32": 140}
"""Bytes of activations kept for the backward per token, layer and hidden unit. 82 and 135 were measured at the shapes
of a 1.5-billion-parameter model (full weights by ``torch`` on a CPU; adapters keep 68 and 128); a GPU also copies the
keys for every head."""
AGAIN = 4
"""The same number with gradient checkpointing, which keeps only each layer's input, in float32."""


@dataclass(frozen=True)
class Shape:
    """A model's sizes. outside: parameters outside of layers (embedding, head). kv: key heads x head dimension."""

    parameters: int
    outside: int
    layers: int
    hidden: int
    kv: int
    vocabulary: int


def plan_memory(
    spec: PolicySpec, parameters: int, reference: bool, critic: bool, linear: int = 0, adapter: int = 0
) -> dict[str, int]:
    """Return the estimated bytes that one policy needs for weights, gradients, optimizer and reference, without
    activations.

    parameters: of its model. linear: how many of these are weights of linear layers below the head, which load_in_4bit
    shrinks and bfloat16 halves (``models.narrow``, which may halve the embedding, too: not counted). adapter: of a lora
    policy's adapter. Its base, the reference, and a frozen policy's weights exist once per model, however many policies
    use them.
    """
    trained = _trained(spec, parameters, adapter)
    value = _hidden(parameters) + 1 if critic and trained else 0
    held = _FOUR_BIT if spec.load_in_4bit else _HALF if spec.dtype == "bfloat16" else _FLOAT
    saved = round((_FLOAT - held) * linear)
    moment = _FLOAT if spec.optimizer == "adamw" else _EIGHT_BIT
    return {
        "weights": _FLOAT * (parameters + trained * (spec.weights == "lora") + value)
        - saved * (spec.weights != "full"),
        "gradients": _FLOAT * (trained + value),
        "optimizer": round(2 * moment * (trained + value)),
        "reference": _FLOAT * parameters - saved if reference and spec.weights == "full" else 0,
    }


def published(spec: PolicySpec, parameters: int, adapter: int, by_disk: bool = True) -> int:
    """Return the bytes that one publish of a policy writes for an engine that does not share its memory: the trained
    weights, without a value head, in float32; full weights that are not sent through the disk in the computation's
    dtype. parameters, adapter: as in ``plan_memory``."""
    half = spec.weights == "full" and spec.dtype == "bfloat16" and not by_disk
    return (_HALF if half else _FLOAT) * _trained(spec, parameters, adapter)


def _trained(spec: PolicySpec, parameters: int, adapter: int) -> int:
    """Return how many parameters of a policy are trained."""
    return {"full": parameters, "lora": adapter, "frozen": 0}[spec.weights]


def _hidden(parameters: int) -> int:
    """Return the hidden size D of a model that has about 12 D^2 parameters in each of about D / 64 layers."""
    return round(math.cbrt(parameters * 64 / 12))


def learning(shape: Shape, spec: PolicySpec) -> dict[str, int]:
    """Return the bytes that a forward and backward on a micro-batch take, beside the policy's state. Trained weights
    that compute in bfloat16 are rounded to it, and the rounded copy is kept for the backward of every layer that is not
    checkpointed."""
    again = spec.gradient_checkpointing
    rounded = spec.weights == "full" and spec.dtype == "bfloat16" and not again
    per = AGAIN if again else ACTIVATIONS[spec.dtype]
    return {
        "rounded": 2 * shape.parameters * rounded,
        "activations": per * shape.layers * shape.hidden * spec.micro_tokens,
        "logits": 2 * _FLOAT * GPU_ROWS * shape.vocabulary,  # those that a GPU makes at a time, with their gradient
    }


def of_rank(state: Mapping[str, int], shape: Shape, ranks: int, spec: PolicySpec, on_cpu: bool) -> dict[str, int]:
    """Return the bytes that each rank needs. state: the bytes of a single process that holds everything
    (``plan_memory``)."""
    sharded = spec.weights == "full"
    parts = {part: size // ranks if sharded else size for part, size in state.items()}
    if sharded and on_cpu:  # gathered from the other ranks (``shard.gathers_once``): the whole models
        parts["borrowed"] = _FLOAT * shape.parameters + state["reference"]
    elif sharded:  # float32 weights outside of layers, and of two layers; a reference in bfloat16 has a little less
        gathered = shape.outside + 2 * (shape.parameters - shape.outside) // shape.layers
        parts["borrowed"] = (1 + bool(state["reference"])) * _FLOAT * gathered
    return parts | learning(shape, spec)
