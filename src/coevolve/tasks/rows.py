"""Task ``rows``: the user's own rows, one prompt template per role, and a reward function. No class to write."""

from __future__ import annotations

import math
import os
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coevolve import noise
from coevolve.files import shown
from coevolve.recipe.inputs import did_you_mean
from coevolve.rewards.function import user_feedback, user_reward
from coevolve.tasks import data as sources
from coevolve.tasks.roles import UnknownRoleError
from coevolve.types import Case, Instruction, Problem, Prompt, Role, Turn

_HEARD = "heard"


class Rows:
    """Problems are rows, all columns of which are the reward's to use; each role is told its template filled with them.

    data: a file of JSON objects, one a line (``.jsonl`` or ``.jsonl.gz``), or a hub data set ``owner/name`` or
    ``owner/name:split``, of which ``name_split`` in the folder that COEVOLVE_DATA names is a copy; the split is
    ``train`` if none is named. test: the same (its split is ``test``), or the fraction of ``data`` to hold out, drawn
    by ``seed``. prompts: role -> template; ``{column}`` is the row's text or number, ``{heard}`` what the role was let
    hear (empty lines between), ``{{`` a brace. id: the column that names a row; rows are numbered from 1 without it.
    reward: a function, or ``file.py:name``; see ``rewards.function``. feedback: likewise ``(texts, **columns)`` -> one
    text for all or role -> text, for plays that give feedback between turns.

    A role that has spoken continues its own last turn: it is told what it heard since, or ``revise`` if that is
    nothing. Several roles are paid as a team, so that none is evaluated alone.

    Raises ValueError, naming file, row, column and role, when problems are first used, for data that cannot be read, a
    column that a template or the reward wants and a row lacks, ids that repeat, and a held-out fraction that leaves no
    rows.
    """

    def __init__(
        self,
        *,
        data: str,
        prompts: dict[Role, str],
        reward: str | Callable[..., Any],
        test: str | float = 0.1,
        id: str | None = None,
        feedback: str | Callable[..., Any] | None = None,
        revise: str = "Revise your answer.",
        seed: int = 0,
    ) -> None:
        if not prompts:
            raise ValueError("task.prompts is empty; want a template for each role")
        self.prompts, self.revise = dict(prompts), revise
        self.solo = len(prompts) == 1
        self._reward = user_reward(reward)
        self.feedback = None if feedback is None else user_feedback(feedback)
        self._columns = {role: _columns(role, template) for role, template in prompts.items()}
        self.asks = tuple(dict.fromkeys(c for named in self._columns.values() for c in named if c != _HEARD))
        splits = sources.Later(lambda: self._splits(data, test, id, seed))
        self.train, self.test = sources.Later(lambda: splits[0]), sources.Later(lambda: splits[1])

    def _splits(
        self, data: str, test: str | float, id: str | None, seed: int
    ) -> tuple[Sequence[Problem], Sequence[Problem]]:
        train: Sequence[Problem] = _problems(data, _read(data, "train"), id, self._columns)
        if isinstance(test, str):
            held_out: Sequence[Problem] = _problems(test, _read(test, "test"), id, self._columns)
        else:
            train, held_out = _split(train, test, seed)
        for problem in (*train, *held_out):
            self._reward.check(problem, list(self.prompts))
        return train, held_out

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt:
        """The role's template filled; or its own last turn and what it is told next. ValueError for an unknown role."""
        if role not in self.prompts:
            near = did_you_mean(role, self.prompts)
            raise UnknownRoleError(f"task.prompts has no role {role!r}{near}; it has {', '.join(self.prompts)}")
        own = max((i for i, item in enumerate(heard) if isinstance(item, Turn) and item.role == role), default=None)
        if own is None:
            return Instruction(self.prompts[role].format_map({**p.data, _HEARD: _joined(heard)}))
        others = [item for item in heard[:own] if isinstance(item, Turn) and item.role != role]
        told = _joined([*others, *heard[own + 1 :]]) or self.revise
        return [heard[own], Instruction(f"\n\n{told}\n\n")]

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        """What the user's function pays: one number per turn."""
        return self._reward(cases)


def _joined(heard: Sequence[Turn | str]) -> str:
    """What was said and told, with empty lines between; nothing of what was empty."""
    texts = [(item if isinstance(item, str) else item.text).strip() for item in heard]
    return "\n\n".join(text for text in texts if text)


def _columns(role: Role, template: str) -> list[str]:
    """The columns that a template names, ``heard`` among them."""
    try:
        fields = [piece[1:] for piece in string.Formatter().parse(template) if piece[1] is not None]
    except ValueError as error:
        raise ValueError(f"task.prompts.{role}: {error}; want {{column}}, and {{{{ or }}}} for a brace") from error
    for name, spec, conversion in fields:
        if not name or spec or conversion or "." in name or "[" in name:
            raise ValueError(f"task.prompts.{role}: a brace around {name!r}; want the plain name of a column in it")
    return [str(name) for name, _, _ in fields]


def _problems(
    source: str, rows: Sequence[sources.Row], id: str | None, columns: Mapping[Role, Sequence[str]]
) -> list[Problem]:
    """The rows as problems, with all that templates need in each. Rows are numbered from 1, as lines are."""
    found: dict[str, Problem] = {}
    for number, row in enumerate(rows, 1):
        where = f"task {source}, row {number}"
        for role, names in columns.items():
            for name in names:
                _check_column(where, row, name, role)
        if id is not None and row.get(id) is None:
            raise ValueError(f"{where}: no column {id!r}, which task.id names; it has {', '.join(row) or 'none'}")
        key = str(number if id is None else row[id])
        if key in found:
            raise ValueError(f"{where}: {key!r} in column {id!r} names an earlier row too; want a column of its own")
        found[key] = Problem(key, row)
    return list(found.values())


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
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(
            f"{where}: column {name!r}, which prompts.{role} names, is {shown(value)}; want text or number"
        )


def _split(problems: Sequence[Problem], share: float, seed: int) -> tuple[list[Problem], list[Problem]]:
    """All but this share, and the share (at least one), both in the order of the rows."""
    if not 0 < share < 1:
        raise ValueError(f"task.test is {share}; want a file, a hub data set, or a fraction between 0 and 1")
    count = max(1, round(share * len(problems)))
    if count >= len(problems):
        raise ValueError(f"task.test: {share} of {len(problems)} rows leaves none to train on; lower it or add rows")
    held_out = set(noise.permutation(len(problems), "held out", seed)[:count])
    return (
        [problem for i, problem in enumerate(problems) if i not in held_out],
        [problem for i, problem in enumerate(problems) if i in held_out],
    )


def _read(source: str, split: str) -> list[sources.Row]:
    """The rows of a file, or of a hub data set, whose split is this one if the source names none."""
    if source.endswith((".jsonl", ".jsonl.gz")):
        return sources.jsonl(Path(source))
    if source.endswith(_OTHER_FILES) or source.startswith((".", "/", "~")) or os.path.exists(source):
        raise ValueError(f"task {source}: a file of another kind; want .jsonl or .jsonl.gz, one JSON object a line")
    dataset, _, named = source.partition(":")
    split = named or split
    return sources.rows(f"{dataset.rpartition('/')[2]}_{split}", dataset=dataset, split=split)


_OTHER_FILES = (".csv", ".tsv", ".json", ".txt", ".parquet", ".arrow", ".feather", ".xlsx", ".gz", ".zip", ".zst")
"""Ends of names that no data set of the hub has."""
