"""Interactions as coroutines, and the drivers that run them: in lockstep, or each episode at its own pace.

A play is ``async def play(problem, team)`` and awaits three effects and nothing else:

    turn    = await team[role](*heard)        # say: sample a turn of this role, which heard these turns or texts
    rewards = await score(team, turns)        # score: let the task pay these turns, a joint action
    result  = await do(function, *args)       # do: call blocking Python

``await together(a, b, ...)`` parks several of them at once. The driver advances every episode until it is parked,
collects what is parked, answers it in one batch (a *sweep*), and repeats. So model calls per step equal the sequential
depth of the play, rewards are batched the same way, and an episode that returns early simply leaves. There is no event
loop.

An engine that can answer one turn while it samples others (a server: ``interfaces.Overlapping``) is driven without
sweeps: an episode goes on as soon as its own turns are back, and is paid while others still speak. Plays, random
numbers and episodes are the same.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, cast

from coevolve import noise
from coevolve.faults import ShortageError, is_interrupt, lacking, raised, user_line
from coevolve.files import shown
from coevolve.interfaces import Overlapping, Task, TurnSource, context
from coevolve.late import torch
from coevolve.pay import LARGEST, is_payable
from coevolve.types import (
    Asked,
    Case,
    Episode,
    Joint,
    Play,
    PolicyName,
    Problem,
    Role,
    Sampling,
    Say,
    ToolResult,
    Turn,
    WithTools,
)

_CALLS = 64
"""Calls of ``do`` at a time."""


class ForeignAwaitError(TypeError, ValueError):
    """A play awaited something the driver cannot answer. A ValueError too, because it is the user's to mend."""


Timer = Callable[[str], AbstractContextManager[None]]
Feedback = Callable[[Problem, Sequence[Turn]], list[str]]
Referee = Callable[[Problem, Sequence[Turn]], Sequence[tuple[Role, str]]]
"""(problem, what was said so far) -> who speaks next, all at once, and what each is told; nobody where it is over."""


def speaks_once(play: Play) -> Play:
    """A play in which no role speaks twice: whatever a role says is its answer, also while it is still being said.

    Who streams answers (``teams.serve``) need not wait for the end of such a play.
    """
    play.once = True  # type: ignore[attr-defined]
    return play


@dataclass(frozen=True)
class _Saying:
    role: Role
    heard: tuple[Turn | str, ...]
    peers: Hashable
    weight: float
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class _Scoring:
    turns: tuple[Turn, ...]
    after: tuple[Turn, ...] | None
    answered: bool


@dataclass(frozen=True)
class _Doing:
    function: Callable[..., Any]
    args: tuple[Any, ...]


_EFFECTS = (_Saying, _Scoring, _Doing)


@dataclass(frozen=True)
class _Parked:
    """Awaiting this yields its effects to the driver and returns their answers, in order."""

    effects: list[Any]

    def __await__(self) -> Generator[list[Any], list[Any], list[Any]]:
        return (yield self.effects)


class Roles:
    """The roles of one episode, in order. ``team[role](*heard)`` samples a turn; iterating gives the roles.

    ``team[role](*heard, peers=node, weight=w)``: the turn is compared with this episode's turns of the same role and
    node (else with the turns of the same role and round of all members), and counts w times (see ``Turn.weight``).
    ``tools=schemas``: the chat template tells of these functions; a role that heard its own turn and then results of
    tools (``ToolResult``) goes on behind them, and the task is not asked.
    ``team.fits(role, *heard, tools=schemas)``: whether the model's context has room for such a turn.
    ``team.feedback`` is the task's feedback function, ``team.referee`` who it says speaks next; asking for what the
    task does not have is an error.
    """

    def __init__(
        self, roles: Sequence[Role], task: Task | None = None, fits: Callable[[_Saying], bool] = lambda effect: True
    ) -> None:
        self._roles, self._task, self._fits = tuple(roles), task, fits

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
        """Whether this role could hear this and speak; True where the engine does not say how long its context is."""
        return self._fits(_Saying(role, heard, None, 1.0, tuple(tools)))

    def __getitem__(self, role: Role) -> Callable[..., Coroutine[Any, Any, Turn]]:
        if role not in self._roles:
            raise ValueError(f"the play asks for role {role!r}; this team has {', '.join(self._roles)}")

        async def say(
            *heard: Turn | str,
            peers: Hashable = None,
            weight: float = 1.0,
            tools: Sequence[Mapping[str, Any]] = (),
        ) -> Turn:
            return cast(Turn, (await _Parked([_Saying(role, heard, peers, weight, tuple(tools))]))[0])

        return say


