"""Templates such as ``{name}``: their names (columns of a row, or roles), and their texts for the turns of a case."""

from __future__ import annotations

import string
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from coevolve.names import did_you_mean
from coevolve.types import Case, Problem, Role

SAID = "said"
"""The name in a template that stands for the text of the turn being judged."""


def names_in(template: str, where: str, named: str) -> list[str]:
    """Return the names in a template's braces. where: the template's name in messages; named: what a name refers to
    ("a column"), for messages.

    Raises ValueError for an invalid template.
    """
    try:
        fields = [piece[1:] for piece in string.Formatter().parse(template) if piece[1] is not None]
    except ValueError as error:
        raise ValueError(f"{where}: {error}; want {{name}}, and {{{{ or }}}} for a brace") from error
    for name, spec, conversion in fields:
        if not name or name.isdigit() or spec or conversion or "." in name or "[" in name:
            raise ValueError(f"{where}: a brace around {name!r}; want the plain name of {named} in it")
    return [str(name) for name, _, _ in fields]


def columns_in(templates: Mapping[str, str], besides: Collection[str]) -> tuple[str, ...]:
    """Return the column names in several templates, each once, in order. templates: by their names in messages.
    besides: names that are no columns, left out."""
    found = dict.fromkeys(
        name for where, template in templates.items() for name in names_in(template, where, "a column")
    )
    return tuple(name for name in found if name not in besides)


class Filled:
    """A template that is filled for every turn of a case. ``{said}`` is the turn's text, ``{role}`` the last text of
    that role, ``{column}`` that column of the problem, empty if null. where: its name in messages. Raises ValueError
    for an invalid template."""

    def __init__(self, template: str, where: str) -> None:
        self.template, self.where = template, where
        self.names = names_in(template, where, "a role or a column")

    def check(self, p: Problem, roles: Sequence[Role]) -> None:
        """Raise ValueError for a name that is neither a role nor a column."""
        known: Mapping[str, Any] = dict.fromkeys([SAID, *roles, *p.data])
        for name in self.names:
            if name not in known:
                near = did_you_mean(name, known)
                raise ValueError(
                    f"{self.where}, problem {p.id!r}: {name!r} is neither a role nor a column{near}; there are "
                    f"{', '.join(known)}"
                )

    def texts(self, case: Case) -> list[str]:
        """Return the filled template of each turn. If a role and a column share a name, the role's text is used."""
        columns = {name: "" if value is None else value for name, value in case.problem.data.items()}
        known = {**columns, **case.said()}
        return [self.template.format_map({**known, SAID: turn.text}) for turn in case.turns]
