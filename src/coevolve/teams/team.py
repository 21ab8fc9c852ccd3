"""A trained team for inference: ``Team.load(folder).play("...")``, with a folder that ``coevolve export`` wrote.

    team.yaml           roles, policies, play, task and sampling (``Exported``)
    agents/<policy>/    a Hugging Face folder, or a PEFT folder
    bases/<model>/      base models of adapters that are no models of the hub
    code/               the user's own task, play or functions
    README.md           the model card

Playing needs neither the training data nor a reward: all rewards are 0.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, model_validator

from coevolve.engines.local import LocalEngine
from coevolve.faults import blame
from coevolve.interfaces import Task
from coevolve.learners.build import build_policies
from coevolve.learners.local import LocalLearner
from coevolve.models.names import HUB_NAME, is_recipe
from coevolve.models.spec import PolicySpec
from coevolve.names import check_run_name
from coevolve.plays import PLAYS
from coevolve.recipe.components import component
from coevolve.recipe.inputs import load_yaml
from coevolve.recipe.read import anchored
from coevolve.recipe.schema import Component, StrictSampling, check_roles
from coevolve.recipe.trust import need_trust
from coevolve.recipe.validate import validate
from coevolve.rollout import Stage, rollout
from coevolve.tasks import TASKS
from coevolve.teams.telling import OnPiece, StreamingEngine
from coevolve.types import Case, Episode, Play, PolicyName, Problem, Prompt, Role, Sampling, Turn

FILE, AGENTS, BASES, CODE = "team.yaml", "agents", "bases", "code"

HERE = "./"
"""The prefix of paths in ``team.yaml`` that are relative to the team's own folder."""

_STEP = "team"
"""Takes the place of the training step in the keys of the random numbers."""

_NAME = 40  # characters of a problem's first column that its id begins with


class Exported(BaseModel):
    """The contents of an exported team's ``team.yaml``.

    Models that begin with ``./``, and files of code, are in the team's folder.
    """

    model_config = ConfigDict(extra="forbid")

    coevolve: str
    """The version of Coevolve that wrote the file."""
    run: str
    step: NonNegativeInt
    """The number of training steps of the exported checkpoint."""
    roles: dict[Role, PolicyName] = Field(min_length=1)
    policies: dict[PolicyName, PolicySpec]
    play: Component
    task: Component
    sampling: StrictSampling
    example: dict[str, Any] | None = None
    """A held-out problem (``columns``) and the roles' prompts on it (``told``), for readers and the model card."""

    @model_validator(mode="after")
    def _of_trained_policies(self) -> Exported:
        check_run_name(self.run)
        check_roles(self.roles, self.policies)
        for name, spec in self.policies.items():
            if is_recipe(spec.model):  # training by a stranger's recipe would write wherever it says
                raise ValueError(
                    f"policies.{name}.model is the recipe {spec.model}; want a folder or a model of the hub"
                )
            within = spec.model.startswith(HERE) and ".." not in Path(spec.model).parts
            if not within and not HUB_NAME.fullmatch(spec.model):
                raise ValueError(
                    f"policies.{name}.model is {spec.model}; want {HERE}..., in the team, or a model of the hub"
                )
        return self


