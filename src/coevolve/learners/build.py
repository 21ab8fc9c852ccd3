"""Specs -> policies, each distinct model loaded once."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from coevolve import noise
from coevolve.compute.linear import use_fast_linear
from coevolve.compute.probe import use_lean, use_loops, use_sharing
from coevolve.learners.local import LocalPolicy
from coevolve.models.load import check_vocabulary, load_tokenizer
from coevolve.models.spec import DTYPES, PolicySpec
from coevolve.models.weights import Shared, Weights, check_model, load_base, need_4bit
from coevolve.types import PolicyName


def build_policies(
    specs: Mapping[PolicyName, PolicySpec], *, reference: bool, critic: bool, steps: int, seed: int
) -> dict[PolicyName, LocalPolicy]:
    """Policies that share what they can: per model and device there is one base, which carries all lora adapters, is
    every frozen policy, and is the reference (adapters off) of all. A full policy has its own copy. A base in 4 bits is
    another one, per dtype it computes in.

    reference, critic: whether the algorithm needs them. steps, seed: of the run, for the learning-rate schedule, the
    adapters' first values and the order of mini-batches. Raises ValueError for a model that cannot be loaded or is of
    a family Coevolve does not reproduce, and for 4 bits where bitsandbytes is missing.
    """
    groups: dict[tuple[str, torch.device, torch.dtype | None], list[PolicyName]] = {}
    for name, spec in specs.items():
        if spec.load_in_4bit:
            need_4bit(name)
        four_bit = DTYPES[spec.dtype] if spec.load_in_4bit else None
        groups.setdefault((spec.model, _device(spec.device), four_bit), []).append(name)
    built: dict[PolicyName, LocalPolicy] = {}
    for (model, device, four_bit), names in groups.items():
        causal = load_base(model, device, four_bit)
        weights, base = _weights(causal, model, {name: specs[name] for name in names}, reference, seed)
        tokenizer = load_tokenizer(model)
        check_vocabulary(tokenizer, causal, model)
        for name in names:
            built[name] = LocalPolicy(
                name, specs[name], tokenizer, weights[name], reference=base, critic=critic, steps=steps, seed=seed
            )
    return {name: built[name] for name in specs}


def _weights(
    causal: Any, model: str, specs: Mapping[PolicyName, PolicySpec], reference: bool, seed: int
) -> tuple[dict[PolicyName, Weights], Weights | None]:
    """The weights of the policies on one loaded model, and the reference if there is to be one."""
    check_model(causal, model)
    use_sharing(causal)
    use_lean(causal)
    use_loops(causal)
    use_fast_linear(causal)
    full = [name for name, spec in specs.items() if spec.weights == "full"]
    # Copied before adapters are put on it; without another use, the first full policy takes the loaded model itself.
    spare = not reference and len(full) == len(specs)
    copies = [causal] * spare + [copy.deepcopy(causal) for _ in full[spare:]]
    weights = {name: Weights(Shared(own)) for name, own in zip(full, copies, strict=True)}
    if spare:
        return weights, None
    base = Shared(causal.requires_grad_(False))
    for i, (name, spec) in enumerate(specs.items()):
        if spec.weights == "lora":
            base.add(f"agent{i}", spec.lora, noise.key("lora", seed, name))
            weights[name] = Weights(base, f"agent{i}")
        elif spec.weights == "frozen":
            weights[name] = Weights(base)
    return weights, Weights(base) if reference else None


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device {name!r} is unknown; use auto, cpu, cuda, or cuda:1") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: there is no GPU here that torch can use; use device: cpu or auto")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device
