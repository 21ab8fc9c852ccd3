"""Specs -> policies, each distinct model loaded once."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from coevolve import noise
from coevolve.models import load_causal_lm, load_tokenizer
from coevolve.policies.linear import use_onednn
from coevolve.policies.policy import LocalPolicy
from coevolve.policies.spec import PolicySpec
from coevolve.policies.weights import Shared, Weights, check_model
from coevolve.types import PolicyName


def build_policies(
    specs: Mapping[PolicyName, PolicySpec], *, reference: bool, critic: bool, steps: int, seed: int
) -> dict[PolicyName, LocalPolicy]:
    """Policies that share what they can: per model and device there is one base, which carries all lora adapters, is
    every frozen policy, and is the reference (adapters off) of all. A full policy has its own copy.

    reference, critic: whether the algorithm needs them. steps, seed: of the run, for the learning-rate schedule, the
    adapters' first values and the order of mini-batches. Raises ValueError for a model that cannot be loaded or is of
    a family Coevolve does not reproduce.
    """
    groups: dict[tuple[str, torch.device], list[PolicyName]] = {}
    for name, spec in specs.items():
        groups.setdefault((spec.model, _device(spec.device)), []).append(name)
    built: dict[PolicyName, LocalPolicy] = {}
    for (model, device), names in groups.items():
        weights, base = _weights(model, device, {name: specs[name] for name in names}, reference, seed)
        tokenizer = load_tokenizer(model)
        for name in names:
            built[name] = LocalPolicy(
                name, specs[name], tokenizer, weights[name], reference=base, critic=critic, steps=steps, seed=seed
            )
    return {name: built[name] for name in specs}


def _weights(
    model: str, device: torch.device, specs: Mapping[PolicyName, PolicySpec], reference: bool, seed: int
) -> tuple[dict[PolicyName, Weights], Weights | None]:
    """The weights of the policies on one model, and the reference if there is to be one."""
    causal: Any = load_causal_lm(model, torch.float32)
    causal = causal.to(device).eval()
    check_model(causal, model)
    if device.type == "cpu":
        use_onednn(causal)
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
