"""What a policy is: a named set of weights with its settings and tokenizer. Engines sample it, learners train it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from coevolve.interfaces import Backend, Published
from coevolve.models.spec import PolicySpec
from coevolve.models.weights import Weights
from coevolve.runtime.pool import Pool

UNLIMITED = 1 << 31

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""What ``PolicySpec.dtype`` may be."""


class Policy:
    """A named set of weights with its tokenizer.

    context: positions the model has, UNLIMITED where the architecture sets none. eos: ids that end a turn. pool: worker
    processes that can compute for it, None if it computes in this process. version: of its weights, as they were
    published last; version_before: the one before. The model is always in evaluation mode: with
    dropout, the distribution that is trained would be another one than was sampled.
    """

    def __init__(self, name: str, spec: PolicySpec, tokenizer: Any, weights: Weights, pool: Pool | None = None) -> None:
        self.name, self.spec, self.tokenizer, self.weights, self.pool = name, spec, tokenizer, weights, pool
        causal = weights.base.causal
        self.context = context_of(causal.config)
        self.device: torch.device = causal.device
        self.eos = end_ids(getattr(causal, "generation_config", None), tokenizer)
        self.version = self.version_before = 0

    @property
    def backend(self) -> Backend:
        """What computes for it."""
        return self.weights.base.backend

    @property
    def dtype(self) -> torch.dtype:
        """Of the computation; weights are float32."""
        return DTYPES[self.spec.dtype]

    def published(self, version: int) -> Published:
        """The weights of now, which are this version from now on."""
        self.mark(version)
        return Published(
            self.name, version, self.spec, self.tokenizer, self.context, self.eos, self.save_model, policy=self
        )

    def mark(self, version: int) -> None:
        """The weights of now are this version. Marked as it again, they still come after the same one."""
        if version != self.version:
            self.version_before, self.version = self.version, version

    def save_model(self, folder: Path) -> None:
        """A folder that transformers (full, frozen) or peft (lora) loads alone, with the tokenizer."""
        self.weights.save(folder)
        self.tokenizer.save_pretrained(folder)

    @contextmanager
    def active(self) -> Iterator[Any]:
        """The transformers model, computing as this policy in its dtype."""
        with self.weights.active() as causal, self.computing():
            yield causal

    def computing(self) -> torch.autocast:
        """The computation's dtype; weights stay float32."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)


def context_of(config: Any) -> int:
    """The positions that a model of this configuration has.

    Of one with ``longrope``, those before it changes its frequencies: behind them it does so for all rows of a batch if
    one of them is that long, and a row's log-probabilities would depend on its neighbours.
    """
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return int(rope["original_max_position_embeddings"])
    return int(getattr(text, "max_position_embeddings", None) or UNLIMITED)


def end_ids(generation: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a sequence: chat models name several. generation: the model's generation config, or None."""
    named = [getattr(generation, "eos_token_id", None), tokenizer.eos_token_id]
    flat = [i for ids in named if ids is not None for i in (ids if isinstance(ids, list | tuple) else [ids])]
    return frozenset(flat)
