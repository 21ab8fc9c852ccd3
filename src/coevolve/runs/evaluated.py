"""A run directory, or a recipe untrained, evaluated: ``coevolve eval``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coevolve.evaluate import Row, choose, evaluate
from coevolve.faults import closed_after
from coevolve.recipe.schema import build, load_recipe
from coevolve.recipe.trust import need_trust
from coevolve.report.evaluation import show_evaluation
from coevolve.runs import checkpoint as checkpoints
from coevolve.runs.durable import write_text
from coevolve.runs.folder import RunDir, plain
from coevolve.runs.trained import checkpoint_of, recipe_of, step_of
from coevolve.trainer import Trainer
from coevolve.types import PolicyName, Problem, Role


def evaluate_run(
    run: Path,
    *,
    problems: int | None = None,
    checkpoint: int | None = None,
    samples: int = 1,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Evaluate a run directory at its newest checkpoint, or at step ``checkpoint``, beside the weights it started from.

    Prints a table, writes ``eval.json`` into the run and returns the same. The cast is that of the last step trained.
    trust_code: as in ``recipe_of``. Raises ValueError for a folder that is no run, code that is not trusted, a step
    without a checkpoint, or more problems than the task has.
    """
    directory = RunDir(Path(run))
    folder = checkpoint_of(directory, checkpoint)
    trainer = build(recipe_of(directory, trust_code))
    with closed_after([trainer]):
        held_out = choose(trainer.task, problems)
        step = step_of(folder)
        cast = trainer.cast(max(step - 1, 0))
        distinct = {policy.spec.model: name for name, policy in reversed(trainer.policies.items())}
        before = _evaluated(trainer, cast, list(distinct.values()), held_out, samples)
        checkpoints.load(trainer, folder)
        trainer.publish(trainer.policies, step)
        after = _evaluated(trainer, cast, None, held_out, samples)
        rows = [{"weights": "start", **row} for row in before] + [{"weights": "trained", **row} for row in after]
        result = _shown(trainer, step, held_out, rows, samples)
    write_text(directory.path / "eval.json", json.dumps(result, indent=1) + "\n")
    return result


def evaluate_recipe(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    problems: int | None = None,
    samples: int = 1,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Evaluate the start weights of a recipe without training: an untrained baseline.

    Prints a table and returns what it shows. trust_code: run the code that the recipe names. Raises ValueError as
    ``load_recipe`` does, for code that is not trusted, or for more problems than the task has.
    """
    recipe = load_recipe(path, overrides)
    if not trust_code:
        need_trust(path, recipe.record())
    trainer = build(recipe)
    with closed_after([trainer]):
        held_out = choose(trainer.task, problems)
        rows = [{"weights": "start", **row} for row in _evaluated(trainer, trainer.cast(0), None, held_out, samples)]
        return _shown(trainer, 0, held_out, rows, samples)


def _shown(
    trainer: Trainer, step: int, held_out: Sequence[Problem], rows: Sequence[Row], samples: int
) -> dict[str, Any]:
    """The rows with what they were made of, as plain data, printed."""
    found = {
        "checkpoint": step,
        "problems": len(held_out),
        "samples": samples,
        "max_new_tokens": trainer.sampling.length_range[1],
        "temperature": trainer.sampling.temperature,
        "rows": rows,
    }
    result: dict[str, Any] = plain(found)
    show_evaluation(result)
    return result


def _evaluated(
    trainer: Trainer,
    cast: Mapping[Role, PolicyName],
    alone: Sequence[PolicyName] | None,
    problems: Sequence[Problem],
    samples: int,
) -> list[Row]:
    return evaluate(
        task=trainer.task,
        play=trainer.play,
        cast_at=cast,
        policies=trainer.policies,
        engine=trainer.engine,
        sampling=trainer.sampling,
        problems=problems,
        alone=alone,
        samples=samples,
    )
