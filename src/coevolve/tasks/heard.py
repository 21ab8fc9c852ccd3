"""What a role heard, sorted for its prompt, and the templates of prompts that continue from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coevolve.rewards.templates import columns_in
from coevolve.types import Instruction, Problem, Prompt, Role, Turn


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


@dataclass(frozen=True)
class Voice:
    """The prompt templates of one role, filled with the problem's columns.

    first: the whole prompt of a first turn; ``{told}`` is what the role has heard ("" or blocks that end in an empty
    line). again: the text behind the role's own turn, also with ``{told}``. beside: what the role is told about turns
    of other roles. name: what the prompts of other roles call its text.
    """

    first: str
    again: str
    beside: str = ""
    name: str = ""

    def prompt(self, p: Problem, own: Turn | None, told: Sequence[str], notes: Sequence[str], again: str) -> Prompt:
        """Return the whole prompt, or, if the role has a turn of its own, that turn and the text behind it.

        told: blocks about turns of other roles. notes: texts told since the own turn, of which empty ones are left out.
        again: the note behind an own turn if there is no other.
        """
        said = [text for text in notes if text] or ([] if own is None else [again])
        blocks = "".join([*told, *(f"{text}\n\n" for text in said)])
        template = self.first if own is None else self.again
        text = template.format_map({**p.data, "told": blocks})
        return Instruction(text) if own is None else going_on(own, text)


def columns_of(voices: Mapping[Role, Voice], parts: Sequence[str], besides: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a problem that these parts of the voices' templates name, without the names ``besides``."""
    templates = {f"voices.{role}.{part}": getattr(voice, part) for role, voice in voices.items() for part in parts}
    return columns_in(templates, besides)
