"""Models of several families, small and with weights none of which is a one or a zero."""

from __future__ import annotations

from typing import Any

import torch
from micro import VOCABULARY
from policy_cases import ragged
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from coevolve.compute.backend import choose
from coevolve.compute.prefix_tree import PrefixTree, grow
from coevolve.models.spec import Compute
from coevolve.models.weights import Base

SMALL: dict[str, Any] = {
    "vocab_size": len(VOCABULARY), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FAMILIES = {
    "llama": LlamaConfig(**SMALL),
    "llama, biases, other rotation": LlamaConfig(
        **SMALL,
        attention_bias=True,
        mlp_bias=True,
        head_dim=12,
        rope_parameters=LLAMA3 | {"original_max_position_embeddings": 16},
    ),
    "llama, another gate": LlamaConfig(**SMALL, hidden_act="gelu"),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": Qwen3Config(**SMALL, head_dim=12),
    "mistral": MistralConfig(**SMALL, sliding_window=None),
}
"""Decoders of Llama's kind."""


def model(config: Any) -> Any:
    """A model of this config."""
    torch.manual_seed(0)
    causal = AutoModelForCausalLM.from_config(config).eval()
    for parameter in causal.parameters():
        nn.init.normal_(parameter, mean=0.5 if parameter.dim() == 1 else 0.0, std=0.2)
    return causal


def ready(causal: Any, compute: Compute = "auto") -> Base:
    """As ``build_policies`` prepares it."""
    base = Base(causal)
    base.backend = choose(base, compute, "a model")
    return base


def some_tree() -> PrefixTree:
    """Of ragged rows, two of which continue another."""
    rows = [torch.tensor(row).numpy() for row in ragged(7, seed=3)]
    rows += [torch.cat([torch.from_numpy(rows[0]), torch.tensor(end)]).numpy() for end in ([5, 6], [7])]
    return grow(rows)
