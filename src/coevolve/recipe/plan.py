"""The plan of a dry run (``coevolve train --dry-run``): what a recipe would do. Writes nothing, reads no weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from coevolve import defaults
from coevolve.ahead import check_corrected
from coevolve.cautions import Cautions
from coevolve.checks import check_task
from coevolve.compute.backend import planned
from coevolve.engines import ENGINES
from coevolve.faults import blame
from coevolve.learners import LEARNERS, by_torchrun, cost
from coevolve.models import names as models
from coevolve.models.load import device_of, load_config
from coevolve.models.spec import PolicySpec, RecipePolicy, asked_of
from coevolve.recipe.inputs import dump
from coevolve.recipe.schema import Parts, Recipe, parts
from coevolve.recipe.trial import NoTask, silent, trial
from coevolve.rollout import Stage, rollout
from coevolve.runtime.cores import cores
from coevolve.runtime.placement import keeps_copy, processes
from coevolve.runtime.pool import LEARNERS_AT_ONCE
from coevolve.tasks.roles import check_prompts
from coevolve.types import Algorithm, PolicyName, Problem

_MIB, _GIB = 1 << 20, 1 << 30
_MOST = 100_000  # limit for the turns of an episode that is played to count them


def plan(recipe: Recipe) -> str:
    """Return the resolved recipe as YAML, then the plan as comments. Raises ValueError for a wrong key or setting.

    Not checked here: the task (``problems`` does), and models and plays that only fail in training."""
    checked = parts(recipe)
    algorithm = checked.algorithm
    check_corrected(max((one.get("staleness", 0) for one in _engines(recipe)), default=0), algorithm)
    Cautions().of_settings(recipe.sampling, algorithm)
    whole = _shown({"name": recipe.algorithm["name"], **algorithm.settings})
    lines = [
        f"would write {recipe.output_dir}",
        "",
        f"algorithm, with what the recipe leaves to it: {whole}",
        "",
        *_work(recipe, checked),
        "",
        *_compute(recipe),
        "",
        *(_ranks(recipe, algorithm) if _on_ranks(recipe) else _memory(recipe, checked)),
    ]
    return dump(recipe.record()) + "\n" + "\n".join(f"# {line}".rstrip() for line in lines)


def problems(recipe: Recipe) -> Iterator[str]:
    """Yield the numbers of problems, and what each role is told first, as comments. Builds the task, unless that would
    pre-train a model.

    Raises ValueError for wrong settings, a role without a prompt and unavailable data, as training would."""
    trained = [value for value in recipe.task.values() if isinstance(value, str) and models.is_recipe(value)]
    if trained:
        yield f"# task: built when training starts, which first runs {' and '.join(trained)} if need be"
        return
    with blame("task"):
        task = parts(recipe).task()
    check_task(task)
    with blame("task"):
        check_prompts(task, recipe.roles)
        found = f"# task: {len(task.train)} training and {len(task.test)} held-out problems"
    if len(task.train) < recipe.batch_size:
        found += f"; a step takes {recipe.batch_size}, so that problems repeat within it"
    yield found
    yield from trial(recipe, task)


def _work(recipe: Recipe, checked: Parts) -> list[str]:
    """Return lines about the turns and tokens of one step, counted by playing one episode without models."""
    algorithm, engine = checked.algorithm, silent(_MOST)
    stage = Stage(checked.cast()(0), NoTask(), engine, recipe.sampling)
    try:
        rollout(checked.play(), [Problem("planned")], stage)
    except ValueError as error:
        return [f"the work of a step is not known: this play does not run without its problems ({error})"]
    turns: Counter[PolicyName] = Counter(say.policy for call in engine.calls for says in call.values() for say in says)
    episodes, longest = recipe.batch_size * recipe.members, recipe.sampling.length_range[1]
    lines = [
        f"one of {recipe.steps} steps: {recipe.batch_size} problems x {recipe.members} members, "
        f"calls of generate: {len(engine.calls)}, each of at most {longest} model calls per policy"
    ]
    for name, count in turns.items():
        rows = episodes * count
        trained = rows * longest * algorithm.objective.epochs if recipe.policies[name].weights != "frozen" else 0
        lines.append(f"  {name}: {rows} turns, at most {rows * longest} tokens sampled and {trained} trained on")
    if algorithm.resample:
        lines.append(f"  and up to {algorithm.resample} times as many again, in place of problems that were paid alike")
    return lines


def _memory(recipe: Recipe, checked: Parts) -> list[str]:
    algorithm = checked.algorithm
    lines = ["memory, by formulas (a base or reference of the same model is there once):"]
    devices: dict[str, _Device] = {}
    moved, sent = _Moved(), dict[PolicyName, str]()
    for name, spec in recipe.policies.items():
        if spec.elsewhere:
            lines.append(f"  {name}: nothing, its weights are not here")
            continue
        made = weightless(spec.model)
        if isinstance(made, str):
            lines.append(f"  {name}: size unknown: {made}")
            continue
        count, linear = sizes(made)
        adapter = adapter_size(made, spec)
        bytes_of = cost.plan_memory(spec, count, algorithm.reference, algorithm.has_critic(name), linear, adapter)
        base = cost.plan_memory(replace(spec, weights="frozen"), count, reference=False, critic=False, linear=linear)
        bytes_of["copy"] = base["copy"] = _kept(recipe, spec, made)
        shape, positions = shape_of(made), _positions(recipe, spec)
        here = devices.setdefault(spec.device, _Device())
        here.add(spec, bytes_of, sum(base.values()), shape, positions)
        if not recipe.learner and device_of(spec.device).type == "cpu" and not spec.load_in_4bit:
            moved.add(spec, bytes_of, shape, positions)
        sent[name] = "" if positions or spec.weights == "frozen" else _sent(recipe, spec, count, adapter)
        detail = ", ".join(f"{part} {size / _MIB:.0f}" for part, size in bytes_of.items() if size or part != "copy")
        lines.append(f"  {name}: {count:,} parameters, {sum(bytes_of.values()) / _MIB:.0f} MiB ({detail})")
    lines += [f"  together, device {name}: {device.sum()}" for name, device in devices.items()]
    count = _processes(recipe, checked, moved.parameters)
    lines += [f"  beside that, in {count} worker processes: {moved.more(count)}"] * bool(count)
    return lines + _publish(recipe, sent)


def _sent(recipe: Recipe, spec: RecipePolicy, parameters: int, adapter: int) -> str:
    """Return how much a publish of a policy writes, and how if not to the disk."""
    way = (spec.engine or recipe.engine or {}).get("transfer", "disk") if spec.weights == "full" else "disk"
    size = _mb(cost.published(spec, parameters, adapter, by_disk=way == "disk"))
    return size if way == "disk" else f"{size} by {way}"


def _publish(recipe: Recipe, sent: Mapping[PolicyName, str]) -> list[str]:
    """Return a line about the bytes that each publish of these policies writes; none if the learner or an engine is the
    user's own, of which that is not known."""
    if not sent or recipe.learner or any(engine["name"] not in ENGINES for engine in _engines(recipe)):
        return []
    written = ", ".join(f"{what} for {name}" for name, what in sent.items() if what)
    return [f"  a publish writes {written or 'nothing: the local engine samples the weights that are trained'}"]


