"""The memory that a recipe's training needs, by formulas (``learners.cost``): on each device and in worker processes,
and what a publish writes (``rank_memory`` has that of ranks). Reads no weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from coevolve import defaults
from coevolve.compute.backend import planned
from coevolve.engines import ENGINES
from coevolve.learners import cost
from coevolve.learners.sizes import adapter_size, shape_of, sizes, weightless
from coevolve.models.hub_sizes import why_by_table
from coevolve.models.load import device_of
from coevolve.models.spec import PolicySpec, RecipePolicy, asked_of
from coevolve.recipe.schema import Parts, Recipe
from coevolve.runtime.cores import cores
from coevolve.runtime.free_memory import free_memory
from coevolve.runtime.placement import keeps_copy, processes
from coevolve.runtime.pool import LEARNERS_AT_ONCE
from coevolve.types import PolicyName

_MIB, GIB = 1 << 20, 1 << 30


def of_processes(recipe: Recipe, checked: Parts) -> list[str]:
    """Return lines about each policy's memory, each device's, and what worker processes need beside it."""
    algorithm = checked.algorithm
    lines = ["memory, by formulas (a base or reference of the same model is there once):"]
    devices: dict[str, _Device] = {}  # by their places
    moved, sent, unknown = _Workers(), dict[PolicyName, str](), False
    for name, spec in recipe.policies.items():
        decoded = positions(recipe, spec)
        if spec.elsewhere and not decoded:
            lines.append(f"  {name}: nothing, its weights are not here")
            continue
        made = weightless(spec.model)
        if isinstance(made, str):
            lines.append(f"  {name}: size unknown: {made}")
            unknown = True
            continue
        count, linear = sizes(made)
        adapter = adapter_size(made, spec)
        bytes_of = cost.plan_memory(spec, count, algorithm.reference, algorithm.has_critic(name), linear, adapter)
        base = cost.plan_memory(replace(spec, weights="frozen"), count, reference=False, critic=False, linear=linear)
        bytes_of["copy"] = base["copy"] = _kept(recipe, spec, made)
        shape = shape_of(made)
        here = devices.setdefault(_place(spec.device), _Device(spec.device))
        here.add(name, spec, bytes_of, sum(base.values()), shape, decoded)
        by_pool = not recipe.learner and not spec.elsewhere and not spec.load_in_4bit
        if by_pool and _device(spec.device).type == "cpu":
            moved.add(spec, bytes_of, shape, decoded)
        sent[name] = "" if decoded or spec.weights == "frozen" else publish_size(recipe, spec, count, adapter)
        detail = ", ".join(f"{part} {size / _MIB:.0f}" for part, size in bytes_of.items() if size or part != "copy")
        lines.append(f"  {name}: {counted(made, count)}, {sum(bytes_of.values()) / _MIB:.0f} MiB ({detail})")
    lines += [f"  together, device {device.name}: {device.sum()}" for device in devices.values()]
    count = _processes(recipe, checked, moved.parameters)
    lines += [f"  beside that, in {count} worker processes: {moved.in_words(count)}"] * bool(count)
    for place, device in [] if unknown else devices.items():
        by = count if count and place == "cpu" else 1
        lines += _that_fits(device, moved.more(by) if by > 1 else {}, by)
    return lines + _publish(recipe, sent)


def counted(made: Any, parameters: int) -> str:
    """Return a model's number of parameters, and where it is from if that is not the model's own configuration."""
    why = why_by_table(made.config).partition("; ")[0]  # behind that is what to do, if it is to be trained
    return f"{parameters:,} parameters" + f" (by Coevolve's table of the hub's models: {why})" * bool(why)


def chosen(recipe: Recipe, spec: PolicySpec, made: Any) -> str:
    """Return the backend for this policy's model. made: the model without weights."""
    asked = asked_of(spec.compute, recipe.threads)
    found = planned(made, _device(spec.device), asked, spec.load_in_4bit, _keeps_copy(recipe, spec))
    return found if _is_here(spec.device) else f"{found} (there is no device {spec.device} on this machine)"


def _device(name: str) -> torch.device:
    """Return the device that a recipe names, whether or not this machine has it: a plan may be of another one."""
    return device_of(name) if _is_here(name) else torch.device(name)


def _place(name: str) -> str:
    """Return one name for all names of a device: cuda:0 for cuda, and what auto is here."""
    device = _device(name)
    return f"cuda:{device.index or 0}" if device.type == "cuda" else device.type


def _is_here(name: str) -> bool:
    try:
        device_of(name)
    except ValueError:
        return False
    return True