class Team:
    """Trained policies that play their roles in the play that they were trained in.

    roles: role -> policy. asks: the columns of a problem, empty for a task that needs none, None for a task that does
    not say. Feedback is given where the play asks for it; all rewards are 0, so ``best_of`` continues its first
    response. Exports leave thresholds out of plays.
    """

    def __init__(
        self,
        *,
        task: Task,
        play: Play,
        roles: Mapping[Role, PolicyName],
        policies: Mapping[PolicyName, LocalLearner],
        sampling: Sampling,
        asks: Sequence[str] | None,
    ) -> None:
        self.task, self.protocol, self.roles, self.sampling = _Played(task), play, dict(roles), sampling
        self.policies, self.engine = policies, LocalEngine(policies)
        self.asks = asks

    @classmethod
    def load(cls, folder: str | Path, device: str | None = None, trust_code: bool = False) -> Team:
        """Load the team in this folder onto a device ("cuda:1"; by default the first GPU, or the CPU).

        trust_code: allow the team's own Python files to be run, and the endpoint that it names to be asked for
        feedback; its reward is never used. Raises ValueError for a folder that is no team, code that is not trusted,
        and models that cannot be loaded.
        """
        folder = Path(folder)
        about = described(folder)
        settings = unpaid(about.task)
        if not trust_code:
            need_trust(folder, anchored({"task": settings, "play": about.play}, folder))
        with blame(f"{folder / FILE}"):
            task = component(anchored(settings, folder), TASKS, "task")
            play = component(anchored(about.play, folder), PLAYS, "play")
            asks = asked(task, about.play)
        return cls(
            task=task,
            play=play,
            roles=about.roles,
            policies=_policies(folder, about.policies, device or "auto"),
            sampling=about.sampling,
            asks=asks,
        )

    def play(
        self,
        problem: str | Mapping[str, Any] = {},
        /,
        *,
        seed: int = 0,
        temperature: float | None = None,
        max_new_tokens: int | None = None,
        **columns: Any,
    ) -> Episode:
        """Play one problem and return its episode: ``play("text")`` if the task asks for one column, else
        ``play(text=..., entry=...)``, or ``play({"text": ..., "entry": ...})``, which takes any name.

        seed: the same seed gives the same texts, and in ``pettingzoo`` the game of that seed. temperature (0: greedy),
        max_new_tokens: as trained if None. Raises ValueError for a missing column, a prompt that is too long, and
        errors of the task or the play.
        """
        given = {**self._columns(problem), **columns}
        return self.play_many([given], seed=seed, temperature=temperature, max_new_tokens=max_new_tokens)[0]

    def play_many(
        self,
        problems: Sequence[str | Mapping[str, Any]],
        *,
        seed: int = 0,
        temperature: float | None = None,
        max_new_tokens: int | None = None,
        on_piece: OnPiece | None = None,
    ) -> list[Episode]:
        """Play several problems at the same time and return an episode for each. A repeated problem is sampled anew
        each time.

        on_piece: called with the turns and their pieces as they are sampled (``teams.telling``).
        """
        given = [self._problem({**self._seeded(seed), **self._columns(problem)}) for problem in problems]
        longest = self.sampling.length_range[1] if max_new_tokens is None else max_new_tokens
        sampling = self.sampling.at_length(longest)
        if temperature is not None:
            sampling = dataclasses.replace(sampling, temperature=temperature)
        engine = self.engine if on_piece is None else StreamingEngine(self.engine, on_piece)
        stage = Stage(self.roles, self.task, engine, sampling, seed, _STEP)
        return rollout(self.protocol, given, stage)

    def _seeded(self, seed: int) -> dict[str, int]:
        """Return the column that says which game is played, for a task whose problems differ in a seed only."""
        return {self.task.seed_column: seed} if self.task.seed_column else {}

    def _columns(self, problem: str | Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(problem, str):
            return problem
        if self.asks is None:
            raise ValueError(
                f"the task {self.task.name} does not say which column a text is; name it, team.play(column=...), or "
                'give the class asks = ("column",)'
            )
        if len(self.asks) != 1:
            named = ", ".join(f"{name!r}: ..." for name in self.asks)
            raise ValueError(f"a text alone does not make a problem of {self.task.name}; team.play({{{named}}})")
        return {self.asks[0]: problem}

    def _problem(self, columns: Mapping[str, Any]) -> Problem:
        """Return the problem with these columns. Its id, used in messages and in the keys of its random numbers, is
        its first column; if that is long, or there are more columns, its beginning and a checksum of all columns."""
        if missing := [name for name in self.asks or () if name not in columns]:
            given = ", ".join(columns) or "none"
            raise ValueError(f"no column {', '.join(missing)}, which {self.task.name} asks for; were given {given}")
        name = str(next(iter(columns.values()), ""))
        if len(columns) > 1 or len(name) > _NAME:
            name = f"{name[:_NAME]} ({zlib.crc32(json.dumps(_told(columns)).encode()):08x})"
        return Problem(name, dict(columns))


def _told(value: Any) -> Any:
    """Return a column's value as plain data that is the same in every process; other objects become the name of their
    type."""
    if isinstance(value, Mapping):
        return sorted([str(key), json.dumps(_told(one))] for key, one in value.items())
    if isinstance(value, list | tuple):
        return [_told(one) for one in value]
    return value if isinstance(value, str | int | float | None) else type(value).__name__


class _Played:
    """A task without problems, whose rewards are all 0."""

    train: Sequence[Problem] = ()
    test: Sequence[Problem] = ()

    def __init__(self, task: Task) -> None:
        self.name = type(task).__name__
        self.feedback = getattr(task, "feedback", None)
        self.referee = getattr(task, "referee", None)
        self.seed_column: str | None = getattr(task, "seed_column", None)
        self._task = task

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt:
        return self._task.prompt(p, role, heard)

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        return [[0.0] * len(case.turns) for case in cases]


def described(folder: Path) -> Exported:
    """Read the folder's ``team.yaml``. Raises ValueError if it is missing or invalid."""
    if not (folder / FILE).is_file():
        raise ValueError(f"{folder} is no team: it has no {FILE}; make one of a run with `coevolve export RUN FOLDER`")
    return validate(Exported, load_yaml(folder / FILE), str(folder / FILE))


def unpaid(task: Component) -> Component:
    """Return a packaged task's settings with a reward of 0 in place of its own, which may be code, a model or a judge.
    Settings of a user's own task stay as they are, since their meaning is unknown."""
    if task["name"] not in TASKS or "reward" not in task:
        return task
    return {**{key: value for key, value in task.items() if key != "reward_weights"}, "reward": _nothing}


def _nothing(**columns: Any) -> float:
    return 0.0


def asked(task: Task, play: Component) -> tuple[str, ...] | None:
    """Return the columns that a problem of this task needs in this play; None if the task does not say."""
    asks: Sequence[str] | None = getattr(task, "asks", None)
    if asks is None:
        return None
    more: Sequence[str] = getattr(task, "feedback_asks", ()) if play.get("feedback") else ()
    return tuple(dict.fromkeys((*asks, *more)))


def _policies(folder: Path, specs: Mapping[PolicyName, PolicySpec], device: str) -> dict[PolicyName, LocalLearner]:
    """Build the policies; adapters of the same base model share one copy of it."""

    def placed(spec: PolicySpec) -> PolicySpec:
        model = str(folder / spec.model) if spec.model.startswith(HERE) else spec.model
        return dataclasses.replace(spec, model=model, device=device)

    placed_specs = {name: placed(spec) for name, spec in specs.items()}
    policies = build_policies(placed_specs, reference=False, critic=False, steps=1, seed=0)
    for name, spec in specs.items():
        if spec.weights == "lora":
            policies[name].weights.load(folder / AGENTS / name)
    return policies
