"""The sizes of a model, from its config alone: what ``learners.cost`` computes with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from coevolve.learners.cost import Shape
from coevolve.models import names as models
from coevolve.models.hub_sizes import SIZES, config_of
from coevolve.models.load import load_config
from coevolve.models.spec import PolicySpec


def weightless(model: str) -> Any:
    """Return the model without memory for its weights, from its config alone (for a model of ``hub_sizes`` that cannot
    be loaded, from there), or the reason why there is none yet.

    Raises ValueError for a folder that holds no model.
    """
    if models.is_to_pretrain(model):
        return f"known when {model} has been run, which training does first if need be"
    here = isinstance(models.resolve(model), Path)
    try:
        config = load_config(model)
    except ValueError as error:
        if here:
            raise
        if model not in SIZES:
            return str(error)  # training tries again, when there may be a network
        config = config_of(model, str(error))
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(config)


def sizes(made: Any) -> tuple[int, int]:
    """Return how many parameters a model has, and how many of them are in linear layers below the head."""
    return int(made.num_parameters()), sum(layer.weight.numel() for layer in _linear(made, "all-linear"))


def adapter_size(made: Any, spec: PolicySpec) -> int:
    """Return how many parameters a policy's adapter on this model has; 0 if the policy has none."""
    if spec.weights != "lora":
        return 0
    return spec.lora.rank * sum(sum(layer.weight.shape) for layer in _linear(made, spec.lora.targets))


def shape_of(made: Any) -> Shape:
    """Return the sizes of a model without weights (``weightless``)."""
    config = made.config.get_text_config()
    layers = next((part for part in made.base_model.modules() if isinstance(part, nn.ModuleList)), nn.ModuleList())
    total, inside = int(made.num_parameters()), sum(x.numel() for x in layers.parameters())
    asking = getattr(config, "num_attention_heads", 0)  # some models have no attention
    heads = getattr(config, "num_key_value_heads", None) or asking
    size = getattr(config, "head_dim", None) or config.hidden_size // max(asking, 1)
    return Shape(total, total - inside, max(len(layers), 1), config.hidden_size, heads * size, config.vocab_size)


def _linear(made: Any, targets: Sequence[str] | Literal["all-linear"]) -> list[Any]:
    """Return a model's linear layers that have these names, or all below the head."""
    head, named = made.get_output_embeddings(), made.named_modules()
    linear = [(f".{name}", module) for name, module in named if isinstance(module, nn.Linear | Conv1D)]
    if isinstance(targets, str):
        return [module for _, module in linear if module is not head]
    return [module for name, module in linear if name.endswith(tuple(f".{target}" for target in targets))]
