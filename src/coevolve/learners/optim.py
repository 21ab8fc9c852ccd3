"""The optimiser's settings as pure functions: learning rate by step, and what a policy will need in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from coevolve.models.spec import PolicySpec

_FLOAT = 4  # bytes of a float32, which all weights but those in 4 bits, all gradients and all moments are
# QLoRA (arXiv 2305.14314, section 3): half a byte, a byte per 64 weights for their scale, a float32 per 256 scales.
_FOUR_BIT = 0.5 + 1 / 64 + _FLOAT / (64 * 256)


def lr_factor(spec: PolicySpec, step: int, steps: int) -> float:
    """What the learning rate is multiplied by at this step of ``steps``: linear warm-up, then the schedule.

    linear falls from 1 towards 0 at ``steps``; cosine likewise along half a cosine.
    """
    if step < spec.warmup_steps:
        return (step + 1) / spec.warmup_steps
    done = (step - spec.warmup_steps) / max(1, steps - spec.warmup_steps)
    return {
        "constant": 1.0,
        "linear": max(0.0, 1.0 - done),
        "cosine": 0.5 * (1.0 + math.cos(math.pi * min(1.0, done))),
    }[spec.schedule]


def adamw(parameters: Iterable[nn.Parameter], spec: PolicySpec) -> torch.optim.AdamW:
    """AdamW as the spec says; its learning rate is set before every step."""
    return torch.optim.AdamW(
        list(parameters), lr=spec.learning_rate, betas=spec.betas, weight_decay=spec.weight_decay, fused=True
    )


def plan_memory(spec: PolicySpec, parameters: int, reference: bool, critic: bool, linear: int = 0) -> dict[str, int]:
    """Bytes one policy will need for weights, gradients, optimizer and reference; an estimate, without activations.

    parameters: of its model. linear: how many of these are weights of linear layers below the head, which is what
    load_in_4bit makes small. A lora policy's base, the reference, and a frozen policy's weights exist once per model,
    however many policies use them.
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
    saved = round((_FLOAT - _FOUR_BIT) * linear) if spec.load_in_4bit else 0
    return {
        "weights": _FLOAT * (parameters + adapter + value) - saved,
        "gradients": _FLOAT * (trained + value),
        "optimizer": 2 * _FLOAT * (trained + value),
        "reference": _FLOAT * parameters if reference and spec.weights == "full" else 0,
    }
