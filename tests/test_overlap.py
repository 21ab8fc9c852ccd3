"""Episodes that go on at their own pace are those of the lockstep driver, whatever comes back first."""

from __future__ import annotations

import random
import signal
import threading
import time
from contextlib import contextmanager

import pytest

from coevolve.engines.scripted import ScriptedEngine
from coevolve.play import do, score, together
from coevolve.plays import best_of, chain, discussion, rounds, tree
from coevolve.rollout import Stage, rollout
from coevolve.types import Problem, Sampling

CAST = {"a": "ann", "b": "bob"}
PROBLEMS = (Problem("p"), Problem("q"), Problem("p"))


class Counted:
    """Pays what was said; counts the calls and the cases of each."""

    train = test = PROBLEMS

    def __init__(self):
        self.calls = []

    def prompt(self, p, role, heard):
        return f"{p.id} {role} {' '.join(h if isinstance(h, str) else h.text for h in heard)}"

    def reward(self, cases):
        self.calls.append([(case.problem.id, case.turns[0].member) for case in cases])
        return [[float(int(t.text, 36) % 97) + i for i, t in enumerate(case.turns)] for case in cases]

    def feedback(self, p, turns):
        return [f"note on {t.text}" for t in turns]


class Apart(ScriptedEngine):
    """Answers one turn at a time, each after as long as ``delay(say)`` says."""

    def __init__(self, script, delay):
        super().__init__(script)
        self.delay, self.log = delay, []

    @contextmanager
    def overlapped(self, inbox):
        timers = []

        def ask(say, then):
            self.log.append(("asked", say.role, say.problem.id, say.member))

            def back():
                [turn] = self.generate({say.policy: [say]})[say.policy]
                then(turn)

            timers.append(threading.Timer(self.delay(say), inbox.put, [back]))
            timers[-1].start()

        try:
            yield ask
        finally:
            for timer in timers:
                timer.cancel()


def script(role, problem, member, number):
    return f"{role}{'pq'.index(problem)}{member}{number}"


async def later(text):
    return f"{text}!"


async def own(p, team):
    """Calls, branches and several scores in one sweep."""
    a = await team["a"]("first")

    async def branch(i):
        b = await team["b"](a, peers=i, weight=0.5)
        noted = await do(lambda text: time.sleep(0.001 * (3 - i)) or text.upper(), text=b.text)
        noted = await do(later, noted)
        await score(team, [b], after=())
        return await team["a"](noted, peers=i)

    ends = await together(*(branch(i) for i in range(3)))
    await together(*(score(team, [end], after=()) for end in ends))


def facts(episodes):
    return [
        (
            e.problem.id,
            e.member,
            [(t.role, t.round, t.text, t.reward, t.peers, t.weight, tuple(map(str, t.heard))) for t in e.turns],
            [([t.text for t in j.turns], j.rewards, j.after, j.answered) for j in e.joints],
        )
        for e in episodes
    ]


PLAYS = {
    "chain": chain(),
    "rounds": rounds(2, feedback=True),
    "discussion": discussion(),
    "tree": tree(2, 2),
    "best_of": best_of(2, 2),
    "own": own,
}


@pytest.mark.parametrize("name", PLAYS)
def test_episodes_are_those_of_the_lockstep_driver(name):
    chance = random.Random(name)
    engines = ScriptedEngine(script), Apart(script, lambda say: chance.random() * 0.004)
    here, there = (
        rollout(PLAYS[name], PROBLEMS, Stage(CAST, Counted(), engine, Sampling(4)), members=2) for engine in engines
    )
    assert facts(here) == facts(there)


def test_an_episode_does_not_wait_for_others_and_is_paid_meanwhile():
    late = threading.Event()
    task, engine = Counted(), Apart(script, lambda say: 0.3 if (say.problem.id, say.role) == ("p", "a") else 0)
    reward = task.reward
    task.reward = lambda cases: late.set() or reward(cases)
    rollout(chain(), PROBLEMS[:2], Stage(CAST, task, engine, Sampling(4)))
    assert [entry[1:3] for entry in engine.log] == [("a", "p"), ("a", "q"), ("b", "q"), ("b", "p")]
    assert late.is_set() and task.calls == [[("q", 0)], [("p", 0)]]


