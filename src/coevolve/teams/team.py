"""A trained team to be played: ``Team.load(folder).play("...")``, of a folder that ``coevolve export`` wrote.

    team.yaml           who plays which role, how, and what each is told (``Exported``)
    agents/<policy>/    a Hugging Face folder, or a PEFT folder
    bases/<model>/      what adapters sit on, where that is no model of the hub
    code/               the user's own task, protocol or functions
    README.md           the model card

Playing needs neither the training data nor a reward: nobody is paid.
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
from coevolve.names import check_run
from coevolve.plays import PLAYS
from coevolve.recipe.components import component
from coevolve.recipe.inputs import load_yaml, validate
from coevolve.recipe.schema import Component, StrictSampling, anchored, check_roles
from coevolve.recipe.trust import need_trust
from coevolve.rollout import Stage, rollout
from coevolve.tasks import TASKS
from coevolve.teams.telling import Telling, Told
from coevolve.types import Case, Episode, Play, PolicyName, Problem, Prompt, Role, Sampling, Turn

FILE, AGENTS, BASES, CODE = "team.yaml", "agents", "bases", "code"

HERE = "./"
"""What a path in ``team.yaml`` begins with that leads into the team's own folder."""

_STEP = "team"
"""In the names of the random numbers, where training has the step."""

_NAME = 40  # characters of a problem that it is called by


