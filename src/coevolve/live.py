"""A running episode: what its play asks for, and what becomes of the answers.

``rollout`` and ``overlap`` differ in when they answer effects; prompts, random keys, turns, joints and rewards are
made here.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import CoroutineType
from typing import Any, cast

from coevolve import noise
from coevolve.faults import blame
from coevolve.files import shown
from coevolve.interfaces import Task, TurnSource, context
from coevolve.pay import LARGEST, is_payable
from coevolve.play import Doing, Roles, Saying, Scoring, check_effects
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

CALLS = 64
"""Most calls of ``do`` at the same time."""

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


def begun(play: Play, episode: Episode, stage: Stage) -> CoroutineType[Any, Any, None]:
    """Return the coroutine of a play on the episode's problem, not yet run. Raises ValueError if the play is none."""
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
class Live:
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


def note(one: Live, effect: Saying, turn: Turn) -> None:
    """Add a turn to its episode and set the key of its peers, its weight, what it heard and when it was asked for."""
    alone = effect.peers is None  # then the members' turns of one round are compared
    inside = (turn.round,) if alone else (one.episode.member, effect.peers)
    turn.peers = (turn.problem.id, turn.role, *inside)
    turn.weight = effect.weight
    turn.heard = effect.heard
    turn.asked = one.known
    one.episode.turns.append(turn)


def say_of(one: Live, effect: Saying, stage: Stage) -> Say:
    """Return the request for the turn that a play asks for; its role's turns are counted here."""
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


def cases_of(asked: Sequence[tuple[Live, Scoring]]) -> tuple[list[Case], list[int | None]]:
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


def join(
    asked: Sequence[tuple[Live, Scoring]],
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


def result_of(call: Future[Any], effect: Doing, problem: Problem) -> Any:
    """Return the result of a finished call of ``do``; an error names the function and the problem."""
    name = getattr(effect.function, "__name__", repr(effect.function))
    with blame(f"do({name}) on problem {problem.id!r}"):
        return call.result()
