"""Diagnosis of a run: its team plays held-out problems as it was trained, and under every altered condition."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from coevolve.diagnose import casts, crossplay, influence, messages
from coevolve.diagnose.entrants import Entrant, build, entrant, others, verified
from coevolve.diagnose.scene import Row, Scene, measured
from coevolve.engines.local import LocalEngine
from coevolve.evaluate import SEED, choose, team_name
from coevolve.held_out import DIAGNOSED
from coevolve.learners.local import LocalLearner
from coevolve.recipe.build import parts
from coevolve.report.findings.diagnostics import FILE
from coevolve.runs.durable import check_writable, write_text
from coevolve.runs.folder import plain
from coevolve.types import PolicyName

MEMBERS = 4
"""Episodes on each problem in every condition, at least."""


Listener = Callable[[Row], None]


def diagnose(
    run: Path,
    *,
    beside: Sequence[Path] = (),
    problems: int | None = None,
    checkpoint: int | None = None,
    trust_code: bool = False,
    listener: Listener = lambda row: None,
) -> dict[str, Any]:
    """Diagnose a run at its newest checkpoint, or at step ``checkpoint``; see the package.

    beside: runs, or checkpoint folders of runs, for cross-play. trust_code: run the code that these runs name, whoever
    made them (see ``trained.recipe_of``). listener: called with every row as it is found. Writes
    ``diagnostics.json`` into the run and returns its content. Raises ValueError for a folder that is no run, a step
    without a checkpoint, more problems than the task has, and a run beside it that has other roles or another task.
    """
    host = entrant(Path(run), checkpoint, trust_code)
    guests = others(beside, host, trust_code)
    rows = []
    with ExitStack() as stack:
        entrants = [stack.enter_context(verified(one)) for one in (host, *guests)]
        check_writable(Path(run) / FILE)  # before hours of work that could not be saved
        policies = build(entrants)
        scene = _scene(host, policies, problems)
        for row in _rows(scene, policies, entrants):
            rows.append(row)
            listener(row)
    found = {
        "checkpoint": host.step,
        "problems": len(scene.problems),
        "samples": scene.members,
        "seed": SEED,
        "max_new_tokens": scene.sampling.max_new_tokens,
        "temperature": scene.sampling.temperature,
        "rows": rows,
    }
    result: dict[str, Any] = plain(found)
    write_text(Path(run) / FILE, json.dumps(result, indent=1) + "\n")
    return result


def _scene(host: Entrant, policies: Mapping[PolicyName, LocalLearner], problems: int | None) -> Scene:
    made, sampling = parts(host.recipe), host.recipe.sampling
    task = made.task()
    held_out = choose(task, min(DIAGNOSED, len(task.test)) if problems is None else problems)
    # A task with few problems gets more members of each, so that as many episodes are sampled.
    members = max(MEMBERS, MEMBERS * DIAGNOSED // len(task.test))
    return Scene(
        play=made.play(),
        cast=host.cast,
        task=task,
        engine=LocalEngine(policies),
        sampling=sampling.at_length(sampling.length_range[1]),
        problems=held_out,
        members=members,
    )


def _rows(scene: Scene, policies: dict[PolicyName, LocalLearner], entrants: Sequence[Entrant]) -> Iterator[Row]:
    """Yield the rows of all conditions. The untrained start is played first, before trained weights replace it."""
    start_PM = scene.returns(scene.played())
    for one in entrants:
        one.load(policies)
    base = scene.played()
    base_PM = scene.returns(base)
    team = {"kind": "team", "role": "all", "policy": team_name(scene.cast)}
    yield {**team, "setting": "trained", **measured(base_PM)}
    yield {**team, "setting": "start", **measured(start_PM, base_PM)}
    yield from casts.alone(scene, base_PM)
    yield from casts.swapped(scene, base_PM)
    yield from messages.rows(scene, base, base_PM)
    yield from influence.rows(scene, base_PM, {name: _end(policy) for name, policy in policies.items()})
    if len(entrants) > 1:
        yield from crossplay.rows(scene, [(one.label, one.cast) for one in entrants])


def _end(policy: LocalLearner) -> list[int]:
    end = policy.tokenizer.eos_token_id
    return [] if end is None else [end]
