"""Templates filled from a case: with the columns of its problem, the text of each role, and the text of one turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coevolve.recipe.inputs import did_you_mean
from coevolve.rewards.templates import names_in
from coevolve.types import Case, Problem, Role

SAID = "said"
"""The name in a template that stands for the text of the turn being judged."""


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
