"""Plays with the scripted engine: who heard what, in which order, in how many calls, with which peers."""

import asyncio
import dataclasses
import threading
import time
from fractions import Fraction
from random import Random

import numpy as np
import pytest

from coevolve import noise
from coevolve.engines.scripted import ScriptedEngine
from coevolve.play import do, score, together
from coevolve.plays import chain
from coevolve.rollout import Stage, rollout
from coevolve.types import Problem, Sampling, Turn

PAIR = {"pioneer": "ann", "observer": "bob"}


class Echo:
    """Prompts say what was heard; every turn is paid the number of words of its text."""

    train = test = (Problem("p0"), Problem("p1"))

    def __init__(self):
        self.calls = []

    def prompt(self, p, role, heard):
        return " ".join([p.id, role, *(h.text if isinstance(h, Turn) else h for h in heard)])

    def reward(self, cases):
        self.calls.append(len(cases))
        return [[float(len(t.text.split())) for t in case.turns] for case in cases]


def script(role, problem, member, number):
    return f"{role}-{problem}-{member}-{number}"


def played(play, cast=PAIR, members=1, task=None, problems=Echo.train, speak=script):
    task, engine = task or Echo(), ScriptedEngine(speak)
    stage = Stage(cast, task, engine, Sampling(8))
    return rollout(play, problems, stage, members=members), engine, task


def said(episode):
    return [turn.text for turn in episode.turns]


def test_chain_lets_the_observer_hear_the_pioneer():
    heard = []

    class Spy(Echo):
        def prompt(self, p, role, heard_turns):
            heard.append((p.id, role, [t.text for t in heard_turns]))
            return super().prompt(p, role, heard_turns)

    episodes, engine, task = played(chain(), task=Spy())
    assert heard == [
        ("p0", "pioneer", []),
        ("p1", "pioneer", []),
        ("p0", "observer", ["pioneer-p0-0-0"]),
        ("p1", "observer", ["pioneer-p1-0-0"]),
    ]
    assert [said(e) for e in episodes] == [
        ["pioneer-p0-0-0", "observer-p0-0-0"],
        ["pioneer-p1-0-0", "observer-p1-0-0"],
    ]
    assert [list(call) for call in engine.calls] == [["ann"], ["bob"]]  # two calls, whatever the batch
    assert task.calls == [2]  # one reward call for all episodes
    assert [[t.reward for t in e.turns] for e in episodes] == [[1.0, 1.0], [1.0, 1.0]]


def test_no_transfer_means_nobody_hears():
    _, engine, _ = played(chain(transfer=False))
    texts = [say.problem.id for sweep in engine.calls for says in sweep.values() for say in says]
    assert texts == ["p0", "p1", "p0", "p1"]
    lengths = {len(say.prompt_ids) for sweep in engine.calls for says in sweep.values() for say in says}
    assert lengths == {2}  # "<problem> <role>" and nothing else


def test_three_roles_hear_all_before():
    episodes, engine, _ = played(chain(), cast={"a": "x", "b": "y", "c": "x"})
    assert len(engine.calls) == 3
    assert [t.policy for t in episodes[0].turns] == ["x", "y", "x"]
    assert len(engine.calls[2]["x"][0].prompt_ids) == 4  # problem, role, two texts


def test_members_and_repeated_problems_never_share_their_noise():
    episodes, engine, _ = played(chain(), members=2, problems=(Problem("p"), Problem("p")))
    assert [e.member for e in episodes] == [0, 1, 2, 3]
    keys = [say.key for sweep in engine.calls for says in sweep.values() for say in says]
    assert len(set(keys)) == 8
    assert {t.peers for e in episodes for t in e.turns} == {("p", "pioneer", 0), ("p", "observer", 0)}


def test_together_is_one_call_and_keeps_the_order():
    async def both(p, team):
        turns = await together(*(team[role]() for role in team))
        assert [t.role for t in turns] == ["pioneer", "observer"]
        await score(team, turns)

    _, engine, _ = played(both)
    assert [sorted(sweep) for sweep in engine.calls] == [["ann", "bob"]]


