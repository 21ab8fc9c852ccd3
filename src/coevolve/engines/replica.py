"""Copies of policies whose weights are elsewhere: read from the folder that a publish writes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from coevolve.compute.backend import choose
from coevolve.interfaces import Published
from coevolve.models.load import device_of
from coevolve.models.policy import DTYPES, Policy
from coevolve.models.weights import Base, Weights, check_model, load_base, need_4bit
from coevolve.runtime.placement import use_threads


def renewed(before: Policy | None, news: Published) -> Policy:
    """The copy with these weights: the one that there was, or one that is loaded now, with a base of its own."""
    copy = before if before is not None and before.spec == news.spec else _loaded(news)
    if news.spec.weights != "frozen":
        with tempfile.TemporaryDirectory(prefix="coevolve-") as folder:
            news.save(Path(folder))
            copy.weights.load(Path(folder))
    return copy


def _loaded(news: Published) -> Policy:
    """The policy as it starts."""
    spec = news.spec
    if spec.load_in_4bit:
        need_4bit(news.name)
    base = Base(load_base(spec.model, device_of(spec.device), DTYPES[spec.dtype] if spec.load_in_4bit else None))
    check_model(base.causal, spec.model)
    base.backend = choose(base, spec.compute, spec.model)
    use_threads(None, one=base.backend.name == "cpu")
    if spec.weights == "lora":
        base.add("agent", spec.lora, seed=0)
    return Policy(news.name, spec, news.tokenizer, Weights(base, "agent" if spec.weights == "lora" else None))
