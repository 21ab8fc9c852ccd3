"""Task ``rows``: the user's own rows, one prompt template per role, and a reward function. No class to write."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Rational, Real
from typing import Any

from coevolve.files import shown
from coevolve.names import did_you_mean
from coevolve.play import Feedback
from coevolve.rewards.function import user_feedback
from coevolve.rewards.several import RewardSpec, rewards_of
from coevolve.rewards.templates import names_in
from coevolve.settings import Finite
from coevolve.tasks import data as sources
from coevolve.tasks import tables
from coevolve.tasks.heard import own_place
from coevolve.tasks.held_out import split, warn_of_shared
from coevolve.tasks.roles import UnknownRoleError
from coevolve.types import Case, Instruction, Problem, Prompt, Role, Turn

_HEARD = "heard"


class Rows:
    """A task made of rows: each role is told its template filled with a row's columns, all of which the reward may use.

    data: a file (``.jsonl``, ``.jsonl.gz``, ``.json``, ``.csv``, ``.tsv``, ``.parquet``), a hub data set ``owner/name``
    or ``owner/name:split`` (the split is ``train`` if none is named; where COEVOLVE_DATA names a folder, it is read
    from ``name_split`` there), or the rows themselves: a list of dicts, a ``datasets.Dataset``. test: another such
    source (its split is ``test``), or the fraction of ``data`` to hold out, drawn by ``seed``. prompts: role ->
    template; ``{column}`` is the row's text or number (alone, ``"{column}"``, also a list of messages), ``{heard}`` is
    what the play lets the role hear (empty lines between), ``{{`` a brace. id: the column that names a row; rows are
    numbered from 1 without it. reward: a function, ``file.py:name`` (``rewards.function``), a mapping with the ``name``
    of one of ``rewards.several.REWARDS`` and its settings, or a list of these, which are added up, times reward_weights
    (1 each). feedback: a function, or ``file.py:name``, of ``(texts, **columns)`` -> one text for all or role -> text,
    for plays that give feedback between turns.

    With several rewards, or one that logs numbers of its own, ``parts`` holds what each gave.

    A role that has spoken continues its own last turn: it is told the others' turns and the texts since, or ``revise``
    if there are none. Several roles are paid as a team, so a policy is not evaluated alone.

    Raises ValueError, naming file, row, column and role, when problems are first used, for data that cannot be read, a
    column that a template or the reward wants and a row lacks, ids that repeat, and a held-out fraction that leaves no
    rows.
    """

    def __init__(
        self,
        *,
        data: tables.Source,
        prompts: dict[Role, str],
        reward: RewardSpec,
        test: tables.Source | float = 0.1,
        id: str | None = None,
        feedback: str | Callable[..., Any] | None = None,
        reward_weights: list[Finite] | None = None,
        revise: str = "Revise your answer.",
        seed: int = 0,
    ) -> None:
        if not prompts:
            raise ValueError("task.prompts is empty; want a template for each role")
        self.prompts, self.revise = dict(prompts), revise
        self.solo = len(prompts) == 1
        self.settings = {"prompts": self.prompts, "reward": reward, "reward_weights": reward_weights, "revise": revise}
        """What a run trained from Python is compared by when it is resumed; functions count by name."""
        self._reward = rewards_of(reward, reward_weights)
        if self._reward.tells:
            self.parts = self._reward.parts()
        self.feedback: Feedback | None = None
        self.feedback_asks: tuple[str, ...] = ()
        if feedback is not None:
            self.feedback, self.feedback_asks = user_feedback(feedback, prompts)
        self._columns = {
            role: names_in(template, f"task.prompts.{role}", "a column") for role, template in prompts.items()
        }
        self._alone = {
            role: of[0]
            for role, of in self._columns.items()
            if _HEARD not in of and [prompts[role]] == [f"{{{c}}}" for c in of]
        }
        """Role -> column, for templates of one column and nothing else, which may hold messages."""
        self._deaf: set[Role] = set()
        """Roles already warned about, whose templates show nothing of what they hear."""
        self.asks = tuple(dict.fromkeys(c for named in self._columns.values() for c in named if c != _HEARD))
        splits = sources.Later(lambda: self._splits(data, test, id, seed))
        self.train, self.test = sources.Later(lambda: splits[0]), sources.Later(lambda: splits[1])

    def _splits(
        self, data: tables.Source, test: tables.Source | float, id: str | None, seed: int
    ) -> tuple[Sequence[Problem], Sequence[Problem]]:
        rows = tables.load(data, "train")
        train: Sequence[Problem] = _problems(tables.called(data), rows, id, self._columns, self._alone)
        if isinstance(test, int | float):
            train, held_out = split(train, test, seed)
        else:
            other = tables.load(test, "test")
            tables.warn_of_types(data, rows, test, other, id)
            held_out = _problems(tables.called(test), other, id, self._columns, self._alone)
        warn_of_shared(train, held_out, self._asked)
        for problem in (*train, *held_out):
            self._reward.check(problem, list(self.prompts))
        return train, held_out

    def _asked(self, p: Problem) -> object:
        """Return what templates show of a row, as texts, since 1 and "1" look the same in a prompt."""
        return [str(p.data[column]) for column in self.asks]

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt:
        """Return the filled template, or the role's own last turn and what is new. ValueError for an unknown role."""
        if role not in self.prompts:
            near = did_you_mean(role, self.prompts)
            raise UnknownRoleError(f"task.prompts has no role {role!r}{near}; it has {', '.join(self.prompts)}")
        own = own_place(role, heard)
        if own is None and _HEARD not in self._columns[role]:
            self._warn_of_deaf(role, heard)
        if own is None and role in self._alone and isinstance(talk := p.data[self._alone[role]], list):
            return talk
        if own is None:
            return Instruction(self.prompts[role].format_map({**p.data, _HEARD: _joined(heard)}))
        others = [item for item in heard[:own] if isinstance(item, Turn) and item.role != role]
        told = _joined([*others, *heard[own + 1 :]]) or self.revise
        return [heard[own], Instruction(f"\n\n{told}\n\n")]

    def _warn_of_deaf(self, role: Role, heard: Sequence[Turn | str]) -> None:
        if role not in self._deaf and any(isinstance(item, Turn) or item for item in heard):
            self._deaf.add(role)
            what = "hear what others said" if any(isinstance(item, Turn) for item in heard) else "hear a text"
            warnings.warn(
                f"the play lets role {role!r} {what}, and task.prompts.{role} shows nothing of it; put "
                "{heard} where it belongs",
                stacklevel=2,
            )

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        """Return what the user's rewards pay: one number per turn."""
        return self._reward(cases)


def _joined(heard: Sequence[Turn | str]) -> str:
    """Join what was said and told with empty lines between, leaving out empty texts."""
    texts = [(item if isinstance(item, str) else item.text).strip() for item in heard]
    return "\n\n".join(text for text in texts if text)


def _problems(
    source: str,
    rows: Sequence[sources.Row],
    id: str | None,
    columns: Mapping[Role, Sequence[str]],
    alone: Mapping[Role, str],
) -> list[Problem]:
    """Return the rows as problems, checked for what templates need. Rows are numbered from 1, as lines are."""
    found: dict[str, Problem] = {}
    for number, row in enumerate(rows, 1):
        where = f"task {source}, row {number}"
        for role, wanted in columns.items():
            for name in wanted:
                if not (alone.get(role) == name and _is_talk(row.get(name))):
                    _check_column(where, row, name, role)
        if id is not None and row.get(id) is None:
            raise ValueError(f"{where}: no column {id!r}, which task.id names; it has {', '.join(row) or 'none'}")
        key = str(number if id is None else row[id])
        if key in found:
            raise ValueError(f"{where}: {key!r} in column {id!r} names an earlier row too; want a column of its own")
        found[key] = Problem(key, row)
    return list(found.values())


def _is_talk(value: Any) -> bool:
    """Return whether a value is a list of chat messages."""
    texts = ("role", "content")
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, Mapping) and all(isinstance(one.get(key), str) for key in texts) for one in value)
    )


def _check_column(where: str, row: sources.Row, name: str, role: Role) -> None:
    if name == _HEARD:
        if name in row:
            raise ValueError(f"{where}: a column {name!r}, but in prompts.{role} that is what was heard; rename it")
        return
    if name not in row:
        near = did_you_mean(name, row)
        raise ValueError(
            f"{where}: no column {name!r}, which prompts.{role} names{near}; it has {', '.join(row) or 'none'}"
        )
    value = row[name]
    endless = isinstance(value, Real) and not isinstance(value, Rational) and not math.isfinite(value)
    if endless or not isinstance(value, str | Real):
        raise ValueError(
            f"{where}: column {name!r}, which prompts.{role} names, is {shown(value)}; want text or number"
        )
