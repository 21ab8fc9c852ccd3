"""Calls of a user's function by keyword, with the values its parameters name: texts of roles, columns of the problem.

The signature is read once and decides how the function is called. It is called once, never retried in another way, and
its exceptions are reported as its own.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from coevolve.faults import blame
from coevolve.names import did_you_mean
from coevolve.recipe.components import from_file
from coevolve.types import Case, Metrics, Role

BATCHED = "_coevolve_batched"
"""The attribute that marks a function as taking lists, one entry per case (``@batched``)."""

TRL = ("completions", "completion_ids")
"""A function with one of these parameters is written for TRL, and takes lists."""

VERIFIERS = "completion"
"""A function with this parameter, which is neither a role nor a column, is written for verifiers."""


class Log:
    """The values that a function written for TRL logs besides its rewards: numbers per call, and columns of numbers."""

    def __init__(self) -> None:
        self.metrics: dict[str, list[float]] = {}
        self.columns: dict[str, Sequence[Any]] = {}

    def metric(self, name: str, value: float) -> None:
        """Record a number, as TRL's ``log_metric`` does; numbers logged under the same name are averaged."""
        self.metrics.setdefault(name, []).append(float(value))

    def extra(self, column: str, values: Sequence[Any]) -> None:
        """Record one value per completion, as TRL's ``log_extra`` does; only numbers are logged, texts are dropped."""
        self.columns[column] = values

    def of(self, place: int) -> Metrics:
        """Return the logged numbers of the case at this position."""
        found = {name: sum(values) / len(values) for name, values in self.metrics.items()}
        values = {name: plain(column[place]) for name, column in self.columns.items() if place < len(column)}
        return found | {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


_LOGS: Mapping[str, Callable[[Log], Any]] = {"log_metric": lambda log: log.metric, "log_extra": lambda log: log.extra}
"""TRL's parameter name -> the method of ``Log`` that is passed for it."""


@dataclass(frozen=True)
class UserFunction:
    """A user's function and its parameters. name: its name in messages; short: its name without the file. named:
    parameter names; required: those without a default. rest: it takes ``**rest``.

    batched: it takes lists with one entry per case, and returns such a list. waits: it is async. objects: further
    values that its parameters may name. bound: parameters that the user has set by ``functools.partial``.
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
    bound: frozenset[str] = frozenset()

    @property
    def for_trl(self) -> bool:
        """Whether the function has the parameters of a TRL reward."""
        return not set(TRL).isdisjoint(self.named)

    @property
    def logs(self) -> bool:
        """Whether the function asks for ``log_metric`` or ``log_extra``."""
        return self.batched and any(name in _LOGS for name in self.named)

    def columns(self, roles: Iterable[Role]) -> tuple[str, ...]:
        """Return the columns that the function requires: its parameters without a default that are no role, object or
        ``texts``. Empty for a function written for TRL or verifiers, where they are not known."""
        others = {*roles, "texts", *self.objects}
        if self.for_trl or (VERIFIERS in self.named and VERIFIERS not in others):
            return ()
        return tuple(name for name in self.named if name in self.required and name not in others)

    def on(self, case: Case) -> Any:
        """Call the function on one case."""
        return self.now(*self._one(case))

    def calls(self, cases: Sequence[Case], log: Log) -> list[tuple[str, dict[str, Any]]]:
        """Return (what it is about, for messages; the keyword arguments) of each call on these cases: one call per
        case, or a single one with lists over all of them if the function is ``batched``."""
        if not self.batched or not cases:
            return [self._one(case) for case in cases]
        rows = [self.arguments(case) for case in cases]
        names = dict.fromkeys(name for one in rows for name in one)
        lists: dict[str, Any] = {name: [one.get(name) for one in rows] for name in names}
        lists |= {name: made(log) for name, made in _LOGS.items() if name in self.named}
        return [(self._all(cases), lists)]

    def now(self, where: str, arguments: Mapping[str, Any]) -> Any:
        """Make one of ``calls``."""
        with blame(where):
            return self.call(**arguments)

    async def waited(self, where: str, arguments: Mapping[str, Any]) -> Any:
        """Make one of the ``calls`` of an async function."""
        with blame(where):
            return await self.call(**arguments)

    def by_case(self, cases: Sequence[Case], results: Sequence[Any]) -> Sequence[Any]:
        """Return one result per case from the results of all ``calls``. Raises ValueError unless a ``batched`` function
        returned one for each."""
        if not self.batched or not cases:
            return results
        found = plain(results[0])
        if not isinstance(found, list | tuple) or len(found) != len(cases):
            shown = f"{len(found)} results" if isinstance(found, list | tuple) else repr(found)
            raise ValueError(f"{self._all(cases)}, returned {shown}; want a list of {len(cases)}, one per case")
        return found

    def _one(self, case: Case) -> tuple[str, dict[str, Any]]:
        return f"{self.name} on problem {case.problem.id!r}", self.arguments(case)

    def _all(self, cases: Sequence[Case]) -> str:
        return f"{self.name} on {len(cases)} cases, problems {cases[0].problem.id!r} to {cases[-1].problem.id!r}"

    def arguments(self, case: Case) -> dict[str, Any]:
        """Return the keyword arguments for this case. Raises ValueError if a parameter has no value, or two."""
        offered, columns, all_of_it = self._offered(case)
        found = {}
        for name in self.named:
            values = [source[name] for source in (offered, columns, self.objects) if name in source]
            if len(values) == 1:
                found[name] = values[0]
            elif name in _LOGS and self.batched:
                continue  # ``calls`` passes one for all cases
            elif values or name in self.required:
                raise ValueError(self._unclear(name, case, offered))
        if self.rest:
            others = {**columns, **offered, **self.objects} if all_of_it else columns
            found |= {name: value for name, value in others.items() if name not in found and name not in self.bound}
        return found

    def _offered(self, case: Case) -> tuple[Mapping[str, Any], Mapping[str, Any], bool]:
        """Return (the values offered besides the columns, the columns, whether ``**rest`` receives both)."""
        columns, said = case.problem.data, case.said()
        if self.for_trl:
            return self._for_trl(case), columns, True
        if VERIFIERS in self.named and VERIFIERS not in columns and VERIFIERS not in said:
            self._check_alone(case, VERIFIERS, "verifiers'", {turn.role for turn in case.turns})
            offered = _for_verifiers(case)
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
    """Read the signature of a function, or of ``file.py:name``. kind: its use ("reward"), for messages. objects: as in
    ``UserFunction``.

    Raises ValueError if it is not a function, or has parameters that cannot be given by name.
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
    bound = frozenset(call.keywords if isinstance(call, partial) else ())
    named = {p.name: p for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in bound}
    return UserFunction(
        call=call,
        name=name,
        short=short,
        named=tuple(named),
        required=frozenset(key for key, p in named.items() if p.default is p.empty),
        rest=any(p.kind is p.VAR_KEYWORD for p in parameters),
        batched=getattr(inner, BATCHED, False) or not named.keys().isdisjoint(TRL),
        waits=inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__),
        objects=objects or {},
        bound=bound,
    )


