"""The memory that a recipe's training needs, by formulas (``learners.cost``): on each device and in worker processes,
and what a publish writes (``rank_memory`` has that of ranks). Reads no weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coevolve import defaults
from coevolve.compute.backend import planned
from coevolve.engines import ENGINES
from coevolve.learners import cost
from coevolve.learners.sizes import adapter_size, shape_of, sizes, weightless
from coevolve.models.hub_sizes import why_by_table
from coevolve.models.spec import PolicySpec, RecipePolicy, asked_of
from coevolve.recipe.build import Parts
from coevolve.recipe.room import GIB, Fit, Work, device_named, is_here, learning_work, place_of, sampling_work
from coevolve.recipe.schema import Recipe
from coevolve.runtime.cores import cores
from coevolve.runtime.placement import keeps_copy, most_tokens, processes
from coevolve.runtime.pool import LEARNERS_AT_ONCE
from coevolve.types import PolicyName

_MIB = 1 << 20


def of_processes(recipe: Recipe, checked: Parts) -> list[str]:
    """Return lines about each policy's memory, each device's, and what worker processes need beside it."""
    needs = _needs(recipe, checked)
    lines = ["memory, by formulas (a base or reference of the same model is there once):", *needs.lines]
    lines += [f"  together, device {device.name}: {device.sum()}" for device in needs.devices.values()]
    if count := needs.workers:
        lines += [f"  beside that, in {count} worker processes: {needs.moved.in_words(count)}"]
    for one in [] if needs.unknown else _fits(needs):
        lines += one.lines()
    return lines + _publish(recipe, needs.sent)


def fits_of_processes(recipe: Recipe, checked: Parts) -> list[Fit]:
    """Return what is free on each device on which policies learn or are sampled, and the sizes that are to fit there.
    Raises ValueError for a model of unknown size."""
    needs = _needs(recipe, checked)
    for name, why in needs.unknown.items():
        raise unknown_size(name, why)
    return _fits(needs)


def unknown_size(policy: PolicyName, why: str) -> ValueError:
    """Return the error for a policy whose memory is to be known, and whose model's size is not."""
    return ValueError(
        f"policies.{policy}: the size of its model is not known, so neither is which micro_tokens fit into the free "
        f"memory: {why}"
    )


def _needs(recipe: Recipe, checked: Parts) -> _Needs:
    """Return what the policies need, each for itself, on each device, and in worker processes."""
    algorithm, needs = checked.algorithm, _Needs()
    for name, spec in recipe.policies.items():
        decoded = positions(recipe, spec)
        if spec.elsewhere and not decoded:
            needs.lines.append(f"  {name}: nothing, its weights are not here")
            continue
        made = weightless(spec.model)
        if isinstance(made, str):
            needs.lines.append(f"  {name}: size unknown: {made}")
            needs.unknown[name] = made
            continue
        count, linear = sizes(made)
        adapter = adapter_size(made, spec)
        bytes_of = cost.plan_memory(spec, count, algorithm.reference, algorithm.has_critic(name), linear, adapter)
        base = cost.plan_memory(replace(spec, weights="frozen"), count, reference=False, critic=False, linear=linear)
        bytes_of["copy"] = base["copy"] = _kept(recipe, spec, made)
        shape = shape_of(made)
        here = needs.devices.setdefault(place_of(spec.device), _Device(spec.device))
        here.add(name, spec, bytes_of, sum(base.values()), shape, decoded)
        by_pool = not recipe.learner and not spec.elsewhere and not spec.load_in_4bit
        if by_pool and device_named(spec.device).type == "cpu":
            needs.moved.add(spec, bytes_of, shape, decoded)
        needs.sent[name] = "" if decoded or not spec.trainable else publish_size(recipe, spec, count, adapter)
        detail = ", ".join(f"{part} {size / _MIB:.0f}" for part, size in bytes_of.items() if size or part != "copy")
        needs.lines.append(f"  {name}: {counted(made, count)}, {sum(bytes_of.values()) / _MIB:.0f} MiB ({detail})")
    needs.workers = _processes(recipe, checked, needs.moved.parameters)
    return needs


def _fits(needs: _Needs) -> list[Fit]:
    """Return what is free on each device, and the sizes that are to fit there. Worker processes of a CPU share it: each
    has activations and a KV cache of its own at the same time."""
    found = []
    for place, device in needs.devices.items():
        count = needs.workers if needs.workers and place == "cpu" else 1
        more = needs.moved.more(count) if count > 1 else {}
        held = device.held + sum(more.values()) - more.get("work", 0)
        learning, sampling = (
            [one.size(held, count) for one in works.values()] for works in (device.learners, device.samplers)
        )
        found.append(Fit.on(device.name, learning, sampling, device.most + sum(more.values())))
    return found


