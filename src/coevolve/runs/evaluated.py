"""Evaluation of a run directory, or of an untrained recipe: ``coevolve eval``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from coevolve.evaluate import BY_PROBLEM, SEED, Row, choose, evaluate, gains
from coevolve.faults import closed_after
from coevolve.models.spec import PolicySpec
from coevolve.recipe.build import build
from coevolve.recipe.read import load_recipe
from coevolve.recipe.trust import need_trust
from coevolve.report.evaluation import show_evaluation
from coevolve.runs import checkpoint as checkpoints
from coevolve.runs import lock
from coevolve.runs.durable import check_writable, write_text
from coevolve.runs.folder import RunDir, plain, steps_of
from coevolve.runs.trained import checkpoint_of, kept, recipe_of, without_cluster
from coevolve.trainer import Trainer
from coevolve.types import PolicyName, Problem, Role

Progress = Callable[[str, float], None]

_SLOW = 10.0
"""Seconds from which a part of an evaluation is announced when it is done."""


def evaluate_run(
    run: Path,
    *,
    problems: int | None = None,
    checkpoint: int | None = None,
    samples: int = 1,
    play: str | None = None,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Evaluate a run as ``measure_run`` does, print the result as a table and return it."""
    found = measure_run(
        run,
        problems=problems,
        checkpoint=checkpoint,
        samples=samples,
        play=play,
        trust_code=trust_code,
        progress=_announce,
    )
    show_evaluation(found)
    return found


def measure_run(
    run: Path,
    *,
    problems: int | None = None,
    checkpoint: int | None = None,
    samples: int = 1,
    play: str | None = None,
    trust_code: bool = False,
    seed: int = SEED,
    progress: Progress = lambda done, seconds: None,
) -> dict[str, Any]:
    """Evaluate a run directory at its newest checkpoint, or at step ``checkpoint``, beside the weights it started from.

    Writes ``eval.json`` into the run and returns its contents. The cast is that of the last step trained. play: the
    name of another play, with its default settings, say ``rounds`` for a team that was ``hinted`` in training; then
    nothing is written. trust_code: as in ``recipe_of``. seed: of the random numbers; only results of the same seed can
    be compared problem by problem. progress: as in ``evaluate``. Raises ValueError for a folder that is no run, code
    that is not trusted, a step without a checkpoint, or more problems than the task has.
    """
    directory = RunDir(Path(run))
    found = checkpoint_of(directory, checkpoint)
    recipe = recipe_of(directory, trust_code)
    if recipe.filled_servers:
        _check_no_training(directory)
    with ExitStack() as stack:
        folder = stack.enter_context(kept(found))
        checkpoints.verify(folder)
        if play is None:
            check_writable(directory.path / "eval.json")  # before hours of work whose result could not be written
        trainer = build(recipe if play is None else recipe.model_copy(update={"play": {"name": play}}))
        stack.enter_context(closed_after([trainer]))
        held_out = choose(trainer.task, problems)
        step = steps_of(folder)
        cast = trainer.cast(max(step - 1, 0))
        distinct = _unlike({name: trainer.policies[name].spec for name in trainer.speakers})
        before = _evaluated(trainer, "start", cast, distinct, held_out, samples, seed, progress)
        checkpoints.load(trainer, folder)
        trainer.publish(trainer.policies, step)
        after = _evaluated(trainer, "trained", cast, trainer.speakers, held_out, samples, seed, progress)
        result = _described(trainer, step, held_out, before + gains(before, after), samples, seed)
    if play is None:
        write_text(directory.path / "eval.json", json.dumps(result, indent=1) + "\n")
    return result


def _check_no_training(directory: RunDir) -> None:
    """Raise ValueError if a process trains in this run: its server would get the weights of the evaluation."""
    try:
        lock.check(directory.path)
    except ValueError as error:
        raise ValueError(
            f"{error}; an evaluation would put other weights onto its server, which has one set"
        ) from error


def evaluate_recipe(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    problems: int | None = None,
    samples: int = 1,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Evaluate the start weights of a recipe without training: an untrained baseline.

    Prints a table and returns its contents. trust_code: run the code that the recipe names. Raises ValueError as
    ``load_recipe`` does, for code that is not trusted, and for more problems than the task has.
    """
    recipe = load_recipe(path, overrides).model_copy(update={"callbacks": []})  # there is no training
    if not trust_code:
        need_trust(path, recipe.record())
    trainer = build(recipe.model_copy(update={"learner": without_cluster(recipe.learner)}))
    with closed_after([trainer]):
        held_out = choose(trainer.task, problems)
        cast = trainer.cast(0)
        rows = _evaluated(trainer, "start", cast, trainer.speakers, held_out, samples, SEED, _announce)
        result = _described(trainer, 0, held_out, rows, samples, SEED)
    show_evaluation(result)
    return result


def _unlike(specs: dict[PolicyName, PolicySpec]) -> list[PolicyName]:
    """Return the policies whose start weights differ; of policies that start alike, only the first."""

    def untrained(spec: PolicySpec) -> str:
        own = getattr(spec, "engine", None)  # only a recipe's policies have engines
        return json.dumps([spec.model, spec.chat, spec.dtype, spec.load_in_4bit, own], sort_keys=True, default=str)

    first: dict[str, PolicyName] = {}
    for name, spec in specs.items():
        first.setdefault(untrained(spec), name)
    return list(first.values())


def _described(
    trainer: Trainer, step: int, held_out: Sequence[Problem], rows: Sequence[Row], samples: int, seed: int
) -> dict[str, Any]:
    """Return the rows and the settings of the evaluation, as plain data."""
    found = {
        "checkpoint": step,
        "problems": len(held_out),
        "samples": samples,
        "seed": seed,
        "max_new_tokens": trainer.sampling.length_range[1],
        "temperature": trainer.sampling.temperature,
        "rows": [{key: value for key, value in row.items() if key != BY_PROBLEM} for row in rows],
    }
    result: dict[str, Any] = plain(found)
    return result


def _evaluated(
    trainer: Trainer,
    weights: str,
    cast: Mapping[Role, PolicyName],
    alone: Sequence[PolicyName],
    problems: Sequence[Problem],
    samples: int,
    seed: int,
    progress: Progress,
) -> list[Row]:
    rows = evaluate(
        task=trainer.task,
        play=trainer.play,
        cast_at=cast,
        policies=trainer.policies,
        engine=trainer.engine,
        sampling=trainer.sampling,
        problems=problems,
        alone=alone,
        samples=samples,
        seed=seed,
        progress=lambda done, seconds: progress(f"{weights}, {done}", seconds),
    )
    return [{"weights": weights, **row} for row in rows]


def _announce(done: str, seconds: float) -> None:
    if seconds >= _SLOW:
        logging.getLogger(__name__).info("evaluated: %s, in %.0f s", done, seconds)