def _engines(recipe: Recipe) -> list[Mapping[str, Any]]:
    return [one for one in (recipe.engine, *(spec.engine for spec in recipe.policies.values())) if one]


def _mb(size: int) -> str:
    return f"{size / 1e6:,.{0 if size > 1e7 else 1}f} MB"


def _processes(recipe: Recipe, checked: Parts, parameters: int) -> int:
    """Return how many worker processes would start. parameters: of all models that they would hold."""
    turns = recipe.batch_size * recipe.members * len(checked.cast()(0))
    tokens = turns * recipe.sampling.length_range[1] * checked.algorithm.objective.epochs
    return processes(recipe.workers, cores(), parameters, tokens) if parameters else 0


def _kept(recipe: Recipe, spec: RecipePolicy, made: Any) -> int:
    """Return the bytes of the copy of untrained weights that the compiled loops keep in each process that samples."""
    sampled = not recipe.learner and _positions(recipe, spec)
    loops = sampled and _keeps_copy(recipe, spec) and _chosen(recipe, spec, made).startswith("cpu")
    return 2 * (sizes(made)[1] + made.get_output_embeddings().weight.numel()) if loops else 0


def _positions(recipe: Recipe, spec: RecipePolicy) -> int:
    """Return for how many tokens the local engine holds a KV cache; 0 for another engine, whose cache is elsewhere."""
    engine = spec.engine or recipe.engine or {"name": "local"}
    return int(engine.get("max_tokens", defaults.MAX_TOKENS)) if engine["name"] == "local" else 0


def _sampling(spec: PolicySpec, shape: cost.Shape, positions: int) -> int:
    """Return the bytes that sampling takes: the KV cache of this many positions, and trained weights in bfloat16."""
    narrow = spec.dtype == "bfloat16"
    rounded = 2 * shape.parameters if positions and narrow and spec.weights == "full" else 0
    return 2 * (2 if narrow else 4) * shape.layers * shape.kv * positions + rounded


