"""What a role heard, sorted: its own last turn, the last of each other role, and what it was told since."""

from __future__ import annotations

from collections.abc import Sequence

from coevolve.types import Instruction, Role, Turn


def own_place(role: Role, heard: Sequence[Turn | str]) -> int | None:
    """Where its own last turn is among what it heard."""
    return max((i for i, item in enumerate(heard) if isinstance(item, Turn) and item.role == role), default=None)


def sorted_out(role: Role, heard: Sequence[Turn | str]) -> tuple[Turn | None, dict[Role, Turn], list[str]]:
    """(its own last turn, role -> the last turn of each other one, the texts behind its own turn, or all of them)."""
    place = own_place(role, heard)
    spoken = {item.role: item for item in heard if isinstance(item, Turn)}
    own = spoken.pop(role, None)
    return own, spoken, [item for item in heard[place or 0 :] if isinstance(item, str)]


def going_on(own: Turn, text: str) -> list[Turn | str]:
    """The prompt of a role that goes on behind its own turn."""
    return [own, Instruction(text)]