def counted(made: Any, parameters: int) -> str:
    """Return a model's number of parameters, and where it is from if that is not the model's own configuration."""
    why = why_by_table(made.config).partition("; ")[0]  # behind that is what to do, if it is to be trained
    return f"{parameters:,} parameters" + f" (by Coevolve's table of the hub's models: {why})" * bool(why)


def backend_of(recipe: Recipe, spec: PolicySpec, made: Any) -> tuple[str, str]:
    """Return the name of the backend for this policy's model, and a description of it. made: the model without
    weights."""
    asked = asked_of(spec.compute, recipe.threads)
    name, about = planned(made, device_named(spec.device), asked, spec.load_in_4bit, _keeps_copy(recipe, spec))
    return name, about if is_here(spec.device) else f"{about} (there is no device {spec.device} on this machine)"


def publish_size(recipe: Recipe, spec: RecipePolicy, parameters: int, adapter: int) -> str:
    """Return how much a publish of a policy writes, and how if not to the disk."""
    way = recipe.engine_of(spec).get("transfer", defaults.TRANSFER)
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
    tokens = most_tokens(turns, recipe.sampling, checked.algorithm)
    return processes(recipe.workers, cores(), parameters, tokens) if parameters else 0


def _kept(recipe: Recipe, spec: RecipePolicy, made: Any) -> int:
    """Return the bytes of the copy of untrained weights that the compiled loops keep in each process that samples."""
    sampled = not recipe.learner and positions(recipe, spec)
    loops = sampled and _keeps_copy(recipe, spec) and backend_of(recipe, spec, made)[0] == "cpu"
    return 2 * (sizes(made)[1] + made.get_output_embeddings().weight.numel()) if loops else 0


def positions(recipe: Recipe, spec: RecipePolicy) -> int:
    """Return for how many tokens the local engine holds a KV cache; 0 for another engine, whose cache is elsewhere."""
    engine = recipe.engine_of(spec)
    return int(engine.get("max_tokens", defaults.MAX_TOKENS)) if engine["name"] == "local" else 0


@dataclass
class _Device:
    """The bytes that the policies of one device need together: always (``held``), and what each of them needs while it
    learns or is sampled.

    name: as the first of its policies has it."""

    name: str
    held: int = 0
    bases: set[tuple[object, ...]] = field(default_factory=set)
    learners: dict[PolicyName, Work] = field(default_factory=dict)
    samplers: dict[PolicyName, Work] = field(default_factory=dict)

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
        if spec.trainable:
            gradients = state["gradients"]
            parts = {"gradients": gradients, **cost.learning(shape, spec)}
            self.learners[name] = learning_work(name, spec, parts, once=gradients)
        if positions:
            self.samplers[name] = sampling_work(name, spec, shape, positions)

    @property
    def sampling(self) -> int:
        return max((one.bytes for one in self.samplers.values()), default=0)

    @property
    def learning(self) -> Mapping[str, int]:
        """The parts of the policy that needs most while it learns."""
        return max(self.learners.values(), key=lambda one: one.bytes).parts if self.learners else {}

    @property
    def most(self) -> int:
        return self.held + max(sum(self.learning.values()), self.sampling)

    def sum(self) -> str:
        """Return the memory in one line."""
        parts = ", ".join(f"{part} {size / GIB:.2f}" for part, size in self.learning.items() if size)
        learns = f"; while one learns {parts}" * bool(parts)
        samples = f"; while they are sampled at most {self.sampling / GIB:.2f}" * bool(self.sampling)
        return f"at most {self.most / GIB:.2f} GiB: {self.held / GIB:.2f} held{learns}{samples}"


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
        if spec.trainable:
            self.learners += 1
            self.gradients = max(self.gradients, state["gradients"])
            self.buffers += state["gradients"]
            self.work = max(self.work, sum(cost.learning(shape, spec).values()))
        self.work = max(self.work, sampling_work("", spec, shape, positions).bytes)

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


@dataclass
class _Needs:
    """What a recipe's policies need. lines: a line for each policy. devices: by their places. moved: what of it worker
    processes have, and ``workers`` how many there are. sent: what a publish of each policy writes. unknown: policies
    whose model's size is not known, with the reason."""

    lines: list[str] = field(default_factory=list)
    devices: dict[str, _Device] = field(default_factory=dict)
    moved: _Workers = field(default_factory=_Workers)
    workers: int = 0
    sent: dict[PolicyName, str] = field(default_factory=dict)
    unknown: dict[PolicyName, str] = field(default_factory=dict)


def _keeps_copy(recipe: Recipe, spec: PolicySpec) -> bool:
    """Return whether the compiled loops may keep a copy of the base that this policy shares with others."""

    def base(of: PolicySpec) -> tuple[object, ...]:
        return of.model, device_named(of.device), of.dtype, of.load_in_4bit, of.compute

    return keeps_copy(one for one in recipe.policies.values() if not one.elsewhere and base(one) == base(spec))
