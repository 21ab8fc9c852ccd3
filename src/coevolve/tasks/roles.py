"""The error about a role that a task does not know, and a check for such roles before training starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coevolve.interfaces import Task
from coevolve.names import did_you_mean
from coevolve.tasks.heard import Voice
from coevolve.types import Role


class UnknownRoleError(ValueError):
    """The error of a packaged task that is asked for the prompt of a role that it does not know."""


def unknown_role(role: Role, known: Iterable[Role]) -> UnknownRoleError:
    """Return the error to raise. known: the roles that the task writes prompts for."""
    known = list(known)
    return UnknownRoleError(
        f"no role {role!r}{did_you_mean(role, known)}; known: {', '.join(known)}; this task writes no prompt for "
        "another one; wrap the task (docs/guides/own-protocol.md)"
    )


def voice_of(role: Role, voices: Mapping[Role, Voice]) -> Voice:
    """Return the entry of this role. Raises UnknownRoleError if there is none."""
    if role not in voices:
        raise unknown_role(role, voices)
    return voices[role]


def check_prompts(task: Task, roles: Iterable[Role]) -> None:
    """Ask for every role's first prompt of the first training problem. Raises UnknownRoleError, and nothing else.

    Other errors are left to the trainer: a user's own task may need something heard, or lack a part."""
    for role in roles:
        try:
            task.prompt(task.train[0], role, [])
        except UnknownRoleError:
            raise
        except Exception:  # noqa: BLE001
            continue
