"""The effects that a play may await. ``rollout`` answers them.

A play is ``async def play(problem, team)`` and awaits three effects and nothing else:

    turn    = await team[role](*heard)        # say: sample a turn of this role, shown these turns or texts
    rewards = await score(team, turns)        # score: let the task reward these turns, a joint action
    result  = await do(function, *args)       # do: call Python, blocking or async

``await together(a, b, ...)`` waits for several of them at once. There is no event loop: awaiting an effect suspends the
coroutine until ``rollout`` sends the answer.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, cast

from coevolve.files import shown
from coevolve.interfaces import Task
from coevolve.types import Play, Problem, Role, Turn

Feedback = Callable[[Problem, Sequence[Turn]], list[str]]
Referee = Callable[[Problem, Sequence[Turn]], Sequence[tuple[Role, str]]]
"""(problem, turns so far) -> (role, text) for each role that speaks next, all at once; empty at the end."""


def speaks_once(play: Play) -> Play:
    """Mark a play in which no role speaks twice, so that each turn is its role's final answer; returns the play.

    A server that streams answers (``teams.serve``) need not wait for the end of such a play.
    """
    play.once = True  # type: ignore[attr-defined]
    return play


@dataclass(frozen=True)
class Saying:
    role: Role
    heard: tuple[Turn | str, ...]
    peers: Hashable
    weight: float
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Scoring:
    turns: tuple[Turn, ...]
    after: tuple[Turn, ...] | None
    answered: bool


@dataclass(frozen=True)
class Doing:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


EFFECTS = (Saying, Scoring, Doing)


@dataclass(frozen=True)
class _Parked:
    """An awaitable that yields its effects to the rollout and returns their answers, in order."""

    effects: list[Any]

    def __await__(self) -> Generator[list[Any], list[Any], list[Any]]:
        return (yield self.effects)


class Roles:
    """The roles of one episode, in order. ``team[role](*heard)`` samples a turn; iterating gives the roles.

    ``team[role](*heard, peers=node, weight=w)``: the turn is compared with this episode's turns of the same role and
    node (else with the turns of the same role and round of all members), and counts w times (see ``Turn.weight``).
    ``tools=schemas``: functions that the chat template describes; a role that heard its own turn and then tool results
    (``ToolResult``) continues after them, without a new prompt of the task.
    ``team.fits(role, *heard, tools=schemas)``: whether the model's context has room for such a turn.
    ``team.seed``: a number >= 0 for this episode at this step, for a play that draws random numbers.
    ``team.feedback``, ``team.referee``: the task's functions of these names; ValueError if the task has none.
    """

    def __init__(
        self,
        roles: Sequence[Role],
        task: Task | None = None,
        fits: Callable[[Saying], bool] = lambda effect: True,
        seed: int = 0,
    ) -> None:
        self._roles, self._task, self._fits, self.seed = tuple(roles), task, fits, seed

    @property
    def feedback(self) -> Feedback:
        found = getattr(self._task, "feedback", None)
        if found is None:
            raise ValueError(f"the play wants feedback between turns; {type(self._task).__name__} has no `feedback`")
        return cast(Feedback, found)

    @property
    def referee(self) -> Referee:
        found = getattr(self._task, "referee", None)
        if found is None:
            raise ValueError(f"the play asks who speaks next; {type(self._task).__name__} has no `referee`")
        return cast(Referee, found)

    def __iter__(self) -> Iterator[Role]:
        return iter(self._roles)

    def __len__(self) -> int:
        return len(self._roles)

    def fits(self, role: Role, *heard: Turn | str, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        """Return whether this prompt and a turn fit into the model's context; True where its length is unknown."""
        _check_heard(role, heard)
        return self._fits(Saying(role, heard, None, 1.0, tuple(tools)))

    def __getitem__(self, role: Role) -> Callable[..., Coroutine[Any, Any, Turn]]:
        if role not in self._roles:
            raise ValueError(f"the play asks for role {role!r}; this team has {', '.join(self._roles)}")

        async def say(
            *heard: Turn | str,
            peers: Hashable = None,
            weight: float = 1.0,
            tools: Sequence[Mapping[str, Any]] = (),
        ) -> Turn:
            _check_heard(role, heard)
            try:
                hash(peers)
            except TypeError as error:
                raise ValueError(f"role {role!r}: peers is {peers!r}; want what can be a key of a dict") from error
            given: Any = weight  # the caller may pass any type
            if not isinstance(given, Real) or not 0 <= float(given) < math.inf:
                raise ValueError(f"role {role!r}: weight is {weight!r}; want a number from 0 on")
            return cast(Turn, (await _Parked([Saying(role, heard, peers, weight, tuple(tools))]))[0])

        return say


