"""The arguments that verifiers passes to a reward by name; messages can be read as dicts or by attribute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from coevolve.types import Case


class Said(dict[str, Any]):
    """A chat message, as a dict whose keys can also be read as attributes: ``said["content"]`` and ``said.content``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


def for_verifiers(case: Case) -> dict[str, Any]:
    """Return the arguments that verifiers offers a reward by name: prompt, completion, answer, info, task and state.

    The completion holds all turns of the case's single role, earlier joints included, one message per turn. ``state``
    also holds the columns of the problem.
    """
    columns = case.problem.data
    turns = [turn for turns in (*case.history, case.turns) for turn in turns]
    found = {
        "completion": [Said(role="assistant", content=turn.text) for turn in turns],
        "prompt": _prompt(columns),
        "answer": columns.get("answer", ""),
        "info": _info(columns.get("info", {})),
        "task": columns.get("task", "default"),
    }
    return {**found, "state": {**columns, **found}}


def _prompt(columns: Mapping[str, Any]) -> list[Said]:
    asked: Any = next((columns[name] for name in ("prompt", "question") if columns.get(name) is not None), [])
    return [Said(role="user", content=asked)] if isinstance(asked, str) else [Said(one) for one in asked]


def _info(info: Any) -> Any:
    """Parse ``info`` if it is a JSON text, as data sets store rows with different keys; else return it unchanged."""
    try:
        return json.loads(info) if isinstance(info, str) else info
    except ValueError:
        return info