def by_turn(case: Case, given: Mapping[Role, Any]) -> list[Any] | None:
    """Return the dict's value for the role of each turn; None if its keys are not exactly the roles of the case."""
    return [given[turn.role] for turn in case.turns] if set(given) == set(case.said()) else None


def plain(value: Any) -> Any:
    """Return the list or number that an array or a tensor holds; anything else unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


class _Said(dict[str, Any]):
    """A chat message, as a dict whose keys can also be read as attributes: ``said["content"]`` and ``said.content``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


def _for_verifiers(case: Case) -> dict[str, Any]:
    """Return the arguments that verifiers offers a reward by name: prompt, completion, answer, info, task and state.

    The completion holds all turns of the case's single role, earlier joints included, one message per turn. ``state``
    also holds the columns of the problem.
    """
    columns = case.problem.data
    turns = [turn for turns in (*case.history, case.turns) for turn in turns]
    found = {
        "completion": [_Said(role="assistant", content=turn.text) for turn in turns],
        "prompt": _prompt(columns),
        "answer": columns.get("answer", ""),
        "info": _info(columns.get("info", {})),
        "task": columns.get("task", "default"),
    }
    return {**found, "state": {**columns, **found}}


def _prompt(columns: Mapping[str, Any]) -> list[_Said]:
    asked: Any = next((columns[name] for name in ("prompt", "question") if columns.get(name) is not None), [])
    return [_Said(role="user", content=asked)] if isinstance(asked, str) else [_Said(one) for one in asked]


def _info(info: Any) -> Any:
    """Parse ``info`` if it is a JSON text, as data sets store rows with different keys; else return it unchanged."""
    try:
        return json.loads(info) if isinstance(info, str) else info
    except ValueError:
        return info
