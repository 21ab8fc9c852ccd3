"""The optimiser's settings as pure functions: learning rate by step, and what a policy will need in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from coevolve.models.spec import PolicySpec

_FLOAT = 4  # bytes of a float32, which all weights that are trained and all gradients are, and moments as a rule
_HALF = 2  # bytes of a bfloat16
# Dettmers et al. 2021 (arXiv 2110.02861): a byte, and a float32 for the scale of 256.
_EIGHT_BIT = 1 + _FLOAT / 256
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


def adamw(
    parameters: Iterable[nn.Parameter], spec: PolicySpec, value: Iterable[nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """AdamW as the spec says; ``set_rates`` is called before every step. value: parameters of a value head, which are
    numbered after the others."""
    groups = [list(parameters), list(value)]
    if spec.value_learning_rate is None:
        groups = [groups[0] + groups[1]]
    given: list[dict[str, Any]] = [{"params": group} for group in groups if group]
    rest: dict[str, Any] = {"lr": spec.learning_rate, "betas": spec.betas, "weight_decay": spec.weight_decay}
    if spec.optimizer == "adamw":
        return torch.optim.AdamW(given, fused=True, **rest)
    from bitsandbytes.optim.adamw import AdamW8bit, PagedAdamW8bit

    kinds = {"adamw_8bit": AdamW8bit, "paged_adamw_8bit": PagedAdamW8bit}
    made: torch.optim.Optimizer = kinds[spec.optimizer](given, **rest)
    return made


def set_rates(optimizer: torch.optim.Optimizer, spec: PolicySpec, factor: float) -> None:
    """The spec's learning rates times the factor."""
    rates = (spec.learning_rate, spec.value_learning_rate)
    for group, rate in zip(optimizer.param_groups, rates, strict=False):  # the second one is a value head's
        assert rate is not None
        group["lr"] = rate * factor


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
