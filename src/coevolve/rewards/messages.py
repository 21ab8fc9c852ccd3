"""Messages as verifiers hands them to a reward: read as a dict or by attribute, and the rest of what it offers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from coevolve.types import Case


class Said(dict[str, Any]):
    """A message: ``said["content"]`` and ``said.content`` are the same."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


def for_verifiers(case: Case) -> dict[str, Any]:
    """What verifiers offers a reward by name: prompt, completion, answer, info, task and state, beside the columns.

    The completion is all that the one role of the case has said, a message a turn.
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
    """A JSON text, which rows of different keys are kept as, as what it says."""
    try:
        return json.loads(info) if isinstance(info, str) else info
    except ValueError:
        return info
