"""A user's function, called by keyword with what its parameters name: texts of roles, columns of the problem.

What it asks for is read from its signature once; it is called in one way, once, and whatever it raises is reported as
what it raised.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from coevolve.faults import blame
from coevolve.recipe.components import from_file
from coevolve.recipe.inputs import did_you_mean
from coevolve.rewards.messages import for_verifiers
from coevolve.rewards.waiting import each
from coevolve.types import Case, Metrics, Role

BATCHED = "_coevolve_batched"
"""The attribute that marks a function for lists."""

TRL = ("completions", "completion_ids")
"""A function with one of these parameters is written for TRL, and takes lists."""

VERIFIERS = "completion"
"""A function with this parameter, which is neither a role nor a column, is written for verifiers."""

Later = Callable[[], Coroutine[Any, Any, Sequence[Any]]]
"""What waits for the results of an async function."""


class Log:
    """What a function written for TRL logs besides its rewards: numbers of a call, and columns of numbers."""

    def __init__(self) -> None:
        self.metrics: dict[str, list[float]] = {}
        self.columns: dict[str, Sequence[Any]] = {}

    def metric(self, name: str, value: float) -> None:
        """A number, for TRL's ``log_metric``; the mean of those of one name counts."""
        self.metrics.setdefault(name, []).append(float(value))

    def extra(self, column: str, values: Sequence[Any]) -> None:
        """A value per completion, for TRL's ``log_extra``; texts are not kept."""
        self.columns[column] = values

    def of(self, place: int) -> Metrics:
        """The numbers of the case at this place."""
        found = {name: sum(values) / len(values) for name, values in self.metrics.items()}
        values = {name: plain(column[place]) for name, column in self.columns.items() if place < len(column)}
        return found | {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


_LOGS: Mapping[str, Callable[[Log], Any]] = {"log_metric": lambda log: log.metric, "log_extra": lambda log: log.extra}
"""TRL's names of them."""


@dataclass(frozen=True)
class UserFunction:
    """The function and its parameters by name. name: what messages call it; short: without its file. rest: it takes
    ``**rest``.

    batched: it takes lists with one entry per case, and returns one. waits: it is async. objects: what else it may ask
    for by name.
    """

    call: Callable[..., Any]
    name: str
    short: str
    named: tuple[str, ...]
    required: frozenset[str]
    rest: bool
    batched: bool
    waits: bool = False
    objects: Mapping[str, Any] = field(default_factory=dict)

    @property
    def for_trl(self) -> bool:
        """Whether it is written for TRL."""
        return not set(TRL).isdisjoint(self.named)

    @property
    def logs(self) -> bool:
        """Whether it is given something to log with."""
        return self.batched and any(name in _LOGS for name in self.named)

    def columns(self, roles: Iterable[Role]) -> tuple[str, ...]:
        """The columns that it cannot be called without, beside what these roles said; those of a function that is
        written for another library are not known."""
        if self.for_trl or VERIFIERS in self.named:
            return ()
        others = {*roles, "texts", *self.objects}
        return tuple(name for name in self.named if name in self.required and name not in others)

    def on(self, case: Case) -> Any:
        """What it returns on one case."""
        arguments = self.arguments(case)
        with blame(f"{self.name} on problem {case.problem.id!r}"):
            return self.call(**arguments)

    def on_each(self, cases: Sequence[Case]) -> Sequence[Any] | Later:
        """What it returns on every case, or what waits for that."""
        if not self.waits:
            return [self.on(case) for case in cases]
        calls = [partial(self._waited, f"{self.name} on problem {c.problem.id!r}", self.arguments(c)) for c in cases]
        return partial(each, calls)

    def on_all(self, cases: Sequence[Case], log: Log) -> Sequence[Any] | Later:
        """What it returns on all cases as lists, or what waits for that: one result per case, else ValueError."""
        if not cases:
            return []
        rows = [self.arguments(case) for case in cases]
        names = dict.fromkeys(name for one in rows for name in one)
        lists: dict[str, Any] = {name: [one.get(name) for one in rows] for name in names}
        lists |= {name: made(log) for name, made in _LOGS.items() if name in self.named}
        where = f"{self.name} on {len(cases)} cases, problems {cases[0].problem.id!r} to {cases[-1].problem.id!r}"

        async def later() -> Sequence[Any]:
            return _as_many(where, cases, plain(await self._waited(where, lists)))

        if self.waits:
            return later
        with blame(where):
            results = plain(self.call(**lists))
        return _as_many(where, cases, results)

    async def _waited(self, where: str, arguments: Mapping[str, Any]) -> Any:
        with blame(where):
            return await self.call(**arguments)

    def arguments(self, case: Case) -> dict[str, Any]:
        """The keywords of a call on this case. Raises ValueError where a parameter has no value, or two."""
        offered, columns, all_of_it = self._offered(case)
        found = {}
        for name in self.named:
            values = [source[name] for source in (offered, columns, self.objects) if name in source]
            if len(values) == 1:
                found[name] = values[0]
            elif name in _LOGS and self.batched:
                continue  # one for all cases
            elif values or name in self.required:
                raise ValueError(self._unclear(name, case, offered))
        if self.rest:
            others = {**columns, **offered, **self.objects} if all_of_it else columns
            found |= {name: value for name, value in others.items() if name not in found}
        return found

    def _offered(self, case: Case) -> tuple[Mapping[str, Any], Mapping[str, Any], bool]:
        """(what there is beside the columns, the columns, whether ``**rest`` gets both)."""
        columns, said = case.problem.data, case.said()
        if self.for_trl:
            return self._for_trl(case), columns, True
        if VERIFIERS in self.named and VERIFIERS not in columns and VERIFIERS not in said:
            self._check_alone(case, VERIFIERS, "verifiers'", {turn.role for turn in case.turns})
            offered = for_verifiers(case)
            return offered, {name: value for name, value in columns.items() if name not in offered}, True
        return {**said, "texts": said}, columns, False

    def _for_trl(self, case: Case) -> dict[str, Any]:
        self._check_alone(case, next(name for name in TRL if name in self.named), "TRL's", case.turns)
        turn = case.turns[0]
        prompt = case.problem.data.get("prompt")
        said = [{"role": "assistant", "content": turn.text}] if isinstance(prompt, list) else turn.text
        asked = {} if prompt is None else {"prompts": prompt}
        return {**dict(zip(TRL, (said, list(turn.action_ids)), strict=True)), **asked}

    def _check_alone(self, case: Case, parameter: str, whose: str, speakers: Sized) -> None:
        if len(speakers) != 1:
            raise ValueError(
                f"{self.name} has a parameter `{parameter}`, as {whose} for one agent, but problem {case.problem.id!r} "
                f"has {len(case.turns)} turns; for a team write def reward({', '.join(case.said())}, **columns)"
            )

    def _unclear(self, name: str, case: Case, offered: Mapping[str, Any]) -> str:
        columns = case.problem.data
        where = f"{self.name}, problem {case.problem.id!r}: parameter {name!r}"
        if name in offered:
            return f"{where} could be two things: the problem has a column of that name too; rename one of them"
        if name == "prompts" and self.for_trl:
            return f"{where} is the column 'prompt', which the problem lacks; it has {', '.join(columns) or 'none'}"
        known = f"there are {', '.join(offered)}, and the columns {', '.join(columns) or 'none'}"
        return f"{where} has no value{did_you_mean(name, [*offered, *columns])}; {known}"


def read(spec: str | Callable[..., Any], kind: str, objects: Mapping[str, Any] | None = None) -> UserFunction:
    """The function, or that of ``file.py:name``. kind: what it is for, for messages. objects: as of ``UserFunction``.

    Raises ValueError where it is none, or has parameters that cannot be given by name.
    """
    call = from_file(spec, (), kind) if isinstance(spec, str) else spec
    inner = call
    while isinstance(inner, partial):
        inner = inner.func
    short = getattr(inner, "__name__", type(inner).__name__)
    name = f"{kind} {spec if isinstance(spec, str) else short!r}"
    if not callable(call) or inspect.isclass(call):
        raise ValueError(f"{name} is {call!r}; want a function")
    parameters = inspect.signature(call).parameters.values()
    for p in parameters:
        if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL):
            raise ValueError(f"{name}: parameter {p.name!r} cannot be given by name; name a role or a column instead")
    named = {p.name: p for p in parameters if p.kind is not p.VAR_KEYWORD}
    return UserFunction(
        call=call,
        name=name,
        short=short,
        named=tuple(named),
        required=frozenset(key for key, p in named.items() if p.default is p.empty),
        rest=len(named) < len(parameters),
        batched=getattr(inner, BATCHED, False) or not named.keys().isdisjoint(TRL),
        waits=inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__),
        objects=objects or {},
    )


def _as_many(where: str, cases: Sequence[Case], results: Any) -> Sequence[Any]:
    if not isinstance(results, list | tuple) or len(results) != len(cases):
        found = f"{len(results)} results" if isinstance(results, list | tuple) else repr(results)
        raise ValueError(f"{where}, returned {found}; want a list of {len(cases)}, one per case")
    return results


def by_turn(case: Case, given: Mapping[Role, Any]) -> list[Any] | None:
    """What the dict has for each turn's role; None if its keys are not exactly the roles of the case."""
    return [given[turn.role] for turn in case.turns] if set(given) == set(case.said()) else None


def plain(value: Any) -> Any:
    """The list or number that an array or a tensor holds; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value