async def score(
    team: Roles, turns: Sequence[Turn], after: Sequence[Turn] | None = None, answered: bool = True
) -> list[float]:
    """Let the task pay these turns as one joint action; returns one number per turn, as ``Turn.reward`` will say.

    after: the turns of the joint that this one continues; None: the joint scored last in this episode, if any, an error
    where several were scored at once; ``()``: none, this is a beginning. answered: that joint's return has this one's
    in it (see ``credit.team_return``).
    """
    for turn in turns:
        if not isinstance(turn, Turn):
            raise ValueError(f"score wants turns, got {turn!r}; write `await team[role](...)`")
    parent = None if after is None else tuple(after)
    return cast(list[float], (await _Parked([_Scoring(tuple(turns), parent, answered)]))[0])


async def do(function: Callable[..., Any], *args: Any) -> Any:
    """Call blocking Python between turns: a tool, a checker, an external model.

    The calls of one sweep run side by side, in threads, so that many requests take as long as the slowest one. A
    function that draws random numbers takes them from its arguments or ``noise``: which call comes first is chance.
    """
    return (await _Parked([_Doing(function, args)]))[0]


class _Together:
    """Several awaitables advanced in lockstep: all that any of them waits for is asked for at once."""

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
            answers = yield [effect for _, effects in asked for effect in _checked(effects)]
            for child, effects in asked:
                mine, answers = answers[: len(effects)], answers[len(effects) :]
                advance(child, mine)
        return results


async def together(*awaitables: Awaitable[Any]) -> list[Any]:
    """Await several effects or coroutines at once; results in the order of the arguments."""
    return await _Together(awaitables)


def _checked(parked: Any) -> list[Any]:
    """What a play yielded, if it is ours. Raises ForeignAwaitError naming anything else (an asyncio future, say)."""
    if isinstance(parked, list) and all(isinstance(e, _EFFECTS) for e in parked):
        return parked
    what = "a bare yield, as of asyncio.sleep(0)" if parked is None else repr(parked)
    raise ForeignAwaitError(f"a play may await team[role](...), score, do and together only; this one awaited {what}")


@dataclass
class _Live:
    """An episode that still runs, its coroutine, and the effects it is parked on."""

    episode: Episode
    coroutine: Coroutine[Any, Any, None]
    parked: list[Any] = field(default_factory=list)
    rounds: Counter[Role] = field(default_factory=Counter)
    joints: dict[tuple[int, ...], int] = field(default_factory=dict)
    """The turns of a joint, by identity, -> its position in the episode."""
    scored: list[int] = field(default_factory=list)
    """The joints of the sweep that scored last, by position."""
    paid: dict[int, list[float]] = field(default_factory=dict)
    """A turn, by identity, -> what each of its joints paid it."""

    def advance(self, answers: list[Any] | None) -> bool:
        """Run to the next effect. False when the play has returned."""
        with blame(f"the play, on problem {self.episode.problem.id!r}"):
            try:
                self.parked = _checked(self.coroutine.send(answers))
            except StopIteration:
                return False
        return True

    def parent(self, effect: _Scoring) -> int | None:
        """The position of the joint that this one continues. Raises ValueError if there is no such joint."""
        if effect.after is None:
            if len(self.scored) > 1:
                raise ValueError("scores without `after` where several joints were scored at once before; say which")
            return self.scored[0] if self.scored else None
        found = self.joints.get(tuple(map(id, effect.after)))
        if effect.after and found is None:
            raise ValueError("scores turns `after` turns that were not scored together before")
        return found

    def join(self, joint: Joint) -> None:
        """Write down a joint that was just paid. Raises ValueError if it was scored before."""
        key = tuple(map(id, joint.turns))
        if key in self.joints:
            roles = ", ".join(turn.role for turn in joint.turns)
            raise ValueError(f"scores the same turns ({roles}) twice")
        self.joints[key] = len(self.episode.joints)
        self.scored.append(len(self.episode.joints))
        self.episode.joints.append(joint)
        for turn, reward in zip(joint.turns, joint.rewards, strict=True):
            self.paid.setdefault(id(turn), []).append(reward)
            turn.reward = sum(self.paid[id(turn)]) / len(self.paid[id(turn)])


