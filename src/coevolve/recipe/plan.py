"""What a recipe would do, before it does it (``coevolve train --dry-run``): writes nothing and reads no weights."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import yaml
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from coevolve.compute.backend import planned
from coevolve.engines.scripted import ScriptedEngine
from coevolve.learners.optim import plan_memory
from coevolve.models import names as models
from coevolve.models.load import device_of
from coevolve.models.spec import asked_of
from coevolve.play import Stage, blame, rollout
from coevolve.recipe.schema import Recipe, parts
from coevolve.tasks.roles import check_prompts
from coevolve.types import Algorithm, Case, PolicyName, Problem, Turn

_MIB = 1 << 20
_MOST = 100_000  # turns of an episode that are played to be counted


class _NoTask:
    """Stands in for the task, which may not be to be had here, nor to be built without training a model."""

    train: Sequence[Problem] = (Problem("planned"),)
    test: Sequence[Problem] = train

    def prompt(self, p: Problem, role: str, heard: Sequence[Turn | str]) -> str:
        return ""

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        return [[0.0] * len(case.turns) for case in cases]

    def feedback(self, p: Problem, turns: Sequence[Turn]) -> list[str]:
        return [""] * len(turns)


def plan(recipe: Recipe) -> str:
    """The resolved recipe as YAML, then the plan as comments. Raises ValueError for a wrong key or setting.

    The task is another matter (``problems``); models, and plays that do not work on it, are found out in training."""
    algorithm = parts(recipe).algorithm()
    lines = [
        f"would write {recipe.output_dir}",
        "",
        *_work(recipe, algorithm),
        "",
        *_compute(recipe),
        "",
        *_memory(recipe, algorithm),
    ]
    return yaml.safe_dump(recipe.record(), sort_keys=False) + "\n" + "\n".join(f"# {line}".rstrip() for line in lines)


def problems(recipe: Recipe) -> str:
    """How many there are, as a comment. The task is built for it, unless that would pre-train a model.

    Raises ValueError for wrong settings, a role without a prompt and data that cannot be had, as training would."""
    trained = [value for value in recipe.task.values() if isinstance(value, str) and models.is_recipe(value)]
    if trained:
        return f"# task: built when training starts, which first runs {' and '.join(trained)} if need be"
    with blame("task"):
        task = parts(recipe).task()
        check_prompts(task, recipe.roles)
        return f"# task: {len(task.train)} training and {len(task.test)} held-out problems"


def _work(recipe: Recipe, algorithm: Algorithm) -> list[str]:
    """Tokens of one step. Turns and sweeps are counted by playing one episode without models."""
    checked = parts(recipe)
    cast = checked.cast()(0)
    said = itertools.count()

    def nothing(role: str, problem: str, member: int, number: int) -> str:
        if next(said) >= _MOST:
            raise ValueError(f"more than {_MOST:,} turns an episode, too many to count here")
        return ""

    engine = ScriptedEngine(nothing)
    stage = Stage(cast, _NoTask(), engine, recipe.sampling)
    try:
        rollout(checked.play(), [Problem("planned")], stage)
    except ValueError as error:
        return [f"the work of a step is not known: this play does not run without its problems ({error})"]
    turns: Counter[PolicyName] = Counter(say.policy for call in engine.calls for says in call.values() for say in says)
    episodes, longest = recipe.batch_size * recipe.members, recipe.sampling.length_range[1]
    lines = [
        f"one of {recipe.steps} steps: {recipe.batch_size} problems x {recipe.members} members, "
        f"sweeps: {len(engine.calls)}, each of at most {longest} model calls per policy"
    ]
    for name, count in turns.items():
        rows = episodes * count
        trained = rows * longest * algorithm.objective.epochs if recipe.policies[name].weights != "frozen" else 0
        lines.append(f"  {name}: {rows} turns, at most {rows * longest} tokens sampled and {trained} trained on")
    return lines


def _memory(recipe: Recipe, algorithm: Algorithm) -> list[str]:
    lines = ["memory, without activations (a base or reference of the same model is there once):"]
    for name, spec in recipe.policies.items():
        made = weightless(spec.model)
        if isinstance(made, str):
            lines.append(f"  {name}: size unknown: {made}")
            continue
        count, linear = sizes(made)
        bytes_of = plan_memory(spec, count, algorithm.reference, algorithm.critic, linear)
        detail = ", ".join(f"{part} {size / _MIB:.0f}" for part, size in bytes_of.items())
        lines.append(f"  {name}: {count:,} parameters, {sum(bytes_of.values()) / _MIB:.0f} MiB ({detail})")
    return lines


def _compute(recipe: Recipe) -> list[str]:
    own = {"engine": recipe.engine, "learner": recipe.learner}
    lines = ["compute:", *(f"  {key}: {part['name']}" for key, part in own.items() if part)]
    if recipe.learner:
        return lines  # what computes is its own affair
    for name, spec in recipe.policies.items():
        made, asked = weightless(spec.model), asked_of(spec.compute, recipe.threads)
        known = not isinstance(made, str)
        chosen = planned(made, device_of(spec.device), asked, spec.load_in_4bit) if known else made
        lines.append(f"  {name}: {chosen}")
    return lines


def sizes(made: Any) -> tuple[int, int]:
    """How many parameters a model has and how many of them in linear layers below the head."""
    below = [m for m in made.modules() if isinstance(m, nn.Linear | Conv1D) and m is not made.get_output_embeddings()]
    return int(made.num_parameters()), sum(module.weight.numel() for module in below)


def weightless(model: str) -> Any:
    """The model without memory for its weights, from its config alone, or the reason why that cannot be had now.

    Raises ValueError for a folder that holds no model.
    """
    if models.is_recipe(model):
        return f"known when {model} has been run, which training does first if need be"
    try:
        config = AutoConfig.from_pretrained(models.resolve(model), trust_remote_code=False)
    except OSError as error:
        return f"no config of {model!r} can be had ({str(error).splitlines()[0]})"
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(config)