def publish_size(recipe: Recipe, spec: RecipePolicy, parameters: int, adapter: int) -> str:
    """Return how much a publish of a policy writes, and how if not to the disk."""
    way = (spec.engine or recipe.engine or {}).get("transfer", defaults.TRANSFER)
    by_disk = spec.weights != "full" or way == "disk"
    size = megabytes(cost.published(spec, parameters, adapter, by_disk))
    return size if by_disk else f"{size} by {way}"


def _publish(recipe: Recipe, sent: Mapping[PolicyName, str]) -> list[str]:
    """Return a line about the bytes that each publish of these policies writes; none if the learner or an engine is the
    user's own, of which that is not known."""
    if not sent or recipe.learner or any(one["name"] not in ENGINES for one in recipe.engines):
        return []
    written = ", ".join(f"{what} for {name}" for name, what in sent.items() if what)
    return [f"  a publish writes {written or 'nothing: the local engine samples the weights that are trained'}"]


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.{0 if size > 1e7 else 1}f} MB"


def _processes(recipe: Recipe, checked: Parts, parameters: int) -> int:
    """Return how many worker processes would start. parameters: of all models that they would hold."""
    turns = recipe.batch_size * recipe.members * len(checked.cast()(0))
    tokens = turns * recipe.sampling.length_range[1] * checked.algorithm.objective.epochs
    return processes(recipe.workers, cores(), parameters, tokens) if parameters else 0


def _kept(recipe: Recipe, spec: RecipePolicy, made: Any) -> int:
    """Return the bytes of the copy of untrained weights that the compiled loops keep in each process that samples."""
    sampled = not recipe.learner and positions(recipe, spec)
    loops = sampled and _keeps_copy(recipe, spec) and chosen(recipe, spec, made).startswith("cpu")
    return 2 * (sizes(made)[1] + made.get_output_embeddings().weight.numel()) if loops else 0


def positions(recipe: Recipe, spec: RecipePolicy) -> int:
    """Return for how many tokens the local engine holds a KV cache; 0 for another engine, whose cache is elsewhere."""
    engine = spec.engine or recipe.engine or {"name": "local"}
    return int(engine.get("max_tokens", defaults.MAX_TOKENS)) if engine["name"] == "local" else 0


def sampling_bytes(spec: PolicySpec, shape: cost.Shape, positions: int) -> int:
    """Return the bytes that sampling takes: the KV cache of this many positions, and trained weights in bfloat16."""
    narrow = spec.dtype == "bfloat16"
    rounded = 2 * shape.parameters if positions and narrow and spec.weights == "full" else 0
    return _cached(spec, shape) * positions + rounded


def _cached(spec: PolicySpec, shape: cost.Shape) -> int:
    """Return the bytes of a token in the KV cache."""
    return 2 * (2 if spec.dtype == "bfloat16" else 4) * shape.layers * shape.kv


@dataclass
class _Device:
    """The bytes that the policies of one device need together: always, and while one learns or is sampled.

    name: as the first of its policies has it. learning: of the policy that needs most for it, ``learner``, which has
    these ``micro_tokens``. sampling: likewise, with so many ``positions`` of the KV cache, ``cached`` bytes each."""

    name: str
    held: int = 0
    bases: set[tuple[object, ...]] = field(default_factory=set)
    learning: dict[str, int] = field(default_factory=dict)
    learner: PolicyName = ""
    micro_tokens: int = 0
    sampling: int = 0
    positions: int = 0
    cached: int = 0

    def add(
        self,
        name: PolicyName,
        spec: RecipePolicy,
        state: Mapping[str, int],
        base: int,
        shape: cost.Shape,
        positions: int,
    ) -> None:
        """Add a policy. base: bytes of its model without trained parts, which other policies of the model share unless
        an engine has loaded a model of its own."""
        alone = name if spec.elsewhere else ""
        full, key = spec.weights == "full", (spec.model, spec.dtype, spec.load_in_4bit, spec.compute, alone)
        self.held += sum(state.values()) - state["gradients"] - (state["reference"] if full else base)
        if key not in self.bases and (state["reference"] or not full):
            self.bases.add(key)
            self.held += base
        if spec.weights != "frozen":
            learns = {"gradients": state["gradients"], **cost.learning(shape, spec)}
            if sum(learns.values()) > sum(self.learning.values()):
                self.learning, self.learner, self.micro_tokens = learns, name, spec.micro_tokens
        if (samples := sampling_bytes(spec, shape, positions)) > self.sampling:
            self.sampling, self.positions, self.cached = samples, positions, _cached(spec, shape)

    @property
    def most(self) -> int:
        return self.held + max(sum(self.learning.values()), self.sampling)

    def sum(self) -> str:
        """Return the memory in one line."""
        parts = ", ".join(f"{part} {size / GIB:.2f}" for part, size in self.learning.items() if size)
        learns = f"; while one learns {parts}" * bool(parts)
        samples = f"; while they are sampled at most {self.sampling / GIB:.2f}" * bool(self.sampling)
        return f"at most {self.most / GIB:.2f} GiB: {self.held / GIB:.2f} held{learns}{samples}"


