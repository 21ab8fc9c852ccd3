"""Policies: named sets of weights with settings and tokenizer, which engines sample and learners train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from coevolve.interfaces import Backend, Published, Send
from coevolve.models.spec import PolicySpec
from coevolve.models.weights import Weights, checkpoint_tensors
from coevolve.runtime.pool import Pool

UNLIMITED = 1 << 31

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""The values of ``PolicySpec.dtype``."""


class Policy:
    """A named set of weights with its tokenizer.

    context: the model's positions, UNLIMITED if the architecture sets none. eos: ids that end a turn. pool: worker
    processes that can compute for the policy, None if it computes in this process. version: of the weights published
    last; version_before: the version before that. The model is always in evaluation mode: with dropout, the trained
    distribution would differ from the sampled one.
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
        """The backend that computes for the policy's model."""
        return self.weights.base.backend

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the computation; trained weights are float32."""
        return DTYPES[self.spec.dtype]

    def published(self, version: int) -> Published:
        """Return the current weights for engines, and number them as this version."""
        self.mark(version)
        return Published(
            self.name,
            version,
            self.spec,
            self.tokenizer,
            self.context,
            self.eos,
            self.save_model,
            self,
            self.send_model,
        )

    def mark(self, version: int) -> None:
        """Number the current weights as this version; marking the same version again keeps ``version_before``."""
        if version != self.version:
            self.version_before, self.version = self.version, version

    def save_model(self, folder: Path) -> None:
        """Write a folder that transformers (full, frozen) or peft (lora) can load, with the tokenizer."""
        self.weights.save(folder)
        self.tokenizer.save_pretrained(folder)

    def send_model(self, send: Send) -> Any:
        """Have ``send`` send the full weights to a server, and return what it returns."""
        return send(checkpoint_tensors(self.weights.base.causal), lambda x: x)

    @contextmanager
    def active(self) -> Iterator[Any]:
        """Yield the transformers model with this policy's adapter and dtype switched on."""
        with self.weights.active() as causal, self.computing():
            yield causal

    def computing(self) -> torch.autocast:
        """Return an autocast to the computation's dtype, disabled for float32."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)


def context_of(config: Any) -> int:
    """Return the number of positions of a model with this configuration.

    With ``longrope``, only the positions before the model changes its frequencies count: one longer row changes them
    for all rows of its batch, and a row's log-probabilities would depend on its neighbours.
    """
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return int(rope["original_max_position_embeddings"])
    longest = getattr(text, "max_position_embeddings", None) or getattr(text, "max_seq_len", None)  # the latter: MPT
    return int(longest or UNLIMITED)


def end_ids(generation: Any, tokenizer: Any) -> frozenset[int]:
    """Return every id that ends a sequence: chat models name several. generation: the model's generation config, or
    None."""
    named = [getattr(generation, "eos_token_id", None), tokenizer.eos_token_id]
    flat = [i for ids in named if ids is not None for i in (ids if isinstance(ids, list | tuple) else [ids])]
    return frozenset(flat)
