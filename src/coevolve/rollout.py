"""Rollouts: run plays until they return, and collect their episodes.

All episodes run at the same time. Each advances until its play awaits effects, and the effects of all episodes are
answered in one batch. So the number of model calls per step is the sequential depth of the play, and rewards are
batched the same way. An episode whose play returns early leaves the batch.

An engine that can return one turn while it samples others (a server: ``interfaces.Overlapping``) is used without
batches: an episode continues as soon as its own turns are back, and is scored while others are sampled or continue.
Plays, random numbers and episodes are the same.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import current_thread
from types import CoroutineType
from typing import Any, cast

from coevolve import noise
from coevolve.faults import blame
from coevolve.files import shown
from coevolve.interfaces import Overlapping, Task, TurnSource, context
from coevolve.pay import LARGEST, is_payable
from coevolve.play import Doing, Roles, Saying, Scoring, called, check_effects
from coevolve.runtime.placement import beside, thread_pool
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
"""Most calls of ``do`` at the same time."""
_GRACE = 5.0
"""Seconds that plays in a thread of their own get to end after a failure or an interrupt. One that loops never ends."""

Timer = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Stage:
    """What a rollout needs to answer effects: cast, task, engine, sampling, and the names of its random numbers."""

    cast: Mapping[Role, PolicyName]
    task: Task
    engine: TurnSource
    sampling: Sampling
    seed: int = 0
    step: int | str = 0
    timer: Timer = lambda phase: nullcontext()
    named: int | str | None = None
    """The step under whose name random numbers are drawn, if not ``step`` (``reset_every``)."""

    def key(self, episode: Episode, *names: object) -> int:
        """Return the random key of this episode for these names."""
        step = self.step if self.named is None else self.named
        return noise.key(self.seed, step, episode.problem.id, episode.member, *names)


def rollout(play: Play, problems: Sequence[Problem], stage: Stage, *, members: int = 1) -> list[Episode]:
    """Play every problem ``members`` times, all episodes at the same time.

    Returns the episodes problem by problem, member by member. A problem that occurs twice gets further members, so that
    no two episodes of a step share their random numbers. Raises ValueError, naming the problem (and the role), for an
    error in the play, the task or the reward.
    """
    live, episodes = [], []
    seen: Counter[str] = Counter()
    for problem in problems:
        for _ in range(members):
            episode = Episode(problem, seen[problem.id])
            seen[problem.id] += 1
            episodes.append(episode)
            live.append(_Live(episode, _begun(play, episode, stage)))
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
                if not one.coroutine.cr_running:  # which cannot be closed
                    one.coroutine.close()
    for one in live:
        with blame(f"the play, on problem {one.episode.problem.id!r}"):
            one.check_rewards(one.episode.turns)
    for episode in episodes:
        if all(turn.reward is None for turn in episode.turns):
            raise ValueError(
                f"the play scored no turn of problem {episode.problem.id!r}; await score(team, turns) in it"
            )
    return episodes


def _begun(play: Play, episode: Episode, stage: Stage) -> CoroutineType[Any, Any, None]:
    problem, seed = episode.problem, abs(stage.key(episode, "play"))  # NumPy needs >= 0; Random ignores the sign
    coroutine = play(problem, Roles(tuple(stage.cast), stage.task, partial(_fits, problem, stage), seed))
    if not inspect.iscoroutine(coroutine):
        raise ValueError(f"a play is an async function of (problem, team); {play!r} returned {coroutine!r}")
    return coroutine


def _fits(problem: Problem, stage: Stage, effect: Saying) -> bool:
    policy = stage.cast[effect.role]
    positions = context(stage.engine, policy)
    if positions is None:
        return True
    prompt_ids = stage.engine.encode(policy, _prompt(problem, effect, stage))
    return len(prompt_ids) + stage.sampling.length_range[1] <= positions


@dataclass
class _Live:
    """A running episode, its coroutine, and the effects that it waits for."""

    episode: Episode
    coroutine: CoroutineType[Any, Any, None]
    parked: list[Any] = field(default_factory=list)
    known: int = 0
    """The number of turns that the play knew when it asked for these effects."""
    rounds: Counter[Role] = field(default_factory=Counter)
    joints: dict[tuple[int, ...], int] = field(default_factory=dict)
    """ids of the turns of a joint -> its position in the episode."""
    scored: list[int] = field(default_factory=list)
    """Positions of the joints of the last call of score (several, if scored together)."""
    paid: dict[int, list[float]] = field(default_factory=dict)
    """id of a turn -> its rewards, one per joint."""

    def advance(self, answers: list[Any] | None) -> bool:
        """Run the play to its next effects; returns False once it has returned."""
        self.known = len(self.episode.turns)
        with blame(f"the play, on problem {self.episode.problem.id!r}"):
            try:
                self.parked = check_effects(self.coroutine.send(answers))
            except StopIteration:
                return False
            except RuntimeError as error:
                if not re.search("no (running|current) event loop", str(error)):
                    raise
                said = "a play has no event loop; what needs one, as asyncio does, goes through do"
                raise ValueError(said).with_traceback(error.__traceback__) from error  # which has the user's line
        return True

    def parent(self, effect: Scoring) -> int | None:
        """Return the position of the joint that this one continues, if any. Raises ValueError if that was not scored,
        and for turns that are not of this episode, whose reward would be lost to training."""
        spoken = {id(turn) for turn in self.episode.turns}
        if strange := [turn.role for turn in effect.turns if id(turn) not in spoken]:
            raise ValueError(
                f"scores a turn of role {strange[0]!r} that was not spoken in this episode: a changed copy, or one of "
                "another episode; score what `await team[role](...)` returned"
            )
        if effect.after is None:
            if len(self.scored) > 1:
                raise ValueError("scores without `after` where several joints were scored at once before; say which")
            return self.scored[0] if self.scored else None
        found = self.joints.get(tuple(map(id, effect.after)))
        if effect.after and found is None:
            raise ValueError("scores turns `after` turns that were not scored together before")
        return found

    def check_rewards(self, turns: Sequence[Turn]) -> None:
        """Raise ValueError for a ``Turn.reward`` that the play has changed: training would not use it."""
        for turn in turns:
            if turn.reward != (paid := self.reward(turn)):
                raise ValueError(
                    f"sets the reward of role {turn.role!r} to {shown(turn.reward)}, where the task paid "
                    f"{'nothing' if paid is None else shown(paid)}, and nobody would learn from it; pay it in the "
                    "task's reward, or shape it in the algorithm's credit"
                )

    def reward(self, turn: Turn) -> float | None:
        """Return a turn's reward so far, the mean over its joints; None if it was not scored."""
        paid = self.paid.get(id(turn))
        return sum(paid) / len(paid) if paid else None

    def join(self, joint: Joint) -> None:
        """Add a joint with its rewards to the episode. Raises ValueError if it was scored before."""
        key = tuple(map(id, joint.turns))
        if key in self.joints:
            roles = ", ".join(turn.role for turn in joint.turns)
            raise ValueError(f"scores the same turns ({roles}) twice")
        self.joints[key] = len(self.episode.joints)
        self.scored.append(len(self.episode.joints))
        self.episode.joints.append(joint)
        for turn, reward in zip(joint.turns, joint.rewards, strict=True):
            self.paid.setdefault(id(turn), []).append(reward)
            turn.reward = self.reward(turn)


