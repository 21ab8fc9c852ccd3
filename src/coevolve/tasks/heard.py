"""Sorting of what a role heard: its own last turn, the last turn of each other role, and the texts told since."""

from __future__ import annotations

from collections.abc import Sequence

from coevolve.types import Instruction, Role, Turn


def own_place(role: Role, heard: Sequence[Turn | str]) -> int | None:
    """Return the position of the role's own last turn in what it heard, None if there is none."""
    return max((i for i, item in enumerate(heard) if isinstance(item, Turn) and item.role == role), default=None)


def sorted_out(role: Role, heard: Sequence[Turn | str]) -> tuple[Turn | None, dict[Role, Turn], list[str]]:
    """Return (the role's own last turn, role -> last turn of each other one, the texts behind its own turn, or all)."""
    place = own_place(role, heard)
    spoken = {item.role: item for item in heard if isinstance(item, Turn)}
    own = spoken.pop(role, None)
    return own, spoken, [item for item in heard[place or 0 :] if isinstance(item, str)]


def going_on(own: Turn, text: str) -> list[Turn | str]:
    """Return the prompt of a role that continues its own turn, with this text behind it."""
    return [own, Instruction(text)]