@contextmanager
def blame(where: str) -> Iterator[None]:
    """Turn whatever user code raises, ``sys.exit()`` too, into one line that says where and at which line of its file.

    The original stays attached as the cause. What passes as it is: an interrupt; what becomes a ``ShortageError``: the
    machine's want of memory, disk, files or processes.
    """
    try:
        yield
    except BaseException as error:
        if is_interrupt(error):
            raise
        if lack := lacking(error):
            raise ShortageError(f"{where}: {lack}") from error
        kind = ForeignAwaitError if isinstance(error, ForeignAwaitError) else ValueError
        if isinstance(error, ValueError):  # its message is for people
            line = user_line(error)
            raise kind(f"{where}: {error}{f' ({line})' if line else ''}") from error
        raise kind(f"{where}: raised {raised(error)}") from error


@dataclass(frozen=True)
class Stage:
    """Everything that answers effects: who plays whom, the task, the engine and the names of the noise."""

    cast: Mapping[Role, PolicyName]
    task: Task
    engine: TurnSource
    sampling: Sampling
    seed: int = 0
    step: int | str = 0
    timer: Timer = lambda phase: nullcontext()


def rollout(play: Play, problems: Sequence[Problem], stage: Stage, *, members: int = 1) -> list[Episode]:
    """Play every problem ``members`` times, all episodes side by side.

    Returns the episodes problem by problem, member by member. A problem that occurs twice gets further members, so that
    no two episodes of a step share their random numbers. Raises ValueError that names the problem (and the
    role) if the play, the task or the reward misbehaves.
    """
    live, episodes = [], []
    seen: Counter[str] = Counter()
    for problem in problems:
        for _ in range(members):
            episode = Episode(problem, seen[problem.id])
            seen[problem.id] += 1
            episodes.append(episode)
            live.append(_Live(episode, _begun(play, problem, stage)))
    try:
        waiting = [one for one in live if one.advance(None)]
        overlapped = getattr(stage.engine, "overlapped", None)
        if overlapped is not None:
            _Overlap(stage).play(waiting, overlapped)
        else:
            _play_in_lockstep(waiting, stage)
    finally:
        for one in live:
            with blame(f"the play, on problem {one.episode.problem.id!r}, as it was ended"):
                one.coroutine.close()
    for episode in episodes:
        if all(turn.reward is None for turn in episode.turns):
            raise ValueError(
                f"the play scored no turn of problem {episode.problem.id!r}; await score(team, turns) in it"
            )
    return episodes


def _begun(play: Play, problem: Problem, stage: Stage) -> Coroutine[Any, Any, None]:
    coroutine = play(problem, Roles(tuple(stage.cast), stage.task, partial(_fits, problem, stage)))
    if not inspect.iscoroutine(coroutine):
        raise ForeignAwaitError(f"a play is an async function of (problem, team); {play!r} returned {coroutine!r}")
    return coroutine


def _fits(problem: Problem, stage: Stage, effect: _Saying) -> bool:
    policy = stage.cast[effect.role]
    positions = context(stage.engine, policy)
    if positions is None:
        return True
    prompt_ids = stage.engine.encode(policy, _prompt(problem, effect, stage))
    return len(prompt_ids) + stage.sampling.length_range[1] <= positions


def _play_in_lockstep(waiting: list[_Live], stage: Stage) -> None:
    while waiting:
        answers = _sweep(waiting, stage)
        waiting = [one for one in waiting if one.advance(answers[id(one.episode)])]


def _sweep(live: Sequence[_Live], stage: Stage) -> dict[int, list[Any]]:
    """Answer everything that is parked: one generation for all says, one call for all scores."""
    parked = [(one, slot, effect) for one in live for slot, effect in enumerate(one.parked)]
    answers = {id(one.episode): [None] * len(one.parked) for one in live}

    def answer(kind: type, reply: Callable[[list[tuple[_Live, Any]], Stage], Sequence[Any]]) -> None:
        asked = [(one, slot, effect) for one, slot, effect in parked if isinstance(effect, kind)]
        if asked:
            for (one, slot, _), value in zip(asked, reply([(o, e) for o, _, e in asked], stage), strict=True):
                answers[id(one.episode)][slot] = value

    answer(_Saying, _speak)
    answer(_Scoring, _pay)
    answer(_Doing, _call)
    return answers


