"""What an object must be able to do to take a place in the training loop. Protocols, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from coevolve.types import Case, PolicyName, Problem, Prompt, Role, Say, Turn


class Task(Protocol):
    """Problems, what each role is told, and what turns are worth.

    A task may also have ``feedback(p, turns) -> list[str]``, one text per turn for plays of several turns;
    ``parts(cases) -> list[dict[str, float]]``, named components of each case, which are logged and never trained on;
    ``solo = False`` where one policy alone cannot be paid, so that an evaluation does not try; and ``asks``, the
    columns that its prompts are made of, with ``feedback_asks``, those that the feedback needs besides, for a team
    that is played after training (``coevolve.teams.team``).
    """

    train: Sequence[Problem]
    test: Sequence[Problem]

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt: ...

    def reward(self, cases: Sequence[Case]) -> list[list[float]]: ...


class Engine(Protocol):
    """Samples all turns of one sweep, for all policies at once so that devices can work side by side."""

    def encode(self, policy: PolicyName, prompt: Prompt) -> Sequence[int]: ...

    def generate(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Turn]]: ...