def test_together_runs_branches_of_unequal_depth_side_by_side():
    async def branch(team, role, depth):
        turns = [await team[role](str(i)) for i in range(depth)]
        await score(team, turns)
        return role, depth

    async def play(p, team):
        assert await together(branch(team, "pioneer", 1), branch(team, "observer", 3)) == [
            ("pioneer", 1),
            ("observer", 3),
        ]

    episodes, engine, _ = played(play)
    assert [sorted(sweep) for sweep in engine.calls] == [["ann", "bob"], ["bob"], ["bob"]]
    assert [(t.role, t.round) for t in episodes[0].turns] == [
        ("pioneer", 0),
        ("observer", 0),
        ("observer", 1),
        ("observer", 2),
    ]


def test_early_stop_shrinks_the_batch():
    async def play(p, team):
        for _ in range(3):
            turn = await team["pioneer"]()
            if (await score(team, [turn]))[0] > 1:
                return

    def speak(role, problem, member, number):
        return "two words" if problem == "p0" and number == 1 else "one"

    _, engine, _ = played(play, cast={"pioneer": "ann"}, speak=speak)
    assert [len(sweep["ann"]) for sweep in engine.calls] == [2, 2, 1]


def test_do_calls_python_between_turns():
    async def play(p, team):
        note = await do(lambda word: word.upper(), p.id)
        turn = await team["pioneer"](note)
        await score(team, [turn])

    _, engine, _ = played(play, cast={"pioneer": "ann"})
    assert len(engine.calls[0]["ann"][0].prompt_ids) == 3


def test_do_runs_async_functions_to_their_end_and_takes_keywords():
    async def ask(word, *, function):
        await asyncio.sleep(0)
        return f"{word} {function}"

    async def fails():
        await asyncio.sleep(0)
        raise KeyError("lost")

    async def play(p, team):
        notes = await together(do(ask, "what", function="f"), do(str, b"text", encoding="utf-8"))
        await score(team, [await team["pioneer"](*notes)])

    episodes, _, _ = played(play, cast={"pioneer": "ann"})
    assert episodes[0].turns[0].heard == ("what f", "text")
    with pytest.raises(
        ValueError, match=r"do\(fails\) on problem 'p0': raised KeyError: 'lost' \(.*test_play.py, line"
    ):
        played(lambda p, team: do(fails))


class Foreign:
    """An awaitable of some other framework."""

    def __await__(self):
        yield "a ticket of another loop"


@pytest.mark.parametrize(
    ("foreign", "what"), [(lambda: asyncio.sleep(0), "a bare yield"), (Foreign, "'a ticket of another loop'")]
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_foreign_await_is_named(foreign, what, nested):
    async def play(p, team):
        await (together(foreign()) if nested else foreign())

    with pytest.raises(ValueError, match=rf"problem 'p0': a play may await .* this one awaited {what}"):
        played(play)


def test_a_prompt_that_is_none_is_named():
    class Silent(Echo):
        def prompt(self, p, role, heard):
            return None

    with pytest.raises(ValueError, match=r"of role 'pioneer' on problem 'p0': it is None; want text, a list"):
        played(chain(), task=Silent())


def test_what_needs_an_event_loop_is_told_where_it_goes():
    async def play(p, team):
        await asyncio.sleep(1)

    with pytest.raises(ValueError, match=r"'p0': a play has no event loop; .* goes through do \(.*test_play.py, line"):
        played(play)

    async def other(p, team):
        raise RuntimeError("out of ideas")

    with pytest.raises(ValueError, match="problem 'p0': raised RuntimeError: out of ideas"):
        played(other)


def test_a_play_that_is_no_coroutine_is_named():
    with pytest.raises(ValueError, match=r"a play is an async function of \(problem, team\)"):
        played(lambda p, team: None)


def test_scoring_what_is_no_turn_is_named():
    async def play(p, team):
        await score(team, ["a text"])

    with pytest.raises(ValueError, match=r"score wants turns, got 'a text'"):
        played(play)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"peers": [0]}, r"role 'pioneer': peers is \[0\]; want what can be a key of a dict"),
        ({"weight": "2"}, "role 'pioneer': weight is '2'; want a number from 0 on"),
        ({"weight": -1.0}, "role 'pioneer': weight is -1.0; want a number from 0 on"),
        ({"weight": float("nan")}, "role 'pioneer': weight is nan; want a number from 0 on"),
    ],
)
def test_a_turn_that_is_asked_for_wrongly_is_named(how, said):
    async def play(p, team):
        await score(team, [await team["pioneer"](**how)])

    with pytest.raises(ValueError, match=said):
        played(play)


