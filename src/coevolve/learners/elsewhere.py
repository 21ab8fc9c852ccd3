"""A frozen policy whose weights only its engine holds; this process has its tokenizer and configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.interfaces import Published
from coevolve.models.load import load_config, load_generation, load_tokenizer
from coevolve.models.policy import context_of, end_ids
from coevolve.models.spec import PolicySpec
from coevolve.types import Batch, Metrics, Objective, Targets


class FrozenElsewhere:
    """A policy that never learns, with the tokenizer and the configuration of its model, and no weights.

    ``spec.model`` names these; the engine decides which model generates.
    """

    trainable = False
    compute = "engine"
    about = "not here, its engine has it"
    place = "elsewhere"

    def __init__(self, name: str, spec: PolicySpec) -> None:
        assert not spec.trainable, f"policy {name} learns, so its weights are here"
        self.name, self.spec = name, spec
        self.tokenizer = load_tokenizer(spec.model)
        config = load_config(spec.model)
        self.context = context_of(config)
        self.eos = end_ids(load_generation(spec.model, config), self.tokenizer)

    def describe(self, batch: Batch) -> Batch:
        """Return the batch unchanged: there is neither reference nor critic."""
        return batch

    def update(self, batch: Batch, targets: Targets, objective: Objective, step: int) -> Metrics:
        """Raise AssertionError: a frozen policy is never updated."""
        raise AssertionError(f"policy {self.name} is frozen and cannot be updated")

    def published(self, version: int) -> Published:
        """Return the policy's name, tokenizer and settings for its engine, without weights."""
        return Published(self.name, version, self.spec, self.tokenizer, self.context, self.eos, self.save)

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer; there are no weights to write."""
        self.tokenizer.save_pretrained(folder)

    def training_state(self) -> dict[str, Any]:
        """Return an empty state: there is no optimiser."""
        return {}

    def load(self, folder: str | Path, training_state: dict[str, Any]) -> None:
        """Do nothing: there are no weights and no optimiser to restore."""

    def reset_optimizer(self) -> None:
        """Raise AssertionError: a frozen policy has no optimiser."""
        raise AssertionError(f"policy {self.name} is frozen and has no optimiser")

    def close(self) -> None:
        """Do nothing: this policy has no processes."""