def _speak(asked: list[tuple[_Live, _Saying]], stage: Stage) -> list[Turn]:
    says = [_say(one, effect, stage) for one, effect in asked]
    by_policy: dict[PolicyName, list[Say]] = {}
    for say in says:
        by_policy.setdefault(say.policy, []).append(say)
    with stage.timer("generate"):
        spoken = {name: iter(turns) for name, turns in stage.engine.generate(by_policy).items()}
    turns = [next(spoken[say.policy]) for say in says]
    for (one, effect), turn in zip(asked, turns, strict=True):
        _note(one, effect, turn)
    return turns


def _note(one: _Live, effect: _Saying, turn: Turn) -> None:
    """Write a turn down in its episode, with whom it is compared with."""
    alone = effect.peers is None  # then members are compared, round by round
    inside = (turn.round,) if alone else (one.episode.member, effect.peers)
    turn.peers = (turn.problem.id, turn.role, *inside)
    turn.weight = effect.weight
    turn.heard = effect.heard
    one.episode.turns.append(turn)


def _say(one: _Live, effect: _Saying, stage: Stage) -> Say:
    episode, role = one.episode, effect.role
    policy, number = stage.cast[role], one.rounds[role]
    one.rounds[role] += 1
    with blame(f"the prompt of role {role!r} on problem {episode.problem.id!r}"):
        prompt_ids = stage.engine.encode(policy, _prompt(episode.problem, effect, stage))
    key = noise.key(stage.seed, stage.step, episode.problem.id, episode.member, role, number)
    return Say(role, policy, episode.problem, episode.member, number, prompt_ids, stage.sampling, key)


def _prompt(problem: Problem, effect: _Saying, stage: Stage) -> Asked:
    """What the task writes; behind results of tools, the turn that called them and they."""
    goes_on = bool(effect.heard) and isinstance(effect.heard[-1], ToolResult)
    prompt = effect.heard if goes_on else stage.task.prompt(problem, effect.role, effect.heard)
    return WithTools(prompt, effect.tools) if effect.tools and not isinstance(prompt, WithTools) else prompt


def _pay(asked: list[tuple[_Live, _Scoring]], stage: Stage) -> list[list[float]]:
    parents = []  # of all joints before any is written down: those of one sweep do not continue each other
    for one, effect in asked:
        with blame(f"the play, on problem {one.episode.problem.id!r}"):
            parents.append(one.parent(effect))
    cases = [
        Case(one.episode.problem, effect.turns, one.episode.history(parent))
        for (one, effect), parent in zip(asked, parents, strict=True)
    ]
    paid = pay(cases, stage)
    for one, _ in asked:
        one.scored = []
    for (one, effect), case, parent, rewards in zip(asked, cases, parents, paid, strict=True):
        with blame(f"the play, on problem {case.problem.id!r}"):
            one.join(Joint(case.turns, tuple(rewards), parent, effect.answered))
    return paid


def pay(cases: Sequence[Case], stage: Stage) -> list[list[float]]:
    """What the task pays, one number per turn of each case. Raises ValueError that says where it is anything else."""
    with stage.timer("reward"), blame(f"the reward of {type(stage.task).__name__}, step {stage.step}"):
        paid = stage.task.reward(cases)
    if not isinstance(paid, Sequence) or len(paid) != len(cases):
        found = len(paid) if isinstance(paid, Sequence) else repr(paid)
        raise ValueError(
            f"the reward of {type(stage.task).__name__}, step {stage.step}, was given {len(cases)} cases and returned "
            f"{found}; want a list with one result per case"
        )
    for case, rewards in zip(cases, paid, strict=True):
        _check_reward(case, rewards, stage)
    return [[float(r) for r in rewards] for rewards in paid]