def _that_fits(device: _Device, beside: Mapping[str, int], processes: int) -> list[str]:
    """Return a line on the memory that is free on a device of this machine, and on the sizes that fit into nine tenths
    of it, since the formulas are not exact. beside: bytes that further worker processes need (``_Workers.more``).
    processes: how many have activations, and a KV cache, at the same time."""
    if not _is_here(device.name) or not device.learning:
        return []
    if (free := free_memory(_device(device.name))) is None:
        return [f"  device {device.name}: how much memory is free there is not known"]
    gradients, tokens = device.learning["gradients"], device.learning["activations"] / device.micro_tokens
    learning = sum(device.learning.values()) - gradients
    room = int(0.9 * free) - device.held - sum(beside.values()) + beside.get("work", 0)
    extra = ((room - gradients) / processes - learning) / tokens
    fits = [(f"micro_tokens of {device.learner}", device.micro_tokens, extra)]
    if device.cached:
        fits.append(("max_tokens", device.positions, (room / processes - device.sampling) / device.cached))
    most = [_at_most(key, size, size + math.floor(more)) for key, size, more in fits]
    enough = "" if device.most + sum(beside.values()) <= free else "too little for all that the recipe asks for; "
    return [f"  device {device.name} has {free / GIB:.2f} GiB free now: {enough}{' and '.join(most)}"]


def _at_most(key: str, size: int, most: int) -> str:
    if most <= 0:
        return f"no {key} fit (the recipe has {size:,})"
    return f"{key} up to {most:,} fit (the recipe has {size:,})"


@dataclass
class _Workers:
    """The policies that worker processes would compute for, and the bytes that each process needs for itself.

    The processes share the weights."""

    parameters: int = 0
    bases: set[tuple[object, ...]] = field(default_factory=set)
    learners: int = 0
    gradients: int = 0
    buffers: int = 0
    copies: int = 0
    work: int = 0

    def add(self, spec: PolicySpec, state: Mapping[str, int], shape: cost.Shape, positions: int) -> None:
        """Add a policy. state, positions: as in ``_Device.add``."""
        key = (spec.model, spec.dtype, spec.compute)
        if spec.weights == "full" or key not in self.bases:
            self.parameters += shape.parameters
            self.copies += state["copy"]
        if spec.weights != "full":
            self.bases.add(key)
        if spec.weights != "frozen":
            self.learners += 1
            self.gradients = max(self.gradients, state["gradients"])
            self.buffers += state["gradients"]
            self.work = max(self.work, sum(cost.learning(shape, spec).values()))
        self.work = max(self.work, sampling_bytes(spec, shape, positions))

    def more(self, count: int) -> dict[str, int]:
        """Return the bytes that ``count`` processes need beyond one, which ``_Device`` counts.

        Each process has gradients of its own and adds them to buffers in shared memory: each policy has one that stays,
        and every process but one has a further one for each policy that learns at the same time. The gradients of one
        process are counted in ``_Device``.
        """
        gradients = self.buffers + self.gradients * (1 + min(LEARNERS_AT_ONCE, self.learners)) * (count - 1)
        return {"gradients": gradients, "work": self.work * (count - 1), "copies": self.copies * count}

    def in_words(self, count: int) -> str:
        """Return ``more`` in one line."""
        found = self.more(count)
        detail = ", ".join(f"{part} {size / GIB:.2f}" for part, size in found.items() if size)
        return f"at most {sum(found.values()) / GIB:.2f} GiB ({detail})"


def _keeps_copy(recipe: Recipe, spec: PolicySpec) -> bool:
    """Return whether the compiled loops may keep a copy of the base that this policy shares with others."""

    def base(of: PolicySpec) -> tuple[object, ...]:
        return of.model, _device(of.device), of.dtype, of.load_in_4bit, of.compute

    return keeps_copy(one for one in recipe.policies.values() if not one.elsewhere and base(one) == base(spec))
