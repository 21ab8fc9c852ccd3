"""Activation checkpointing by layers (arXiv 1604.06174): only the input of every layer is kept, and the rest is
computed again in the backward.

transformers' layers support this, but only in training mode, which would switch dropout on. So a layer is in training
mode only until its forward runs, and its submodules never are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


def check_layers(causal: nn.Module, model: str) -> None:
    """Raise ValueError for a model whose layers do not support checkpointing."""
    if not any(isinstance(module, GradientCheckpointingLayer) for module in causal.modules()):
        raise ValueError(
            f"model {model!r} ({type(causal).__name__}) has no layers for gradient_checkpointing; remove it"
        )


@contextmanager
def checkpointing(causal: nn.Module, wanted: bool) -> Iterator[None]:
    """Checkpoint the model's layers inside the context, if ``wanted`` and if gradients are enabled."""
    layers: list[Any] = []
    if wanted and torch.is_grad_enabled():
        layers = list(dict.fromkeys(_outermost(causal)))  # some models share layers
    for layer in layers:
        layer.gradient_checkpointing = layer.training = True
        layer._gradient_checkpointing_func = partial(_called, layer)
    try:
        yield
    finally:
        for layer in layers:
            layer.gradient_checkpointing = layer.training = False
            del layer._gradient_checkpointing_func


def _outermost(module: nn.Module) -> list[Any]:
    """Return the module's layers for checkpointing, without those inside another: the backward computes a layer again
    when this context has ended, so that one inside it would keep other tensors than in the forward."""
    if isinstance(module, GradientCheckpointingLayer):
        return [module]
    return [layer for child in module.children() for layer in _outermost(child)]


def again(run: Callable[..., Any], *given: Any) -> Any:
    """Return ``run(*given)``, which is run a second time in the backward."""
    return checkpoint(run, *given, use_reentrant=False, preserve_rng_state=False)


def _called(layer: nn.Module, run: Callable[..., Any], *given: Any) -> Any:
    layer.training = False
    try:
        return again(run, *given)
    finally:
        layer.training = True  # a backend may call the layer once per row
