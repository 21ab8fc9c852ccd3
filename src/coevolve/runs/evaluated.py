"""Evaluation of a run directory, or of an untrained recipe: ``coevolve eval``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from coevolve.console import say
from coevolve.evaluate import BY_PROBLEM, DECODINGS, SEED, Row, choose, evaluate, gains
from coevolve.faults import closed_after
from coevolve.models.spec import PolicySpec
from coevolve.recipe.build import build
from coevolve.recipe.read import load_recipe
from coevolve.recipe.trust import need_trust
from coevolve.report.evaluation import show_evaluation
from coevolve.runs import checkpoint as checkpoints
from coevolve.runs import lock
from coevolve.runs.durable import check_writable, make_folder, write_text
from coevolve.runs.folder import RunDir, plain, steps_of
from coevolve.runs.trained import checkpoint_of, kept, recipe_of, without_cluster
from coevolve.trainer import Trainer
from coevolve.types import PolicyName, Problem, Role

Progress = Callable[[str, float], None]

_SLOW = 10.0
"""Seconds from which a part of an evaluation is announced when it is done."""


def evaluate_run(run: Path, **how: Any) -> dict[str, Any]:
    """Evaluate a run as ``measure_run`` does with these arguments, print the result as a table and return it."""
    found = measure_run(run, **how, progress=_announce)
    show_evaluation(found)
    return found


def measure_run(
    run: Path,
    *,
    problems: int | None = None,
    checkpoint: int | None = None,
    samples: int = 1,
    play: str | None = None,
    seed: int = SEED,
    decodings: Sequence[str] = DECODINGS,
    output: Path | None = None,
    trust_code: bool = False,
    progress: Progress = lambda done, seconds: None,
) -> dict[str, Any]:
    """Evaluate a run directory at its newest checkpoint, or at step ``checkpoint``, beside the weights it started from.

    Writes a JSON file and returns its contents. The cast is that of the last step trained. play: the name of another
    play, with its default settings, say ``rounds`` for a team that was ``hinted`` in training. seed: of the random
    numbers; only results of the same seed can be compared problem by problem. decodings and progress: as in
    ``evaluate``. output: the file; None is ``eval.json`` of the run, which reports and exports read, and no file with
    another play or without one of the decodings. trust_code: as in ``recipe_of``. Raises ValueError for a folder that
    is no run, code that is not trusted, a step without a checkpoint, or more problems than the task has.
    """
    directory = RunDir(Path(run))
    if output is None and play is None and set(decodings) == set(DECODINGS):
        output = directory.path / "eval.json"
    found = checkpoint_of(directory, checkpoint)
    recipe = recipe_of(directory, trust_code)
    if recipe.filled_servers:
        _check_no_training(directory)
    with ExitStack() as stack:
        folder = stack.enter_context(kept(found))
        checkpoints.verify(folder)
        if output is not None:
            make_folder(output.parent)
            check_writable(output)  # before hours of work whose result could not be written
        trainer = build(recipe if play is None else recipe.model_copy(update={"play": {"name": play}}))
        stack.enter_context(closed_after([trainer]))
        held_out = choose(trainer.task, problems)
        step = steps_of(folder)
        cast = trainer.cast(max(step - 1, 0))
        distinct = _unlike({name: trainer.policies[name].spec for name in trainer.speakers})
        played = partial(
            _evaluated, trainer, cast, held_out, samples=samples, seed=seed, decodings=decodings, progress=progress
        )
        before = played("start", distinct)
        checkpoints.load(trainer, folder)
        trainer.publish(trainer.policies, step)
        after = played("trained", trainer.speakers)
        result = _described(trainer, step, held_out, before + gains(before, after), samples, seed)
    _write(result, output)
    return result


def _write(result: Mapping[str, Any], output: Path | None) -> None:
    if output is None:
        say("the result is in no file; --output FILE writes one")
    else:
        write_text(output, json.dumps(result, indent=1) + "\n")
        say(f"result: {output}")


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
    seed: int = SEED,
    decodings: Sequence[str] = DECODINGS,
    output: Path | None = None,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Evaluate the start weights of a recipe without training: an untrained baseline.

    Prints a table and returns its contents. output: a file to write these to. seed and decodings: as in
    ``measure_run``. trust_code: run the code that the recipe names. Raises ValueError as ``load_recipe`` does, for code
    that is not trusted, and for more problems than the task has.
    """
    recipe = load_recipe(path, overrides).model_copy(update={"callbacks": []})  # there is no training
    if not trust_code:
        need_trust(path, recipe.record())
    if output is not None:
        make_folder(output.parent)
        check_writable(output)
    trainer = build(recipe.model_copy(update={"learner": without_cluster(recipe.learner)}))
    with closed_after([trainer]):
        held_out = choose(trainer.task, problems)
        rows = _evaluated(
            trainer,
            trainer.cast(0),
            held_out,
            "start",
            trainer.speakers,
            samples=samples,
            seed=seed,
            decodings=decodings,
            progress=_announce,
        )
        result = _described(trainer, 0, held_out, rows, samples, seed)
    show_evaluation(result)
    _write(result, output)
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
    cast: Mapping[Role, PolicyName],
    problems: Sequence[Problem],
    weights: str,
    alone: Sequence[PolicyName],
    *,
    samples: int,
    seed: int,
    decodings: Sequence[str],
    progress: Progress,
) -> list[Row]:
    """Return the rows of ``evaluate`` with the trainer's weights of now. weights: what the rows and the progress call
    them."""
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
        decodings=decodings,
        progress=lambda done, seconds: progress(f"{weights}, {done}", seconds),
    )
    return [{"weights": weights, **row} for row in rows]


def _announce(done: str, seconds: float) -> None:
    if seconds >= _SLOW:
        logging.getLogger(__name__).info("evaluated: %s, in %.0f s", done, seconds)