@dataclass
class _Device:
    """The bytes that the policies of one device need together: always, and while one learns or is sampled."""

    held: int = 0
    bases: set[tuple[object, ...]] = field(default_factory=set)
    learning: dict[str, int] = field(default_factory=dict)
    sampling: int = 0

    def add(self, spec: PolicySpec, state: Mapping[str, int], base: int, shape: cost.Shape, positions: int) -> None:
        """Add a policy. base: bytes of its model without trained parts, which other policies of the model share."""
        full, key = spec.weights == "full", (spec.model, spec.dtype, spec.load_in_4bit, spec.compute)
        self.held += sum(state.values()) - state["gradients"] - (state["reference"] if full else base)
        if key not in self.bases and (state["reference"] or not full):
            self.bases.add(key)
            self.held += base
        if spec.weights != "frozen":
            learns = {"gradients": state["gradients"], **cost.learning(shape, spec)}
            self.learning = max(self.learning, learns, key=lambda parts: sum(parts.values()))
        self.sampling = max(self.sampling, _sampling(spec, shape, positions))

    def sum(self) -> str:
        """Return the memory in one line."""
        most = self.held + max(sum(self.learning.values()), self.sampling)
        parts = ", ".join(f"{part} {size / _GIB:.2f}" for part, size in self.learning.items() if size)
        learns = f"; while one learns {parts}" * bool(parts)
        samples = f"; while they are sampled at most {self.sampling / _GIB:.2f}" * bool(self.sampling)
        return f"at most {most / _GIB:.2f} GiB: {self.held / _GIB:.2f} held{learns}{samples}"


@dataclass
class _Moved:
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
        self.work = max(self.work, _sampling(spec, shape, positions))

    def more(self, count: int) -> str:
        """Return in one line the memory that ``count`` processes need beyond one, which ``_Device`` counts.

        Each process has gradients of its own and adds them to buffers in shared memory: each policy has one that stays,
        and every process but one has a further one for each policy that learns at the same time. The gradients of one
        process are counted in ``_Device``.
        """
        gradients = self.buffers + self.gradients * (1 + min(LEARNERS_AT_ONCE, self.learners)) * (count - 1)
        found = {"gradients": gradients, "work": self.work * (count - 1), "copies": self.copies * count}
        detail = ", ".join(f"{part} {size / _GIB:.2f}" for part, size in found.items() if size)
        return f"at most {sum(found.values()) / _GIB:.2f} GiB ({detail})"


def _on_ranks(recipe: Recipe) -> bool:
    return recipe.learner is not None and recipe.learner["name"] in LEARNERS


def _ranks(recipe: Recipe, algorithm: Algorithm) -> list[str]:
    """Return lines about each policy's ranks: where they run, what a card has to hold, what a publish writes."""
    assert recipe.learner is not None
    count = int(recipe.learner["ranks"])
    lines = [f"ranks, {count} for each policy that learns; GiB a rank, of its formulas (docs/guides/cluster.md):"]
    for name, spec in recipe.policies.items():
        if spec.elsewhere:
            lines.append(f"  {name}: frozen, its weights are not here")
            continue
        if isinstance(made := weightless(spec.model), str):
            lines.append(f"  {name}: size unknown: {made}")
            continue
        parameters, linear = sizes(made)
        if spec.weights == "frozen":
            own = cost.plan_memory(spec, parameters, reference=False, critic=False, linear=linear)["weights"]
            lines.append(
                f"  {name}: frozen, {own / _GIB:.2f} GiB in the trainer's process, which it shares with nobody"
            )
            continue
        shape, sharded, adapter = shape_of(made), spec.weights == "full", adapter_size(made, spec)
        state = cost.plan_memory(spec, parameters, algorithm.reference, algorithm.has_critic(name), linear, adapter)
        parts = cost.on_card(state, shape, count, spec)
        detail = ", ".join(f"{part} {size / _GIB:.2f}" for part, size in parts.items())
        how = "weights sharded" if sharded else "the base on each, gradients of the adapter added up"
        local = _positions(recipe, spec) > 0
        copied = f", read into a copy of {state['weights'] / _GIB:.1f} GiB that the local engine samples" * local
        moments = 2 * state["gradients"]  # as whole tensors in float32
        sent = _sent(recipe, spec, parameters, adapter)
        start = _start(spec, state, parameters) / _GIB
        lines += [
            f"  {name}: {shape.parameters:,} parameters, {how}, {_placed(spec.device, count, recipe.learner)}",
            f"    {sum(parts.values()) / _GIB:.1f} ({detail}); {start:.1f} while it is loaded",
            f"    a publish writes {sent}{copied}; a checkpoint {_mb(moments)} more",
        ]
    return lines


def _start(spec: PolicySpec, state: Mapping[str, int], parameters: int) -> int:
    """Return the bytes that a rank needs to load the whole model (float32 or 4 bits), before it shards or rounds it."""
    return state["weights"] if spec.load_in_4bit else 4 * parameters * (1 + bool(state["reference"]))


