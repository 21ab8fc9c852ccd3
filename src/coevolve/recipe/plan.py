"""The plan of a dry run (``coevolve train --dry-run``): what a recipe would do. Writes nothing, reads no weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from coevolve.cautions import Cautions
from coevolve.checks import check_corrected, check_task
from coevolve.engines.on_gpus import slow_on_gpus
from coevolve.faults import blame
from coevolve.learners.sizes import weightless
from coevolve.models import names as models
from coevolve.recipe import memory, rank_memory
from coevolve.recipe.build import Parts, parts
from coevolve.recipe.inputs import dump
from coevolve.recipe.schema import Recipe
from coevolve.recipe.trial import asked, trial
from coevolve.tasks.roles import check_prompts
from coevolve.types import PolicyName


def plan(recipe: Recipe) -> str:
    """Return the resolved recipe as YAML, then the plan as comments. Raises ValueError for a wrong key or setting.

    Not checked here: the task (``problems`` does), and models and plays that only fail in training."""
    checked = parts(recipe)
    algorithm = checked.algorithm
    check_corrected(max((one.get("staleness", 0) for one in recipe.engines), default=0), algorithm)
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
        *(
            rank_memory.of_ranks(recipe, algorithm)
            if rank_memory.on_ranks(recipe)
            else memory.of_processes(recipe, checked)
        ),
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
    algorithm = checked.algorithm
    try:
        calls = asked(recipe, checked)
    except ValueError as error:
        return [f"the work of a step is not known: this play does not run without its problems ({error})"]
    turns: Counter[PolicyName] = Counter(say.policy for call in calls for says in call.values() for say in says)
    episodes, longest = recipe.batch_size * recipe.members, recipe.sampling.length_range[1]
    lines = [
        f"one of {recipe.steps} steps: {recipe.batch_size} problems x {recipe.members} members, "
        f"calls of generate: {len(calls)}, each of at most {longest} model calls per policy"
    ]
    for name, count in turns.items():
        rows = episodes * count
        trained = rows * longest * algorithm.objective.epochs if recipe.policies[name].trainable else 0
        lines.append(f"  {name}: {rows} turns, at most {rows * longest} tokens sampled and {trained} trained on")
    if algorithm.resample:
        lines.append(f"  and up to {algorithm.resample} times as many again, in place of problems that were paid alike")
    return lines


def _compute(recipe: Recipe) -> list[str]:
    own = {"engine": recipe.engine, "learner": recipe.learner}
    own |= {f"{name}, engine": spec.engine for name, spec in recipe.policies.items()}
    lines = ["compute:", *(f"  {key}: {_shown(part)}" for key, part in own.items() if part)]
    if slow := slow_on_gpus(name for name in recipe.policies if rank_memory.sampled_on_gpu(recipe, name)):
        lines.append(f"  the local engine samples {slow}")
    if recipe.learner:
        return lines  # a learner of the recipe's own chooses its backend itself
    for name, spec in recipe.policies.items():
        if spec.elsewhere and not memory.positions(recipe, spec):
            lines.append(f"  {name}: not here, its engine has it")
            continue
        made = weightless(spec.model)
        lines.append(f"  {name}: {made if isinstance(made, str) else memory.backend_of(recipe, spec, made)[1]}")
    return lines


def _shown(part: Mapping[str, Any]) -> str:
    """Return a component in one line: its name and its settings."""
    settings = [f"{key}: {value}" for key, value in part.items() if key != "name"]
    return ", ".join([str(part["name"]), *settings])
