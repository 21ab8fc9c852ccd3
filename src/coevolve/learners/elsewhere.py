"""A frozen policy whose weights are not in this process: its engine has them, and here is what speaking takes."""

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

    ``spec.model`` names these; which model answers is the engine's affair.
    """

    trainable = False
    compute = "engine"
    about = "not here, its engine has it"
    place = "elsewhere"

    def __init__(self, name: str, spec: PolicySpec) -> None:
        assert spec.weights == "frozen", f"policy {name} learns, so its weights are here"
        self.name, self.spec = name, spec
        self.tokenizer = load_tokenizer(spec.model)
        config = load_config(spec.model)
        self.context = context_of(config)
        self.eos = end_ids(load_generation(spec.model, config), self.tokenizer)

    def describe(self, batch: Batch) -> Batch:
        """The batch: there is no reference to compare with."""
        return batch

    def update(self, batch: Batch, targets: Targets, objective: Objective, step: int) -> Metrics:
        """Never."""
        raise AssertionError(f"policy {self.name} is frozen and cannot be updated")

    def published(self, version: int) -> Published:
        """Who speaks; there is nothing to fetch."""
        return Published(self.name, version, self.spec, self.tokenizer, self.context, self.eos, self.save)

    def save(self, folder: str | Path) -> None:
        """The tokenizer, which is all there is."""
        self.tokenizer.save_pretrained(folder)

    def training_state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load(self, folder: str | Path, training_state: dict[str, Any]) -> None:
        """Nothing."""

    def reset_optimizer(self) -> None:
        """Never: who is frozen has none."""
        raise AssertionError(f"policy {self.name} is frozen and has no optimiser")

    def close(self) -> None:
        """Nothing: it is not here."""
