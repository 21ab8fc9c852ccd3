"""Building policies from their specs, with each distinct model loaded once."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import torch

from coevolve import noise
from coevolve.compute.backend import choose, slow_dtype
from coevolve.compute.checkpointing import check_layers
from coevolve.learners.local import LocalLearner
from coevolve.learners.processes import ProcessLearner
from coevolve.models.load import check_vocabulary, device_of, load_tokenizer
from coevolve.models.narrow import narrow
from coevolve.models.policy import DTYPES
from coevolve.models.spec import Compute, PolicySpec, asked_of
from coevolve.models.weights import Base, Weights, check_model, load_base, need_4bit, need_quant
from coevolve.runtime.cores import cores
from coevolve.runtime.placement import keeps_copy, processes, use_threads
from coevolve.runtime.pool import Pool
from coevolve.settings import Workers
from coevolve.types import PolicyName


def build_policies(
    specs: Mapping[PolicyName, PolicySpec],
    *,
    reference: bool,
    critic: bool | Collection[PolicyName],
    steps: int,
    seed: int,
    workers: Workers = False,
    threads: int | None = None,
    tokens: int = 0,
) -> dict[PolicyName, LocalLearner]:
    """Return the policies, which share a base per model, device, dtype, 4-bit setting and backend: the base carries all
    lora adapters, serves every frozen policy, and is the reference (adapters off) of all. A full policy has its own
    copy. A base that computes in bfloat16 is held in it (``models.narrow``), unless a full policy trains it.

    reference, critic: whether the algorithm needs them; critic: or for which policies. steps, seed: of the run, for the
    learning-rate schedule, the adapters' initial values and the order of mini-batches. workers: whether policies on the
    CPU sample and train in a pool of processes (``runtime.placement``); tokens: of a step, at most. threads: PyTorch's
    threads in this process; None is one if a policy's backend is cpu, which a number above one excludes.

    Raises ValueError for a model that cannot be loaded or is of a family Coevolve does not reproduce, for a backend
    that does not fit, and for 4 bits where bitsandbytes is missing.
    """
    made = loaded(specs, reference, seed, threads)
    use_threads(threads, one=any(own.base.backend.name == "cpu" for _, own, _ in made.values()))
    on_cpu = {name: own.base.causal for name, (_, own, _) in made.items() if _movable(specs[name], own)}
    parameters = sum(causal.num_parameters() for causal in {id(c): c for c in on_cpu.values()}.values())
    count = processes(workers, cores(), parameters, tokens)
    pool = Pool(count) if count and on_cpu else None
    built: dict[PolicyName, LocalLearner] = {}
    for name, (tokenizer, own, start) in made.items():
        make: Any = partial(ProcessLearner, pool=pool) if pool is not None and name in on_cpu else LocalLearner
        value = critic if isinstance(critic, bool) else name in critic
        built[name] = make(name, specs[name], tokenizer, own, reference=start, critic=value, steps=steps, seed=seed)
    return {name: built[name] for name in specs}


def loaded(
    specs: Mapping[PolicyName, PolicySpec], reference: bool, seed: int, threads: int | None
) -> dict[PolicyName, tuple[Any, Weights, Weights | None]]:
    """Return each policy's tokenizer, weights and reference, with one base per model, device, dtype, 4-bit setting and
    backend."""
    groups: dict[tuple[str, torch.device, torch.dtype, bool, Compute], list[PolicyName]] = {}
    for name, spec in specs.items():
        if spec.load_in_4bit:
            need_4bit(name)
        if spec.optimizer != "adamw":
            need_quant(name, f"optimizer: {spec.optimizer}", "leave it out, which takes 4 times the memory of moments")
        key = spec.model, device_of(spec.device), DTYPES[spec.dtype], spec.load_in_4bit, spec.compute
        groups.setdefault(key, []).append(name)
    made: dict[PolicyName, tuple[Any, Weights, Weights | None]] = {}
    for (model, device, dtype, four_bit, compute), names in groups.items():
        base = Base(load_base(model, device, dtype if four_bit else None))
        check_model(base.causal, model)
        if any(specs[name].gradient_checkpointing for name in names):
            check_layers(base.causal, model)
        base.backend = choose(base, asked_of(compute, threads), model, keeps_copy([specs[name] for name in names]))
        learning = [name for name in names if specs[name].trainable]
        if learning and (why := slow_dtype(base.backend, device, dtype)):
            warnings.warn(
                f"policies {', '.join(learning)}: {why}, so updates may take many times as long as with dtype: float32",
                stacklevel=2,
            )
        weights, start = _weights(base, {name: specs[name] for name in names}, reference, seed)
        tokenizer = load_tokenizer(model)
        check_vocabulary(tokenizer, base.causal, model)
        made |= {name: (tokenizer, weights[name], start) for name in names}
    torch.cuda.empty_cache()  # a base is narrowed on the card, and a server there needs the freed half
    return made


def _movable(spec: PolicySpec, weights: Weights) -> bool:
    """Return whether a worker process can compute for this policy; 4-bit weights are more than plain tensors."""
    return weights.base.causal.device.type == "cpu" and not spec.load_in_4bit


def _weights(
    base: Base, specs: Mapping[PolicyName, PolicySpec], reference: bool, seed: int
) -> tuple[dict[PolicyName, Weights], Weights | None]:
    """Return the weights of the policies on one loaded model, and the reference if wanted. All have one dtype."""
    full = [name for name, spec in specs.items() if spec.weights == "full"]
    # Copied before the model gets adapters; if it has no other use, the first full policy takes the model itself.
    spare = not reference and len(full) == len(specs)
    copies = [base] * spare + [_copy(base) for _ in full[spare:]]
    weights = {name: Weights(own) for name, own in zip(full, copies, strict=True)}
    if spare:
        return weights, None
    base.causal.requires_grad_(False)
    for i, (name, spec) in enumerate(specs.items()):
        if spec.weights == "lora":
            base.add(f"agent{i}", spec.lora, noise.key("lora", seed, name))
            weights[name] = Weights(base, f"agent{i}")
        elif not spec.trainable:
            weights[name] = Weights(base)
    first = next(iter(specs.values()))  # all are of one dtype
    if DTYPES[first.dtype] == torch.bfloat16 and not first.load_in_4bit:
        narrow(base.causal)
    return weights, Weights(base) if reference else None


def _copy(base: Base) -> Base:
    """Return a copy of the base with its own weights and the same backend."""
    copied = Base(copy.deepcopy(base.causal))
    copied.backend = dataclasses.replace(base.backend, base=copied)  # type: ignore[type-var]
    return copied