def _play_in_lockstep(waiting: list[_Live], stage: Stage) -> None:
    while waiting:
        answers = _answers(waiting, stage)
        waiting = [one for one in waiting if one.advance(answers[id(one)])]


def _answers(waiting: Sequence[_Live], stage: Stage) -> dict[int, list[Any]]:
    """Return the answers to the effects of every episode, by its id: one ``generate`` for all turns, then one call of
    the reward for all scores, then the calls of ``do``."""
    answers = {id(one): [None] * len(one.parked) for one in waiting}
    for kind, reply in _REPLIES:
        parked = [(one, slot, e) for one in waiting for slot, e in enumerate(one.parked) if isinstance(e, kind)]
        if parked:
            found = reply([(one, effect) for one, _, effect in parked], stage)
            for (one, slot, _), answer in zip(parked, found, strict=True):
                answers[id(one)][slot] = answer
    return answers


def _speak(asked: list[tuple[_Live, Saying]], stage: Stage) -> list[Turn]:
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


def _note(one: _Live, effect: Saying, turn: Turn) -> None:
    """Add a turn to its episode and set the key of its peers, its weight, what it heard and when it was asked for."""
    alone = effect.peers is None  # then the members' turns of one round are compared
    inside = (turn.round,) if alone else (one.episode.member, effect.peers)
    turn.peers = (turn.problem.id, turn.role, *inside)
    turn.weight = effect.weight
    turn.heard = effect.heard
    turn.asked = one.known
    one.episode.turns.append(turn)


