"""A template filled with what a case has: the columns of its row, what each role said, and what one turn said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coevolve.recipe.inputs import did_you_mean
from coevolve.rewards.templates import names_in
from coevolve.types import Case, Problem, Role

SAID = "said"
"""What the turn that is judged said."""


class Filled:
    """A template for every turn of a case. ``{said}`` is what the turn said, ``{role}`` what that role said last,
    ``{column}`` the row's, nothing where it is null. where: what messages call it. Raises ValueError for a template
    that is none."""

    def __init__(self, template: str, where: str) -> None:
        self.template, self.where = template, where
        self.names = names_in(template, where, "a role or a column")

    def check(self, p: Problem, roles: Sequence[Role]) -> None:
        """Raises ValueError for a name that is neither a role nor a column."""
        known: Mapping[str, Any] = dict.fromkeys([SAID, *roles, *p.data])
        for name in self.names:
            if name not in known:
                near = did_you_mean(name, known)
                raise ValueError(
                    f"{self.where}, problem {p.id!r}: {name!r} is neither a role nor a column{near}; there are "
                    f"{', '.join(known)}"
                )

    def texts(self, case: Case) -> list[str]:
        """One per turn. Of a role and a column of one name it is the role."""
        columns = {name: "" if value is None else value for name, value in case.problem.data.items()}
        known = {**columns, **case.said()}
        return [self.template.format_map({**known, SAID: turn.text}) for turn in case.turns]