def _check_reward(case: Case, rewards: Sequence[float], stage: Stage) -> None:
    where = f"the reward of {type(stage.task).__name__} on problem {case.problem.id!r}, step {stage.step}"
    if not isinstance(rewards, Sequence) or len(rewards) != len(case.turns):
        raise ValueError(f"{where}, returned {rewards!r}; want a list of {len(case.turns)} numbers, one per turn")
    for turn, reward in zip(case.turns, cast(Sequence[Any], rewards), strict=True):
        if not is_payable(reward):
            raise ValueError(
                f"{where}, paid role {turn.role!r} {shown(reward)} for {turn.text!r}; want a finite number, at most "
                f"{LARGEST:g} in size"
            )


class _Overlap:
    """Drives each episode at its own pace: what it is parked on is answered as it comes, in this thread.

    What happens elsewhere, the end of a request or of a call of ``do``, comes through ``inbox`` as what to do about it.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.live: dict[int, tuple[_Live, dict[int, Any]]] = {}
        """The episodes that are parked, by identity, and the answers that are there, by the effect's position."""
        self.unpaid: list[tuple[_Live, int, _Scoring]] = []

    def play(self, waiting: Sequence[_Live], overlapped: Overlapping) -> None:
        """Until every play has returned."""
        self.threads = _threads(_CALLS)
        try:
            with overlapped(self.inbox) as self.ask:
                for one in waiting:
                    self._park(one)
                while self.live:
                    if self.unpaid and self.inbox.empty():
                        self._pay()
                        continue
                    with self.stage.timer("generate"):
                        happened = self.inbox.get()
                    happened()
        finally:
            self.threads.shutdown(cancel_futures=True)

    def _park(self, one: _Live) -> None:
        """See to all that an episode waits for."""
        self.live[id(one)] = one, {}
        for slot, effect in enumerate(one.parked):
            if isinstance(effect, _Saying):
                self.ask(_say(one, effect, self.stage), partial(self._answer, one, slot))
            elif isinstance(effect, _Scoring):
                self.unpaid.append((one, slot, effect))
            else:
                call = self.threads.submit(effect.function, *effect.args)
                call.add_done_callback(self._later(one, slot, effect))

    def _later(self, one: _Live, slot: int, effect: _Doing) -> Callable[[Future[Any]], None]:
        """What tells this thread that a call of ``do`` has ended."""

        def handle(call: Future[Any]) -> None:
            self._answer(one, slot, _result(call, effect, one.episode.problem))

        return lambda call: self.inbox.put(partial(handle, call))

    def _answer(self, one: _Live, slot: int, answer: Any) -> None:
        """Note an answer; the last one that an episode waits for lets it go on."""
        answers = self.live[id(one)][1]
        answers[slot] = answer
        if len(answers) == len(one.parked):
            self._go_on(one)

    def _go_on(self, one: _Live) -> None:
        _, answers = self.live.pop(id(one))
        for slot, effect in enumerate(one.parked):  # in the order of the asking, whichever came first
            if isinstance(effect, _Saying):
                _note(one, effect, answers[slot])
        if one.advance([answers[slot] for slot in range(len(one.parked))]):
            self._park(one)

    def _pay(self) -> None:
        """All that wait for it, in one call; requests go on meanwhile."""
        asked, self.unpaid = self.unpaid, []
        paid = _pay([(one, effect) for one, _, effect in asked], self.stage)
        for (one, slot, _), rewards in zip(asked, paid, strict=True):
            self._answer(one, slot, rewards)


def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "do", torch.set_num_threads, (torch.get_num_threads(),))


def _call(asked: list[tuple[_Live, _Doing]], stage: Stage) -> list[Any]:
    """The results in the order of the asking, whichever came first; of several errors the first in that order."""
    threads = _threads(min(len(asked), _CALLS))
    with stage.timer("do"):
        try:
            calls = [threads.submit(effect.function, *effect.args) for _, effect in asked]
            return [
                _result(call, effect, one.episode.problem) for call, (one, effect) in zip(calls, asked, strict=True)
            ]
        finally:
            threads.shutdown(cancel_futures=True)


def _result(call: Future[Any], effect: _Doing, problem: Problem) -> Any:
    name = getattr(effect.function, "__name__", repr(effect.function))
    with blame(f"do({name}) on problem {problem.id!r}"):
        return call.result()
