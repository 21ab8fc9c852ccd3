"""Which models compute with sharing, and that the others are left as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DiffLlamaConfig,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from coevolve.compute.attention import shares
from coevolve.compute.probe import use_sharing

SMALL: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "fits"),
    [
        (LlamaConfig(**SMALL), True),
        (Qwen2Config(**SMALL), True),
        (Qwen3Config(**SMALL, head_dim=8), True),
        (GPTNeoXConfig(**{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}), True),
        (GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=64), True),
        (GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=12), False),  # too few positions to try
        (MistralConfig(**SMALL, sliding_window=4096), False),
        (Gemma2Config(**SMALL, head_dim=8), False),  # capped scores, windows
        (DiffLlamaConfig(**SMALL), False),  # every layer attends twice
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_share_or_are_left_alone(config: Any, fits: bool) -> None:
    torch.manual_seed(0)
    causal = AutoModelForCausalLM.from_config(config).eval()
    before, ids = causal.config._attn_implementation, torch.arange(10)[None]
    logits = causal(ids).logits
    assert use_sharing(causal) == shares(causal) == fits
    torch.testing.assert_close(causal(ids).logits, logits)
    assert fits or causal.config._attn_implementation == before
