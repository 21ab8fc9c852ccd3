"""Rollouts without batches, with an engine that can return one turn while it samples others (a server)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext
from functools import partial
from queue import SimpleQueue
from threading import current_thread
from typing import Any

from coevolve.interfaces import Overlapping
from coevolve.live import CALLS, Live, Stage, cases_of, join, note, pay, result_of, say_of
from coevolve.play import Doing, Saying, Scoring, called
from coevolve.runtime.placement import beside, thread_pool
from coevolve.types import (
    Turn,
)

_GRACE = 5.0
"""Seconds that plays in a thread of their own get to end after a failure or an interrupt. One that loops never ends."""


class _StoppedError(Exception):
    """The calling thread has ended, so the plays end, too."""


def _stop() -> None:
    raise _StoppedError


class Overlap:
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
        self.live: dict[int, tuple[Live, dict[int, Any]]] = {}
        """id of a waiting episode -> the episode, and the answers so far by the position of the effect."""
        self.unpaid: list[tuple[Live, int, Scoring]] = []
        self.paying = False
        self.speaking = 0
        """The number of turns that are being sampled."""

    def play(self, waiting: Sequence[Live], overlapped: Overlapping) -> None:
        """Run until every play has returned."""
        self.threads = thread_pool(CALLS, "do")
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

    def _play(self, waiting: Sequence[Live], overlapped: Overlapping) -> None:
        with overlapped(self.inbox) as self.ask:
            for one in waiting:
                self._park(one)
            while self.live:
                if self.unpaid and not self.paying and self.inbox.empty():
                    self._pay()
                with self.stage.timer("generate") if self.speaking else nullcontext():
                    happened = self.inbox.get()
                happened()

    def _park(self, one: Live) -> None:
        """Start all requests that an episode waits for."""
        self.live[id(one)] = one, {}
        for slot, effect in enumerate(one.parked):
            if isinstance(effect, Saying):
                self.speaking += 1
                self.ask(say_of(one, effect, self.stage), partial(self._hear, one, slot))
            elif isinstance(effect, Scoring):
                self.unpaid.append((one, slot, effect))
            else:
                call = self.threads.submit(called, effect.function, *effect.args, **effect.kwargs)
                call.add_done_callback(self._later(one, slot, effect))

    def _hear(self, one: Live, slot: int, turn: Turn) -> None:
        self.speaking -= 1
        self._answer(one, slot, turn)

    def _later(self, one: Live, slot: int, effect: Doing) -> Callable[[Future[Any]], None]:
        """Return the callback that puts the end of a call of ``do`` into the inbox."""

        def handle(call: Future[Any]) -> None:
            self._answer(one, slot, result_of(call, effect, one.episode.problem))

        return lambda call: self.inbox.put(partial(handle, call))

    def _answer(self, one: Live, slot: int, answer: Any) -> None:
        """Store an answer; after the last one that an episode waits for, continue it."""
        answers = self.live[id(one)][1]
        answers[slot] = answer
        if len(answers) == len(one.parked):
            self._go_on(one)

    def _go_on(self, one: Live) -> None:
        _, answers = self.live.pop(id(one))
        for slot, effect in enumerate(one.parked):  # in the order of the effects, whichever was answered first
            if isinstance(effect, Saying):
                note(one, effect, answers[slot])
        if one.advance([answers[slot] for slot in range(len(one.parked))]):
            self._park(one)

    def _pay(self) -> None:
        """Have all waiting cases scored in one call; requests and other episodes continue meanwhile."""
        waiting, self.unpaid, self.paying = self.unpaid, [], True
        asked = [(one, effect) for one, _, effect in waiting]
        cases, parents = cases_of(asked)

        def paid(rewards: list[list[float]]) -> None:
            self.paying = False
            join(asked, cases, parents, rewards)
            for (one, slot, _), answer in zip(waiting, rewards, strict=True):
                self._answer(one, slot, answer)

        self.to_pay.put(lambda: self.inbox.put(partial(paid, pay(cases, self.stage))))