def test_an_episode_goes_on_while_another_one_is_paid():
    """p is at its reward, and the reward waits for q to be asked for its second turn."""
    task, asked = Counted(), threading.Event()
    engine = Apart(script, lambda say: 0.2 if (say.problem.id, say.role) == ("q", "a") else 0)
    reward, begin = task.reward, engine.generate

    def generate(by_policy):
        if any((say.problem.id, say.role) == ("q", "b") for says in by_policy.values() for say in says):
            asked.set()
        return begin(by_policy)

    engine.generate = generate
    waited = []
    task.reward = lambda cases: waited.append(asked.wait(20)) or reward(cases)
    rollout(chain(), PROBLEMS[:2], Stage(CAST, task, engine, Sampling(4)))
    assert waited == [True, True]
    assert task.calls == [[("p", 0)], [("q", 0)]]


def test_an_error_of_the_reward_is_told_as_in_lockstep():
    def fails(cases):
        raise KeyError("x")

    said = []
    for engine in (ScriptedEngine(script), Apart(script, lambda say: 0)):
        task = Counted()
        task.reward = fails
        with pytest.raises(ValueError, match="the reward of Counted, step 0: raised KeyError: 'x'") as told:
            rollout(chain(), PROBLEMS[:1], Stage(CAST, task, engine, Sampling(4)))
        said.append(str(told.value))
    assert said[0] == said[1]


def test_rewards_are_computed_in_the_calling_thread():
    """Some, which set an alarm, work in the main thread only."""
    task, seen = Counted(), []
    reward = task.reward
    task.reward = lambda cases: seen.append(threading.current_thread()) or reward(cases)
    rollout(chain(), PROBLEMS, Stage(CAST, task, Apart(script, lambda say: 0), Sampling(4)))
    assert set(seen) == {threading.current_thread()}


@pytest.fixture
def minds_ctrl_c(monkeypatch):
    """Also where the tests run in a shell's background, which ignores it."""
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)


def test_an_interrupt_ends_the_plays(minds_ctrl_c):
    """Ctrl-C comes while a reward is computed and another episode's turn is awaited for an hour."""
    engine = Apart(script, lambda say: 3600 if say.problem.id == "q" else 0)
    task = Counted()

    def interrupted(cases):
        raise KeyboardInterrupt

    task.reward = interrupted
    with pytest.raises(KeyboardInterrupt):
        rollout(chain(), PROBLEMS[:2], Stage(CAST, task, engine, Sampling(4)))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("plays", "do_"))]


def test_an_interrupt_does_not_wait_for_a_play_that_loops(monkeypatch, minds_ctrl_c):
    monkeypatch.setattr("coevolve.overlap._GRACE", 0.1)
    looping, ended = threading.Event(), threading.Event()

    async def play(p, team):
        turn = await team["a"]()
        if p.id == "q":
            looping.set()
            ended.wait(60)
        await score(team, [turn])

    task = Counted()

    def interrupted(cases):
        assert looping.wait(20)
        raise KeyboardInterrupt

    task.reward = interrupted
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        rollout(
            play, PROBLEMS[:2], Stage(CAST, task, Apart(script, lambda say: 0.2 * (say.problem.id == "q")), Sampling(4))
        )
    assert time.monotonic() - start < 30
    ended.set()


def test_what_goes_wrong_is_told_as_in_lockstep():
    def fails(text):
        raise KeyError(text)

    async def calls(p, team):
        await do(fails, "x")

    engine = Apart(script, lambda say: 0)
    with pytest.raises(ValueError, match=r"do\(fails\) on problem 'p': raised KeyError: 'x'"):
        rollout(calls, PROBLEMS[:1], Stage(CAST, Counted(), engine, Sampling(4)))