class Exported(BaseModel):
    """What an exported team is made of, as its ``team.yaml`` says.

    Models that begin with ``./``, and files of code, are in the team's folder.
    """

    model_config = ConfigDict(extra="forbid")

    coevolve: str
    """The version that wrote it."""
    run: str
    step: NonNegativeInt
    """How many steps of the run had been learnt."""
    roles: dict[Role, PolicyName] = Field(min_length=1)
    policies: dict[PolicyName, PolicySpec]
    play: Component
    task: Component
    sampling: StrictSampling
    example: dict[str, Any] | None = None
    """A held-out problem, ``columns``, and what roles were ``told`` on it, for who reads the file."""

    @model_validator(mode="after")
    def _of_trained_policies(self) -> Exported:
        check_run(self.run)
        check_roles(self.roles, self.policies)
        for name, spec in self.policies.items():
            if is_recipe(spec.model):  # one of a stranger would write wherever it says
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
    """Policies that play their roles in the protocol that they were trained in.

    roles: role -> policy. asks: the columns of a problem, empty for a task that needs none, None for a task that does
    not say. feedback is given where the protocol asks for it; rewards are 0, so that ``best_of`` goes on from the first
    of its responses and no threshold above 0 ends a play.
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
        """The team in this folder, on the device ("cuda:1"; by default the first GPU, or the CPU).

        trust_code: run the Python files that came with it, and ask the endpoint that it names for feedback, if there
        are any; a reward is not among them, as nobody is paid. Raises ValueError for a folder that is no team, code
        that is not trusted, and models that cannot be loaded.
        """
        folder = Path(folder)
        about = described(folder)
        settings = unpaid(about.task)
        if not trust_code:
            need_trust(folder, anchored({"task": settings, "play": about.play}, folder))
        with blame(f"{folder / FILE}"):
            task = component(anchored(settings, folder), TASKS, "task")
            play = component(anchored(about.play, folder), PLAYS, "play")
        return cls(
            task=task,
            play=play,
            roles=about.roles,
            policies=_policies(folder, about.policies, device or "auto"),
            sampling=about.sampling,
            asks=asked(task, about.play),
        )

    def play(
        self,
        problem: str | Mapping[str, Any] = {},
        *,
        seed: int = 0,
        temperature: float | None = None,
        max_new_tokens: int | None = None,
        **columns: Any,
    ) -> Episode:
        """One interaction: ``play("text")`` where the task asks for one column, else ``play(question=..., entry=...)``,
        or a mapping.

        seed: the same one gives the same texts. temperature (0: greedy), max_new_tokens: else as trained. Raises
        ValueError for a column that is missing, a prompt that is too long, and whatever the task or the play raises.
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
        told: Told | None = None,
    ) -> list[Episode]:
        """An interaction on each problem, side by side. The same problem several times is sampled several times.

        told: hears what is said as it is sampled (``teams.telling``).
        """
        given = [self._problem(self._columns(problem)) for problem in problems]
        longest = self.sampling.length_range[1] if max_new_tokens is None else max_new_tokens
        sampling = self.sampling.at_length(longest)
        if temperature is not None:
            sampling = dataclasses.replace(sampling, temperature=temperature)
        engine = self.engine if told is None else Telling(self.engine, told)
        stage = Stage(self.roles, self.task, engine, sampling, seed, _STEP)
        return rollout(self.protocol, given, stage)

    def _columns(self, problem: str | Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(problem, str):
            return problem
        if self.asks is None:
            raise ValueError(
                f"the task {self.task.name} does not say which column a text is; name it, team.play(column=...), or "
                'give the class asks = ("column",)'
            )
        if len(self.asks) != 1:
            named = ", ".join(f"{name}=..." for name in self.asks)
            raise ValueError(f"a text alone does not make a problem of {self.task.name}; team.play({named})")
        return {self.asks[0]: problem}

    def _problem(self, columns: Mapping[str, Any]) -> Problem:
        """Called by its first column, in messages and in the names of its random numbers; behind the beginning of what
        is longer, or is not all of it, comes a number that is of all columns."""
        if missing := [name for name in self.asks or () if name not in columns]:
            given = ", ".join(columns) or "none"
            raise ValueError(f"no column {', '.join(missing)}, which {self.task.name} asks for; were given {given}")
        name = str(next(iter(columns.values()), ""))
        if len(columns) > 1 or len(name) > _NAME:
            name = f"{name[:_NAME]} ({zlib.crc32(json.dumps(_told(columns)).encode()):08x})"
        return Problem(name, dict(columns))


def _told(value: Any) -> Any:
    """A column's value as JSON that is the same in every process: of what is no plain data only its type."""
    if isinstance(value, Mapping):
        return sorted([str(key), json.dumps(_told(one))] for key, one in value.items())
    if isinstance(value, list | tuple):
        return [_told(one) for one in value]
    return value if isinstance(value, str | int | float | None) else type(value).__name__


class _Played:
    """A task as far as playing goes."""

    train: Sequence[Problem] = ()
    test: Sequence[Problem] = ()

    def __init__(self, task: Task) -> None:
        self.name = type(task).__name__
        self.feedback = getattr(task, "feedback", None)
        self.referee = getattr(task, "referee", None)
        self._task = task

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt:
        return self._task.prompt(p, role, heard)

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        return [[0.0] * len(case.turns) for case in cases]


def described(folder: Path) -> Exported:
    """What is written in the folder's ``team.yaml``. Raises ValueError if there is none, or a wrong one."""
    if not (folder / FILE).is_file():
        raise ValueError(f"{folder} is no team: it has no {FILE}; make one of a run with `coevolve export RUN FOLDER`")
    return validate(Exported, load_yaml(folder / FILE), str(folder / FILE))


def unpaid(task: Component) -> Component:
    """The settings of one of the package's tasks with a reward that pays nothing, in place of one that is code, a model
    or a judge. A task of the user's own is taken as it is: nobody knows what its settings mean."""
    if task["name"] not in TASKS or "reward" not in task:
        return task
    return {**{key: value for key, value in task.items() if key != "reward_weights"}, "reward": _nothing}


def _nothing(**columns: Any) -> float:
    return 0.0


def asked(task: Task, play: Component) -> tuple[str, ...] | None:
    """The columns that a problem of this task needs in this play; None where the task does not say."""
    asks: Sequence[str] | None = getattr(task, "asks", None)
    if asks is None:
        return None
    more: Sequence[str] = getattr(task, "feedback_asks", ()) if play.get("feedback") else ()
    return tuple(dict.fromkeys((*asks, *more)))


def _policies(folder: Path, specs: Mapping[PolicyName, PolicySpec], device: str) -> dict[PolicyName, LocalLearner]:
    """The agents, adapters of one base on one copy of it."""

    def placed(spec: PolicySpec) -> PolicySpec:
        model = str(folder / spec.model) if spec.model.startswith(HERE) else spec.model
        return dataclasses.replace(spec, model=model, device=device)

    placed_specs = {name: placed(spec) for name, spec in specs.items()}
    policies = build_policies(placed_specs, reference=False, critic=False, steps=1, seed=0)
    for name, spec in specs.items():
        if spec.weights == "lora":
            policies[name].weights.load(folder / AGENTS / name)
    return policies
