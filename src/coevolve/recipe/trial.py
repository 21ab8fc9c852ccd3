"""A trial of a recipe without models, for a dry run: the first problems with empty answers, and what is made of them.

What may cost money is left out: rewards are made up, feedback is empty, and credit or an algorithm with code of one's
own is not tried.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch

from coevolve.checks import check_cast, checked, plain_state
from coevolve.collate import collate, rows_of
from coevolve.engines.scripted import ScriptedEngine
from coevolve.faults import blame, one_line
from coevolve.interfaces import Task
from coevolve.live import pay
from coevolve.recipe.build import Parts, parts
from coevolve.recipe.schema import Recipe
from coevolve.recipe.trust import code_in
from coevolve.rollout import Stage, rollout
from coevolve.types import Batch, Case, Episode, Lesson, PolicyName, Problem, Say, Turn

_MOST_TURNS = 200  # of an episode: prompts may grow with every turn
_MOST_EPISODES = 1_000
_MOST_TO_COUNT = 100_000  # of an episode that is played to count them
_SHOWN = 120  # characters of a prompt's beginning and of its end


class NoTask:
    """A stand-in for the task, which may be unavailable here, or need a model that is not trained yet."""

    train: Sequence[Problem] = (Problem("planned"),)
    test: Sequence[Problem] = train

    def prompt(self, p: Problem, role: str, heard: Sequence[Turn | str]) -> str:
        return ""

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        return [[0.0] * len(case.turns) for case in cases]

    def feedback(self, p: Problem, turns: Sequence[Turn]) -> list[str]:
        return [""] * len(turns)


class _Free:
    """The task without what may cost money. Rewards are small, and unlike each other as those of a step mostly are.

    asked: whether a play has asked for its feedback."""

    def __init__(self, task: Task) -> None:
        self._task, self.asked, self._paid = task, False, itertools.count(1)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._task, name)
        return self._feedback if name == "feedback" else found

    def _feedback(self, p: Problem, turns: Sequence[Turn]) -> list[str]:
        self.asked = True
        return NoTask().feedback(p, turns)

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        return [[next(self._paid) / 1e6] * len(case.turns) for case in cases]


class TooManyTurnsError(ValueError):
    """A play went on for longer than is tried here."""


def silent(most: int, episodes: int = 1) -> ScriptedEngine:
    """Return an engine whose turns are empty. It raises TooManyTurnsError at more than ``most`` turns an episode."""
    said = itertools.count()

    def nothing(role: str, problem: str, member: int, number: int) -> str:
        if next(said) >= most * episodes:
            raise TooManyTurnsError(f"more than {most:,} turns an episode, too many to count here")
        return ""

    return ScriptedEngine(nothing)


def asked(recipe: Recipe, checked: Parts) -> list[dict[PolicyName, list[Say]]]:
    """Return the turns that each call of generate in one episode asks for, by the policies of step 0. It is played
    without models and without the task. Raises ValueError for a play that does not run without its problems."""
    engine = silent(_MOST_TO_COUNT)
    stage = Stage(checked.cast()(0), NoTask(), engine, recipe.sampling)
    rollout(checked.play(), [Problem("planned")], stage)
    return engine.calls


def trial(recipe: Recipe, task: Task) -> Iterator[str]:
    """Yield, as comments, what each role is told first, and what ended the trial if training need not end there.

    The first two problems (of a task with fewer than ``batch_size``, which repeats them, twice) are played with all
    their members; then credit and advantages are computed. Raises ValueError for what ends this: a model may well say
    nothing, so that training would end there, too.
    """
    many = 4 if recipe.batch_size > len(task.train) else 2
    problems = list(itertools.islice(itertools.cycle(itertools.islice(task.train, 2)), min(recipe.batch_size, many)))
    cast_at, episodes = parts(recipe).cast(), len(problems) * recipe.members
    check_cast(cast_at, recipe.policies, recipe.steps, recipe.batch_size * recipe.members)
    if episodes > _MOST_EPISODES:
        yield f"# no trial: with all members it would be of {episodes:,} episodes"
        return
    engine = silent(_MOST_TURNS, episodes)
    free = cast(_Free, type(type(task).__name__, (_Free,), {})(task))  # of the task's name, which messages say
    stage = Stage(cast_at(0), cast(Task, free), engine, recipe.sampling)
    ended, excused = None, False
    try:
        found = rollout(parts(recipe).play(), problems, stage, members=recipe.members)
    except ValueError as error:  # of a play of one's own, a service that is not here may be the cause
        ended, excused = error, free.asked or isinstance(error, TooManyTurnsError) or bool(code_in([recipe.play]))
    else:
        try:
            _taught(recipe, found, stage)
        except ValueError as error:
            ended = error
    yield from _told(recipe, engine)
    if ended is not None:
        said = f"a trial with empty answers ends: {one_line(str(ended))}"
        if not excused:
            raise ValueError(said) from ended
        yield f"# {said}"


def _told(recipe: Recipe, engine: ScriptedEngine) -> list[str]:
    """Return what each role was told first."""
    first = {say.role: say for call in reversed(engine.calls) for says in call.values() for say in reversed(says)}
    said = {role: _cut(engine.read(say.prompt_ids)) for role, say in first.items()}
    return [f"#   {role} is told: {said[role]}" for role in recipe.roles if role in said]


def _cut(prompt: str) -> str:
    """Return a prompt's beginning and end: examples stand before a question, instructions before or after a text."""
    return prompt if len(prompt) <= 2 * _SHOWN else f"{prompt[:_SHOWN]} ... {prompt[-_SHOWN:]}"


def _taught(recipe: Recipe, episodes: Sequence[Episode], stage: Stage) -> None:
    """Compute credit, added rows and advantages of these episodes, as a step does."""
    if code_in([recipe.algorithm]):
        return
    algorithm = parts(recipe).algorithm
    with blame("the credit"):
        rows = rows_of(episodes, algorithm.credit, partial(pay, stage=stage))
    if algorithm.rows is not None:
        with blame("the rows of the algorithm"):
            rows += [dataclasses.replace(row, extra=True) for row in algorithm.rows(episodes, rows)]
    learns = [name for name, spec in recipe.policies.items() if spec.trainable]
    spoke = {row.turn.policy for row in rows}
    batches = {name: _described(collate(rows, name)) for name in learns if name in spoke}
    if batches:
        with blame("the advantage"):
            lesson = Lesson(episodes, batches)
            checked(algorithm.advantage(lesson, plain_state(algorithm.start)), lesson)


def _described(batch: Batch) -> Batch:
    """Return the batch with all that a policy may add to it: no distance to the reference, and values of 0."""
    nothing_BT = torch.zeros_like(batch.logp_BT)
    same = {"logp_ref_BT": batch.logp_BT, "logp_old_BT": batch.logp_BT}
    return batch.replace(kl_BT=nothing_BT, value_BT=nothing_BT, **same)