def _check_heard(role: Role, heard: Sequence[Any]) -> None:
    """Raise ValueError for a part that is neither a turn nor a text."""
    for part in heard:
        if inspect.iscoroutine(part):
            part.close()  # else Python also warns that it was never awaited
            raise ValueError(f"role {role!r} was to hear a coroutine; write `await` before what makes it")
        if isinstance(part, list | tuple):
            raise ValueError(f"role {role!r} was to hear a {type(part).__name__}; write `team[role](*heard)`, with a *")
        if not isinstance(part, Turn | str):
            raise ValueError(f"role {role!r} was to hear {shown(part)}; want turns and texts")


async def score(
    team: Roles, turns: Sequence[Turn], after: Sequence[Turn] | None = None, answered: bool = True
) -> list[float]:
    """Let the task reward these turns as one joint action; returns one number per turn.

    after: the turns of the joint that this one continues; None: the joint scored last in this episode, if any, an error
    where several were scored at once; ``()``: none, this is a first joint. answered: whether the return of that joint
    includes the return of this one (see ``credit.team_return``).
    """
    if not turns:
        raise ValueError("score was given no turns; want those that are paid together")
    for turn in turns:
        if not isinstance(turn, Turn):
            raise ValueError(f"score wants turns, got {turn!r}; write `await team[role](...)`")
    parent = None if after is None else tuple(after)
    return cast(list[float], (await _Parked([Scoring(tuple(turns), parent, answered)]))[0])


async def do(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a Python function between turns, blocking or async: a tool, a checker, an external model.

    Calls that are awaited at the same time run in parallel threads, so that many requests take as long as the slowest
    one. Their order is arbitrary, so a function that draws random numbers should take them from its arguments or
    ``noise``. Each call of an async function has its own event loop.
    """
    return (await _Parked([Doing(function, args, kwargs)]))[0]


def called(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function and return its result; an async one is run to its end, in this thread."""
    found = function(*args, **kwargs)
    return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


class _Together:
    """Several awaitables advanced in lockstep: the effects that they wait for are yielded together."""

    def __init__(self, awaitables: Sequence[Awaitable[Any]]) -> None:
        self._awaitables = awaitables

    def __await__(self) -> Generator[list[Any], list[Any], list[Any]]:
        children = [a.__await__() for a in self._awaitables]
        results: list[Any] = [None] * len(children)
        waiting: dict[int, list[Any]] = {}

        def advance(child: int, answers: list[Any] | None) -> None:
            try:
                waiting[child] = children[child].send(answers)
            except StopIteration as stop:
                waiting.pop(child, None)
                results[child] = stop.value

        for child in range(len(children)):
            advance(child, None)
        while waiting:
            asked = list(waiting.items())
            answers = yield [effect for _, effects in asked for effect in check_effects(effects)]
            for child, effects in asked:
                mine, answers = answers[: len(effects)], answers[len(effects) :]
                advance(child, mine)
        return results


async def together(*awaitables: Awaitable[Any]) -> list[Any]:
    """Await several effects or coroutines at once; returns their results in the order of the arguments."""
    return await _Together(awaitables)


def check_effects(parked: Any) -> list[Any]:
    """Return the list of effects that a play yielded. Raises ValueError for anything else (an asyncio future, say)."""
    if isinstance(parked, list) and all(isinstance(e, EFFECTS) for e in parked):
        return parked
    what = "a bare yield, as of asyncio.sleep(0)" if parked is None else repr(parked)
    raise ValueError(f"a play may await team[role](...), score, do and together only; this one awaited {what}")