def test_a_turn_may_count_for_nothing():
    async def play(p, team):
        await score(team, [await team["pioneer"](weight=0.0)])

    assert played(play)[0][0].turns[0].weight == 0.0


@pytest.mark.parametrize(
    ("heard", "said"),
    [
        (lambda team: team["pioneer"](), "hear a coroutine; write `await` before what makes it"),
        (lambda team: together(), "hear a coroutine; write `await` before what makes it"),
        (lambda team: ["a", "b"], r"hear a list; write `team\[role\]\(\*heard\)`, with a \*"),
        (lambda team: None, "hear None; want turns and texts"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_a_turn_cannot_hear_is_named(heard, said):
    async def speaks(p, team):
        await team["observer"](heard(team))

    async def asks(p, team):
        team.fits("observer", heard(team))

    for play in (speaks, asks):
        with pytest.raises(ValueError, match=f"the play, on problem 'p0': role 'observer' was to {said}"):
            played(play)


def test_scoring_nobody_is_named():
    async def play(p, team):
        await score(team, [])

    with pytest.raises(ValueError, match="score was given no turns; want those that are paid together"):
        played(play)


def test_four_roles_are_a_chain_too():
    episodes, engine, _ = played(chain(), cast={"a": "x", "b": "y", "c": "z", "d": "x"})
    assert [len(next(iter(sweep.values()))[0].prompt_ids) for sweep in engine.calls] == [2, 3, 4, 5]
    assert len(episodes[0].turns) == 4


def test_asking_for_an_unknown_role_names_the_team():
    async def play(p, team):
        await team["judge"]()

    with pytest.raises(ValueError, match=r"'p0'.*'judge'.*pioneer, observer"):
        played(play)


class Bad(Echo):
    def __init__(self, reply):
        super().__init__()
        self.reply = reply

    def reward(self, cases):
        return self.reply(cases)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (lambda cases: [[float("nan"), 1.0] for _ in cases], r"'p0'.*'pioneer' nan.*finite"),
        (lambda cases: [[1.0, float("inf")] for _ in cases], r"'p0'.*'observer' inf.*finite"),
        (lambda cases: [[1.0] for _ in cases], r"'p0'.*list of 2 numbers"),
        (lambda cases: [[1.0, 1.0]], r"given 2 cases and returned 1"),
        (lambda cases: [[1.0, None] for _ in cases], r"'observer' None.*finite"),
        (lambda cases: [1.0 for _ in cases], r"list of 2 numbers"),
        (lambda cases: None, r"reward of Bad, step 0, was given 2 cases and returned None"),
        (lambda cases: {}[0], r"reward of Bad, step 0: raised KeyError"),
    ],
)
def test_a_bad_reward_is_named(reply, message):
    with pytest.raises(ValueError, match=message):
        played(chain(), task=Bad(reply))


def test_numpy_numbers_are_numbers():
    episodes, _, _ = played(chain(), task=Bad(lambda cases: [[np.float32(0.5), Fraction(1, 2)] for _ in cases]))
    assert [t.reward for t in episodes[0].turns] == [0.5, 0.5]
    assert all(type(t.reward) is float for t in episodes[0].turns)


def test_forgetting_to_score_and_scoring_twice_are_named():
    async def forgets(p, team):
        await team["pioneer"]()

    async def twice(p, team):
        turn = await team["pioneer"]()
        await score(team, [turn])
        await score(team, [turn])

    with pytest.raises(ValueError, match=r"scored no turn of problem 'p0'"):
        played(forgets)
    with pytest.raises(ValueError, match=r"problem 'p0': scores the same turns \(pioneer\) twice"):
        played(twice)


def test_turns_that_this_episode_did_not_speak_are_not_scored():
    """Nobody who learns from it would see their pay."""
    kept = []

    async def changes(p, team):
        await score(team, [await team["pioneer"](), dataclasses.replace(await team["observer"](), text="tidy")])

    async def keeps(p, team):
        kept.append(await team["pioneer"]())
        await score(team, [kept[0]])

    with pytest.raises(ValueError, match=r"problem 'p0': scores a turn of role 'observer' that was not spoken in this"):
        played(changes)
    with pytest.raises(ValueError, match=r"problem 'p1': scores a turn of role 'pioneer' that was not spoken in this"):
        played(keeps, problems=[Problem("p0"), Problem("p1")])


def test_a_reward_that_the_play_sets_is_refused_as_nobody_would_learn_from_it():
    async def instead_of_score(p, team):
        (await team["pioneer"]()).reward = 1.0

    async def before(p, team):
        turn = await team["pioneer"]()
        turn.reward = 2.0
        await score(team, [turn])

    async def behind(p, team):
        turn = await team["observer"]()
        await score(team, [turn])
        turn.reward -= 0.5

    async def again(p, team):
        turn = await team["observer"]()
        [turn.reward] = await score(team, [turn])

    where, todo = "the play, on problem 'p0': sets the reward of role", "; pay it in the task's reward, or shape it in"
    for play, said in [
        (instead_of_score, "'pioneer' to 1.0, where the task paid nothing"),
        (before, "'pioneer' to 2.0, where the task paid nothing"),
        (behind, "'observer' to 0.5, where the task paid 1.0"),
    ]:
        with pytest.raises(ValueError, match=f"{where} {said}, and nobody would learn from it{todo} the algorithm's"):
            played(play)
    assert played(again)[0][0].turns[0].reward == 1.0


def test_a_task_may_write_down_in_the_turns_what_it_pays():
    class Writes(Echo):
        def reward(self, cases):
            paid = super().reward(cases)
            for case, rewards in zip(cases, paid, strict=True):
                for turn, reward in zip(case.turns, rewards, strict=True):
                    turn.reward = reward
            return paid

    async def play(p, team):
        await score(team, [await team["pioneer"]()])

    assert played(play, task=Writes())[0][0].turns[0].reward == played(play)[0][0].turns[0].reward


def test_an_episodes_own_seed_is_one_for_numpy_and_random_draws_as_before():
    seeds = []

    async def play(p, team):
        seeds.append(team.seed)
        np.random.default_rng(team.seed)
        await score(team, [await team["pioneer"]()])

    problems = [Problem(f"p{i}") for i in range(9)]
    played(play, problems=problems)
    keys = [noise.key(0, 0, problem.id, 0, "play") for problem in problems]
    assert min(keys) < 0 <= min(seeds)
    assert [Random(seed).random() for seed in seeds] == [Random(key).random() for key in keys]


def test_a_play_that_breaks_is_named():
    async def play(p, team):
        raise KeyError("lost")

    with pytest.raises(ValueError, match=r"the play, on problem 'p0'.*KeyError.*lost"):
        played(play)


def test_what_is_done_at_once_runs_side_by_side_and_answer_in_order():
    everybody = threading.Barrier(6)

    def call(number):
        everybody.wait(timeout=30)  # which one after the other they could not
        time.sleep(0.002 * (6 - number))  # the last one is ready first
        return f"note {number}"

    heard = []

    async def play(p, team):
        first, second = await together(do(call, 2 * int(p.id[1:])), do(call, 2 * int(p.id[1:]) + 1))
        heard.append((p.id, first, second))
        await score(team, [await team["pioneer"]()])

    played(play, problems=[Problem(f"p{i}") for i in range(3)], cast={"pioneer": "ann"})
    assert heard == [("p0", "note 0", "note 1"), ("p1", "note 2", "note 3"), ("p2", "note 4", "note 5")]


def test_of_several_calls_that_fail_the_first_is_blamed():
    def call(number):
        time.sleep(0.002 * (4 - number))
        if number in (1, 3):
            raise KeyError(number)

    async def play(p, team):
        await do(call, int(p.id[1:]))
        await score(team, [await team["pioneer"]()])

    for _ in range(5):
        with pytest.raises(ValueError, match=r"do\(call\) on problem 'p1': raised KeyError: 1"):
            played(play, problems=[Problem(f"p{i}") for i in range(4)], cast={"pioneer": "ann"})
