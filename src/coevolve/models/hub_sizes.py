"""The sizes of the hub's models that our recipes name, for dry runs where the hub cannot be reached.

The numbers are those of each model's ``config.json``. They make a model of the right shape and nothing else: whatever
else a configuration says (positions, ids, rotations) is transformers' default.
"""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig


def _qwen(kind: str, hidden: int, layers: int, heads: int, keys: int, between: int, words: int, **more: Any) -> Any:
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "intermediate_size": between,
        "vocab_size": words,
        "tie_word_embeddings": True,
        **more,
    }


_HALF = _qwen("qwen2", 896, 24, 14, 2, 4864, 151_936)
_ONE_AND_A_HALF = _qwen("qwen2", 1536, 28, 12, 2, 8960, 151_936)
_THREE = _qwen("qwen2", 2048, 36, 16, 2, 11_008, 151_936)
_SEVEN = _qwen("qwen2", 3584, 28, 28, 4, 18_944, 152_064, tie_word_embeddings=False)

SIZES: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": _HALF,
    "Qwen/Qwen2.5-1.5B-Instruct": _ONE_AND_A_HALF,
    "Qwen/Qwen2.5-Coder-3B": _THREE,
    "Qwen/Qwen2.5-7B-Instruct": _SEVEN,
    "Qwen/Qwen2.5-Coder-7B": _SEVEN,
    "Qwen/Qwen3-1.7B": _qwen("qwen3", 2048, 28, 16, 8, 6144, 151_936, head_dim=128),
    "Qwen/Qwen3-4B": _qwen("qwen3", 2560, 36, 32, 8, 9728, 151_936, head_dim=128),
    "meta-llama/Llama-2-7b-chat-hf": {"model_type": "llama"},  # transformers' defaults are its sizes
    "gpt2-large": {"model_type": "gpt2", "n_embd": 1280, "n_layer": 36, "n_head": 20},
}


def config_of(model: str, why: str) -> Any:
    """Return a configuration with the sizes of a model in ``SIZES``. why: the reason for not taking its own."""
    config = AutoConfig.for_model(**SIZES[model])
    config.sizes_by_table = why
    return config


def why_by_table(config: Any) -> str:
    """Return the reason that ``config_of`` was given; empty for a model's own configuration."""
    return str(getattr(config, "sizes_by_table", ""))