def _say(one: _Live, effect: Saying, stage: Stage) -> Say:
    episode, role = one.episode, effect.role
    policy, number = stage.cast[role], one.rounds[role]
    one.rounds[role] += 1
    with blame(f"the prompt of role {role!r} on problem {episode.problem.id!r}"):
        prompt_ids = stage.engine.encode(policy, _prompt(episode.problem, effect, stage))
    key = stage.key(episode, role, number)
    return Say(role, policy, episode.problem, episode.member, number, prompt_ids, stage.sampling, key)


def _prompt(problem: Problem, effect: Saying, stage: Stage) -> Asked:
    """Return the task's prompt, or, after tool calls, the turn that called with the results."""
    goes_on = bool(effect.heard) and isinstance(effect.heard[-1], ToolResult)
    prompt = effect.heard if goes_on else stage.task.prompt(problem, effect.role, effect.heard)
    if not isinstance(prompt, str | Sequence | WithTools):
        raise ValueError(
            f"it is {shown(prompt)}; want text, a list of messages, or the role's last turn and what follows it"
        )
    return WithTools(prompt, effect.tools) if effect.tools and not isinstance(prompt, WithTools) else prompt


def _pay(asked: list[tuple[_Live, Scoring]], stage: Stage) -> list[list[float]]:
    cases, parents = _cases(asked)
    paid = pay(cases, stage)
    _join(asked, cases, parents, paid)
    return paid


def _cases(asked: Sequence[tuple[_Live, Scoring]]) -> tuple[list[Case], list[int | None]]:
    """Return the cases to pay, and the position of the joint that each continues."""
    parents = []  # found before any joint is added: joints of one call do not continue each other
    for one, effect in asked:
        with blame(f"the play, on problem {one.episode.problem.id!r}"):
            parents.append(one.parent(effect))
            one.check_rewards(effect.turns)  # before the task's reward, which may set Turn.reward itself
    cases = [
        Case(one.episode.problem, effect.turns, one.episode.history(parent))
        for (one, effect), parent in zip(asked, parents, strict=True)
    ]
    return cases, parents


def _join(
    asked: Sequence[tuple[_Live, Scoring]],
    cases: Sequence[Case],
    parents: Sequence[int | None],
    paid: Sequence[list[float]],
) -> None:
    """Add what was paid to the episodes."""
    for one, _ in asked:
        one.scored = []
    for (one, effect), case, parent, rewards in zip(asked, cases, parents, paid, strict=True):
        with blame(f"the play, on problem {case.problem.id!r}"):
            one.join(Joint(case.turns, tuple(rewards), parent, effect.answered))


def pay(cases: Sequence[Case], stage: Stage) -> list[list[float]]:
    """Return the task's rewards, one number per turn of each case. Raises ValueError for any other result."""
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


def _call(asked: list[tuple[_Live, Doing]], stage: Stage) -> list[Any]:
    """Run calls of ``do`` in threads; returns the results in order, or raises the first error in that order."""
    threads = thread_pool(min(len(asked), _CALLS), "do")
    with stage.timer("do"):
        try:
            calls = [threads.submit(called, e.function, *e.args, **e.kwargs) for _, e in asked]
            return [
                _result(call, effect, one.episode.problem) for call, (one, effect) in zip(calls, asked, strict=True)
            ]
        finally:
            threads.shutdown(cancel_futures=True)


def _result(call: Future[Any], effect: Doing, problem: Problem) -> Any:
    name = getattr(effect.function, "__name__", repr(effect.function))
    with blame(f"do({name}) on problem {problem.id!r}"):
        return call.result()


_REPLIES: tuple[tuple[type, Callable[[list[tuple[_Live, Any]], Stage], Sequence[Any]]], ...] = (
    (Saying, _speak),
    (Scoring, _pay),
    (Doing, _call),
)
"""The function that answers all effects of a type, in this order."""


