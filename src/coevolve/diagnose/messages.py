"""Effect of messages: the others' turns or the notes that a role hears are replaced before its prompt is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coevolve.diagnose.paired import Numbers
from coevolve.diagnose.scene import Row, Scene, condition
from coevolve.interfaces import Task
from coevolve.types import Case, Episode, Problem, Prompt, Role, ToolResult, Turn

Change = Callable[[Turn | str], Turn | str]
"""An item that a role heard, other than its own turns -> what it hears instead."""

_Spoken = Mapping[tuple[str, int, Role], Sequence[Turn]]
"""(problem id, member, role) -> its turns, in order."""


class Misheard:
    """A task that changes what one role hears, except its own turns, which are spliced as the ids it sampled."""

    train: Sequence[Problem]
    test: Sequence[Problem]

    def __init__(self, task: Task, role: Role, change: Change) -> None:
        self._task, self._role, self._change = task, role, change

    def __getattr__(self, name: str) -> Any:
        """Return the wrapped task's problems, feedback, parts and other attributes."""
        return getattr(self._task, name)

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt:
        """Return the wrapped task's prompt, with what the role heard changed."""
        if role == self._role:
            heard = [item if _is_of(role, item) else self._change(item) for item in heard]
        return self._task.prompt(p, role, heard)

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        """Return the wrapped task's rewards."""
        return self._task.reward(cases)


def rows(scene: Scene, base: Sequence[Episode], base_PM: Numbers) -> Iterator[Row]:
    """Yield a row per role and change: blank, shuffled, own where it hears others; notes blank where it gets notes."""
    for role, policy in scene.cast.items():
        for setting, change in _settings(role, base, scene.members).items():
            found = condition(replace(scene, task=Misheard(scene.task, role, change)), base_PM)
            yield {"kind": "messages", "setting": setting, "role": role, "policy": policy, **found}


def _settings(role: Role, base: Sequence[Episode], members: int) -> dict[str, Change]:
    heard = [item for episode in base for turn in episode.turns if turn.role == role for item in turn.heard]
    found: dict[str, Change] = {}
    if any(isinstance(item, Turn) and item.role != role for item in heard):
        found |= {"blank": blank, "shuffled": shuffled(base, members), "own": own(role, base)}
    if any(_is_note(item) and item for item in heard):
        found["notes blank"] = lambda item: "" if _is_note(item) else item
    return found


def _is_note(item: Turn | str) -> bool:
    """Return whether this is a text of the play, such as feedback; results of tools follow a turn without a prompt."""
    return isinstance(item, str) and not isinstance(item, ToolResult)


def _is_of(role: Role, item: Turn | str) -> bool:
    return isinstance(item, Turn) and item.role == role


def blank(item: Turn | str) -> Turn | str:
    """Return the turn without text and tokens, as if its role had said nothing."""
    return item if isinstance(item, str) else replace(item, text="", action_ids=[], logps=[])


def shuffled(base: Sequence[Episode], members: int) -> Change:
    """Return a change to what the same role said on the next problem on which it spoke, or, with a single problem, in
    the next member.

    base: episodes problem by problem, with ``members`` of each. No episode hears itself.
    """
    spoken, step = _by_place(base), members if len(base) > members else 1
    places = [(e.problem.id, e.member) for e in base]
    position = {place: i for i, place in enumerate(places)}

    def change(item: Turn | str) -> Turn | str:
        if isinstance(item, str):
            return item
        here = position[item.problem.id, item.member]
        ahead = (places[(here + far) % len(places)] for far in range(step, len(places), step))
        return _said(item, next((spoken[*place, item.role] for place in ahead if (*place, item.role) in spoken), ()))

    return change


def own(role: Role, base: Sequence[Episode]) -> Change:
    """Return a change to what this role itself said in the same episode of the base line."""
    spoken = _by_place(base)

    def change(item: Turn | str) -> Turn | str:
        if isinstance(item, str):
            return item
        return _said(item, spoken.get((item.problem.id, item.member, role), ()))

    return change


def _by_place(base: Sequence[Episode]) -> _Spoken:
    found: dict[tuple[str, int, Role], list[Turn]] = {}
    for episode in base:
        for turn in episode.turns:
            found.setdefault((episode.problem.id, episode.member, turn.role), []).append(turn)
    return found


def _said(item: Turn, turns: Sequence[Turn]) -> Turn | str:
    """Return the turn with the text and tokens of the one of ``turns`` in the same round, or of the last if there are
    fewer; blank if there are none."""
    if not turns:
        return blank(item)
    words = turns[min(item.round, len(turns) - 1)]
    return replace(item, text=words.text, action_ids=words.action_ids, logps=words.logps, finished=words.finished)
