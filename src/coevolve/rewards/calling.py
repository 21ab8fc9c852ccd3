"""A user's function, called by keyword with what its parameters name: texts of roles, columns of the problem.

What it asks for is read from its signature once; it is called in one way, once, and whatever it raises is reported as
what it raised.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from coevolve.play import blame
from coevolve.recipe.components import from_file
from coevolve.recipe.inputs import did_you_mean
from coevolve.types import Case, Role

BATCHED = "_coevolve_batched"
"""The attribute that marks a function for lists."""

TRL = "completions"
"""A function with this parameter is written for TRL, and takes lists."""


@dataclass(frozen=True)
class UserFunction:
    """The function and its parameters by name. name: what messages call it. rest: it takes ``**rest``.

    batched: it takes lists with one entry per case, and returns one.
    """

    call: Callable[..., Any]
    name: str
    named: tuple[str, ...]
    required: frozenset[str]
    rest: bool
    batched: bool

    def on(self, case: Case) -> Any:
        """What it returns on one case."""
        arguments = self.arguments(case)
        with blame(f"{self.name} on problem {case.problem.id!r}"):
            return self.call(**arguments)

    def on_all(self, cases: Sequence[Case]) -> Sequence[Any]:
        """What it returns on all cases as lists: one result per case, else ValueError."""
        if not cases:
            return []
        each = [self.arguments(case) for case in cases]
        names = dict.fromkeys(name for one in each for name in one)
        where = f"{self.name} on {len(cases)} cases, problems {cases[0].problem.id!r} to {cases[-1].problem.id!r}"
        with blame(where):
            results = plain(self.call(**{name: [one.get(name) for one in each] for name in names}))
        if not isinstance(results, list | tuple) or len(results) != len(cases):
            found = f"{len(results)} results" if isinstance(results, list | tuple) else repr(results)
            raise ValueError(f"{where}, returned {found}; want a list of {len(cases)}, one per case")
        return results

    def arguments(self, case: Case) -> dict[str, Any]:
        """The keywords of a call on this case. Raises ValueError where a parameter has no value, or two."""
        trl, columns = TRL in self.named, case.problem.data
        offered = self._for_trl(case) if trl else {**(said := last_texts(case)), "texts": said}
        found = {}
        for name in self.named:
            values = [source[name] for source in (offered, columns) if name in source]
            if len(values) == 1:
                found[name] = values[0]
            elif values or name in self.required:
                raise ValueError(self._unclear(name, case, offered))
        if self.rest:
            others = {**columns, **offered} if trl else columns
            found |= {name: value for name, value in others.items() if name not in found}
        return found

    def _for_trl(self, case: Case) -> dict[str, Any]:
        if len(case.turns) != 1:
            roles = ", ".join(last_texts(case))
            raise ValueError(
                f"{self.name} has a parameter `{TRL}`, as TRL's for one agent, but problem {case.problem.id!r} has "
                f"{len(case.turns)} turns; for a team write def reward({roles}, **columns)"
            )
        turn = case.turns[0]
        prompt = case.problem.data.get("prompt")
        said = [{"role": "assistant", "content": turn.text}] if isinstance(prompt, list) else turn.text
        asked = {} if prompt is None else {"prompts": prompt}
        return {TRL: said, "completion_ids": list(turn.action_ids), **asked}

    def _unclear(self, name: str, case: Case, offered: Mapping[str, Any]) -> str:
        columns = case.problem.data
        where = f"{self.name}, problem {case.problem.id!r}: parameter {name!r}"
        if name in offered:
            return f"{where} could be two things: the problem has a column of that name too; rename one of them"
        if name == "prompts" and TRL in self.named:
            return f"{where} is the column 'prompt', which the problem lacks; it has {', '.join(columns) or 'none'}"
        known = f"there are {', '.join(offered)}, and the columns {', '.join(columns) or 'none'}"
        return f"{where} has no value{did_you_mean(name, [*offered, *columns])}; {known}"


def read(spec: str | Callable[..., Any], kind: str) -> UserFunction:
    """The function, or that of ``file.py:name``. kind: what it is for, for messages.

    Raises ValueError where it is none, is async, or has parameters that cannot be given by name.
    """
    call = from_file(spec, (), kind) if isinstance(spec, str) else spec
    inner = call
    while isinstance(inner, partial):
        inner = inner.func
    name = f"{kind} {spec if isinstance(spec, str) else getattr(inner, '__name__', type(inner).__name__)!r}"
    if not callable(call) or inspect.isclass(call):
        raise ValueError(f"{name} is {call!r}; want a function")
    if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__):
        raise ValueError(f"{name} is async; want a plain def, which may wait for what it calls")
    parameters = inspect.signature(call).parameters.values()
    for p in parameters:
        if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL):
            raise ValueError(f"{name}: parameter {p.name!r} cannot be given by name; name a role or a column instead")
    named = {p.name: p for p in parameters if p.kind is not p.VAR_KEYWORD}
    return UserFunction(
        call=call,
        name=name,
        named=tuple(named),
        required=frozenset(key for key, p in named.items() if p.default is p.empty),
        rest=len(named) < len(parameters),
        batched=getattr(inner, BATCHED, False) or TRL in named,
    )


def last_texts(case: Case) -> dict[Role, str]:
    """role -> what it said last in the case."""
    return {turn.role: turn.text for turn in case.turns}


def by_turn(case: Case, given: Mapping[Role, Any]) -> list[Any] | None:
    """What the dict has for each turn's role; None if its keys are not exactly the roles of the case."""
    return [given[turn.role] for turn in case.turns] if set(given) == set(last_texts(case)) else None


def plain(value: Any) -> Any:
    """The list or number that an array or a tensor holds; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value
