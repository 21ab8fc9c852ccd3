"""One condition of a diagnosis: a team's episodes and returns, compared with those of the team as trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coevolve.diagnose.paired import Numbers, interval, standard_error, units
from coevolve.evaluate import SEED
from coevolve.interfaces import Task, TurnSource
from coevolve.measure import Clock, outcome
from coevolve.rollout import Stage, rollout
from coevolve.types import Episode, Play, PolicyName, Problem, Role, Sampling

Row = dict[str, Any]


@dataclass(frozen=True)
class Scene:
    """Everything that a condition may replace: play, cast, task and so on. members: episodes on each problem.

    The random numbers are those of ``SEED`` and "diagnose", whatever is replaced.
    """

    play: Play
    cast: Mapping[Role, PolicyName]
    task: Task
    engine: TurnSource
    sampling: Sampling
    problems: Sequence[Problem]
    members: int

    def played(self, clock: Clock | None = None) -> list[Episode]:
        """Play and return the episodes, problem by problem, member by member. Raises ValueError as ``rollout`` does.

        clock: gets the seconds of each phase."""
        stage = Stage(self.cast, self.task, self.engine, self.sampling, SEED, "diagnose", clock or Clock())
        return rollout(self.play, self.problems, stage, members=self.members)

    def tried(self) -> Numbers | str:
        """Return the returns of an altered scene, or the reason why it cannot be played.

        A task may refuse what its own team would never do, such as an empty text where it wants a move.
        """
        try:
            return self.returns(self.played())
        except ValueError as error:
            return str(error)

    def returns(self, episodes: Sequence[Episode]) -> Numbers:
        """Return the episodes' returns (``measure.outcome``), [P, M]."""
        return np.array([outcome(episode) for episode in episodes]).reshape(len(self.problems), self.members)


def measured(returns_PM: Numbers, base_PM: Numbers | None = None) -> Row:
    """Return reward, its standard error and n units; with a base line also the mean difference from it and interval."""
    values_U = units(returns_PM)
    row: Row = {"reward": float(values_U.mean()), "se": standard_error(values_U), "n": len(values_U)}
    if base_PM is not None:
        difference_U = units(returns_PM - base_PM)
        low, high = interval(difference_U[None])
        row |= {"difference": float(difference_U.mean()), "low": low, "high": high}
    return row


def condition(scene: Scene, base_PM: Numbers) -> Row:
    """Return the measures of an altered scene against the base line, or the ``reason`` why it cannot be played."""
    return played_or_not(scene.tried(), base_PM)


def played_or_not(found: Numbers | str, base_PM: Numbers | None = None) -> Row:
    """Return the measures of what ``Scene.tried`` returned, or its ``reason``."""
    return {"reason": found} if isinstance(found, str) else measured(found, base_PM)
