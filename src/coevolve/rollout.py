"""Rollouts: run plays until they return, and collect their episodes.

All episodes run at the same time. Each advances until its play awaits effects, and the effects of all episodes are
answered in one batch. So the number of model calls per step is the sequential depth of the play, and rewards are
batched the same way. An episode whose play returns early leaves the batch.

An engine that can return one turn while it samples others (a server: ``interfaces.Overlapping``) is used without
batches: an episode continues as soon as its own turns are back, and is scored while others are sampled or continue.
Plays, random numbers and episodes are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from coevolve.faults import blame
from coevolve.live import CALLS, Live, Stage, begun, cases_of, join, note, pay, result_of, say_of
from coevolve.overlap import Overlap
from coevolve.play import Doing, Saying, Scoring, called
from coevolve.runtime.placement import thread_pool
from coevolve.types import Episode, Play, PolicyName, Problem, Say, Turn

__all__ = ["Stage", "rollout"]


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
            live.append(Live(episode, begun(play, episode, stage)))
    try:
        waiting = [one for one in live if one.advance(None)]
        overlapped = getattr(stage.engine, "overlapped", None)
        if overlapped is not None:
            Overlap(stage).play(waiting, overlapped)
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


def _play_in_lockstep(waiting: list[Live], stage: Stage) -> None:
    while waiting:
        answers = _answers(waiting, stage)
        waiting = [one for one in waiting if one.advance(answers[id(one)])]


def _answers(waiting: Sequence[Live], stage: Stage) -> dict[int, list[Any]]:
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


def _speak(asked: list[tuple[Live, Saying]], stage: Stage) -> list[Turn]:
    says = [say_of(one, effect, stage) for one, effect in asked]
    by_policy: dict[PolicyName, list[Say]] = {}
    for say in says:
        by_policy.setdefault(say.policy, []).append(say)
    with stage.timer("generate"):
        spoken = {name: iter(turns) for name, turns in stage.engine.generate(by_policy).items()}
    turns = [next(spoken[say.policy]) for say in says]
    for (one, effect), turn in zip(asked, turns, strict=True):
        note(one, effect, turn)
    return turns


def _pay(asked: list[tuple[Live, Scoring]], stage: Stage) -> list[list[float]]:
    cases, parents = cases_of(asked)
    paid = pay(cases, stage)
    join(asked, cases, parents, paid)
    return paid


def _call(asked: list[tuple[Live, Doing]], stage: Stage) -> list[Any]:
    """Run calls of ``do`` in threads; returns the results in order, or raises the first error in that order."""
    threads = thread_pool(min(len(asked), CALLS), "do")
    with stage.timer("do"):
        try:
            calls = [threads.submit(called, e.function, *e.args, **e.kwargs) for _, e in asked]
            return [
                result_of(call, effect, one.episode.problem) for call, (one, effect) in zip(calls, asked, strict=True)
            ]
        finally:
            threads.shutdown(cancel_futures=True)


_REPLIES: tuple[tuple[type, Callable[[list[tuple[Live, Any]], Stage], Sequence[Any]]], ...] = (
    (Saying, _speak),
    (Scoring, _pay),
    (Doing, _call),
)
"""The function that answers all effects of a type, in this order."""