class _StoppedError(Exception):
    """The calling thread has ended, so the plays end, too."""


def _stop() -> None:
    raise _StoppedError


class _Overlap:
    """A rollout without batches: each episode continues as soon as its own effects are answered.

    Plays run in a thread of their own. The end of a request, of a call of ``do`` or of a call of the task's reward is a
    callable in ``inbox`` that handles the result in that thread. Rewards are computed in the calling thread, since some
    (``signal.alarm``) work in the main thread only: one call at a time, for all cases that wait.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.to_pay: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """Calls of the reward; None at the end."""
        self.live: dict[int, tuple[_Live, dict[int, Any]]] = {}
        """id of a waiting episode -> the episode, and the answers so far by the position of the effect."""
        self.unpaid: list[tuple[_Live, int, Scoring]] = []
        self.paying = False
        self.speaking = 0
        """The number of turns that are being sampled."""

    def play(self, waiting: Sequence[_Live], overlapped: Overlapping) -> None:
        """Run until every play has returned."""
        self.threads = thread_pool(_CALLS, "do")
        plays = beside(f"plays of {current_thread().name}", partial(self._play, waiting, overlapped))
        plays.add_done_callback(lambda _: self.to_pay.put(None))
        try:
            while (paid := self.to_pay.get()) is not None:
                paid()
            plays.result()
        except BaseException:
            self.inbox.put(_stop)
            wait([plays], timeout=_GRACE)
            raise
        finally:
            self.threads.shutdown(cancel_futures=True)

    def _play(self, waiting: Sequence[_Live], overlapped: Overlapping) -> None:
        with overlapped(self.inbox) as self.ask:
            for one in waiting:
                self._park(one)
            while self.live:
                if self.unpaid and not self.paying and self.inbox.empty():
                    self._pay()
                with self.stage.timer("generate") if self.speaking else nullcontext():
                    happened = self.inbox.get()
                happened()

    def _park(self, one: _Live) -> None:
        """Start all requests that an episode waits for."""
        self.live[id(one)] = one, {}
        for slot, effect in enumerate(one.parked):
            if isinstance(effect, Saying):
                self.speaking += 1
                self.ask(_say(one, effect, self.stage), partial(self._hear, one, slot))
            elif isinstance(effect, Scoring):
                self.unpaid.append((one, slot, effect))
            else:
                call = self.threads.submit(called, effect.function, *effect.args, **effect.kwargs)
                call.add_done_callback(self._later(one, slot, effect))

    def _hear(self, one: _Live, slot: int, turn: Turn) -> None:
        self.speaking -= 1
        self._answer(one, slot, turn)

    def _later(self, one: _Live, slot: int, effect: Doing) -> Callable[[Future[Any]], None]:
        """Return the callback that puts the end of a call of ``do`` into the inbox."""

        def handle(call: Future[Any]) -> None:
            self._answer(one, slot, _result(call, effect, one.episode.problem))

        return lambda call: self.inbox.put(partial(handle, call))

    def _answer(self, one: _Live, slot: int, answer: Any) -> None:
        """Store an answer; after the last one that an episode waits for, continue it."""
        answers = self.live[id(one)][1]
        answers[slot] = answer
        if len(answers) == len(one.parked):
            self._go_on(one)

    def _go_on(self, one: _Live) -> None:
        _, answers = self.live.pop(id(one))
        for slot, effect in enumerate(one.parked):  # in the order of the effects, whichever was answered first
            if isinstance(effect, Saying):
                _note(one, effect, answers[slot])
        if one.advance([answers[slot] for slot in range(len(one.parked))]):
            self._park(one)

    def _pay(self) -> None:
        """Have all waiting cases scored in one call; requests and other episodes continue meanwhile."""
        waiting, self.unpaid, self.paying = self.unpaid, [], True
        asked = [(one, effect) for one, _, effect in waiting]
        cases, parents = _cases(asked)

        def paid(rewards: list[list[float]]) -> None:
            self.paying = False
            _join(asked, cases, parents, rewards)
            for (one, slot, _), answer in zip(waiting, rewards, strict=True):
                self._answer(one, slot, answer)

        self.to_pay.put(lambda: self.inbox.put(partial(paid, pay(cases, self.stage))))