def _placed(device: str, count: int, learner: Mapping[str, Any]) -> str:
    if by_torchrun(learner):
        return f"{count} of the processes that torchrun starts"
    if (cluster := learner.get("cluster")) is not None:
        return f"{count} x 1 {'core' if device == 'cpu' else 'card'} where the cluster {cluster} has room"
    kind, _, first = device.partition(":")
    cards = f"cuda:{int(first or 0)} to cuda:{int(first or 0) + count - 1} of this machine"
    if kind == "cuda" or (kind == "auto" and torch.cuda.is_available()):
        return cards
    return f"{count} processes on the CPU of this machine" + (f" ({cards}, if it had them)" if kind == "auto" else "")


def shape_of(made: Any) -> cost.Shape:
    """Return the sizes of a model without weights (``weightless``)."""
    config = made.config.get_text_config()
    layers = next((part for part in made.base_model.modules() if isinstance(part, nn.ModuleList)), nn.ModuleList())
    total, inside = int(made.num_parameters()), sum(x.numel() for x in layers.parameters())
    asking = getattr(config, "num_attention_heads", 0)  # some models have no attention
    heads = getattr(config, "num_key_value_heads", None) or asking
    size = getattr(config, "head_dim", None) or config.hidden_size // max(asking, 1)
    return cost.Shape(total, total - inside, max(len(layers), 1), config.hidden_size, heads * size, config.vocab_size)


def _compute(recipe: Recipe) -> list[str]:
    own = {"engine": recipe.engine, "learner": recipe.learner}
    own |= {f"{name}, engine": spec.engine for name, spec in recipe.policies.items()}
    lines = ["compute:", *(f"  {key}: {_shown(part)}" for key, part in own.items() if part)]
    if recipe.learner:
        return lines  # a learner of the recipe's own chooses its backend itself
    for name, spec in recipe.policies.items():
        if spec.elsewhere:
            lines.append(f"  {name}: not here, its engine has it")
            continue
        made = weightless(spec.model)
        lines.append(f"  {name}: {made if isinstance(made, str) else _chosen(recipe, spec, made)}")
    return lines


def _chosen(recipe: Recipe, spec: PolicySpec, made: Any) -> str:
    """Return the backend for this policy's model. made: the model without weights."""
    asked = asked_of(spec.compute, recipe.threads)
    return planned(made, device_of(spec.device), asked, spec.load_in_4bit, _keeps_copy(recipe, spec))


def _keeps_copy(recipe: Recipe, spec: PolicySpec) -> bool:
    """Return whether the compiled loops may keep a copy of the base that this policy shares with others."""

    def base(of: PolicySpec) -> tuple[object, ...]:
        return of.model, device_of(of.device), of.dtype, of.load_in_4bit, of.compute

    return keeps_copy(one for one in recipe.policies.values() if not one.elsewhere and base(one) == base(spec))


def _shown(part: Mapping[str, Any]) -> str:
    """Return a component in one line: its name and its settings."""
    settings = [f"{key}: {value}" for key, value in part.items() if key != "name"]
    return ", ".join([str(part["name"]), *settings])


def sizes(made: Any) -> tuple[int, int]:
    """Return how many parameters a model has, and how many of them are in linear layers below the head."""
    return int(made.num_parameters()), sum(layer.weight.numel() for layer in _linear(made, "all-linear"))


def adapter_size(made: Any, spec: PolicySpec) -> int:
    """Return how many parameters a policy's adapter on this model has; 0 if the policy has none."""
    if spec.weights != "lora":
        return 0
    return spec.lora.rank * sum(sum(layer.weight.shape) for layer in _linear(made, spec.lora.targets))


def _linear(made: Any, targets: Sequence[str] | Literal["all-linear"]) -> list[Any]:
    """Return a model's linear layers that have these names, or all below the head."""
    head, named = made.get_output_embeddings(), made.named_modules()
    linear = [(f".{name}", module) for name, module in named if isinstance(module, nn.Linear | Conv1D)]
    if isinstance(targets, str):
        return [module for _, module in linear if module is not head]
    return [module for name, module in linear if name.endswith(tuple(f".{target}" for target in targets))]


def weightless(model: str) -> Any:
    """Return the model without memory for its weights, from its config alone, or the reason why there is none yet.

    Raises ValueError for a folder that holds no model.
    """
    if models.is_recipe(model):
        return f"known when {model} has been run, which training does first if need be"
    here = isinstance(models.resolve(model), Path)
    try:
        config = load_config(model)
    except ValueError as error:
        if here:
            raise
        return str(error)  # training tries again, when there may be a network
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(config)
