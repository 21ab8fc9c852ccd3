"""Roles that a task knows: the error about one that it does not, and the question before training starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from coevolve.interfaces import Task
from coevolve.recipe.inputs import did_you_mean
from coevolve.types import Role

Voice = TypeVar("Voice")


class UnknownRoleError(ValueError):
    """A packaged task was asked for the prompt of a role that it does not know."""


def unknown_role(role: Role, known: Iterable[Role]) -> UnknownRoleError:
    """The error to raise. known: the roles that the task writes prompts for."""
    known = list(known)
    return UnknownRoleError(
        f"no role {role!r}{did_you_mean(role, known)}; known: {', '.join(known)}; this task writes no prompt for "
        "another one; wrap the task (docs/guides/own-protocol.md)"
    )


def voice_of(role: Role, voices: Mapping[Role, Voice]) -> Voice:
    """What a task has for this role. Raises UnknownRoleError where that is nothing."""
    if role not in voices:
        raise unknown_role(role, voices)
    return voices[role]


def check_prompts(task: Task, roles: Iterable[Role]) -> None:
    """Ask for every role's first prompt of the first training problem. Raises UnknownRoleError, and nothing else.

    A task of the user's own may want something heard, or lack a part, which the trainer tells."""
    for role in roles:
        try:
            task.prompt(task.train[0], role, [])
        except UnknownRoleError:
            raise
        except Exception:  # noqa: BLE001
            continue
