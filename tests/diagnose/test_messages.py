"""What is heard instead."""

import numpy as np
import pytest
from parlour import CAST, Paid, scene

from coevolve import chain, discussion, rounds
from coevolve.diagnose import messages
from coevolve.diagnose.messages import Misheard, own, shuffled
from coevolve.types import ToolResult


def named(say, words):
    """Who speaks where, and whether it was told something: "a-p0-0" and "b-p0-0"."""
    return f"{say.role}-{say.problem.id}-{say.member}-{say.round}"


def heard_by(one, role, change):
    """What the role is told when it mishears: {problem and member: texts}, in the order of asking."""
    task = Paid(one.task.worth, len(one.task.test))
    altered = scene(Misheard(task, role, change), named, one.play, one.cast, one.members)
    altered.played()
    return [(p, texts) for p, who, texts in task.heard if who == role]


@pytest.fixture
def pair():
    return scene(Paid(lambda a, b: 0.0, 3), named)


def test_blank(pair):
    heard = heard_by(pair, "b", messages.blank)
    assert heard == [(f"p{i}", [""]) for i in range(3) for _ in range(2)]


def test_shuffled_is_the_same_member_of_another_problem(pair):
    heard = heard_by(pair, "b", shuffled(pair.played(), 2))
    assert heard == [(f"p{i}", [f"a-p{(i + 1) % 3}-{member}-0"]) for i in range(3) for member in range(2)]


def test_shuffled_on_one_problem_is_another_member():
    one = scene(Paid(lambda a, b: 0.0, 1), named, members=3)
    heard = heard_by(one, "b", shuffled(one.played(), 3))
    assert heard == [("p0", [f"a-p0-{member}-0"]) for member in (1, 2, 0)]


def test_own_is_what_the_listener_said_itself(pair):
    heard = heard_by(pair, "b", own("b", pair.played()))
    assert heard[:2] == [("p0", ["b-p0-0-0"]), ("p0", ["b-p0-1-0"])]


def test_results_of_tools_are_no_notes():
    """They follow the turn that called in its own prompt, which no task makes: blanking them there changed nothing."""
    one = scene(Paid(lambda a, b: 0.0, 2), named)
    base = one.played()

    def settings(note):
        for episode in base:
            episode.turns[0].heard = [note]
        found = messages.rows(one, base, np.zeros((2, 2)))
        return [row["setting"] for row in found if row["role"] == "a"]

    assert settings("Try again.") == ["notes blank"]
    assert settings(ToolResult.of("add", "3")) == []


def test_nobody_else_mishears(pair):
    task = Paid(pair.task.worth, 3)
    scene(Misheard(task, "a", messages.blank), named).played()
    assert ("p0", "b", ["a-p0-0-0"]) in task.heard


def test_the_own_turn_stays_and_rounds_are_kept_apart():
    one = scene(Paid(lambda a, b: 0.0, 2), named, discussion(2), members=1)
    heard = heard_by(one, "b", shuffled(one.played(), 1))
    assert heard[:2] == [("p0", []), ("p1", [])]
    assert heard[2:4] == [("p0", ["a-p1-0-0", "b-p0-0-0"]), ("p1", ["a-p0-0-0", "b-p1-0-0"])]
    assert heard[4] == ("p0", ["a-p1-0-1", "b-p0-0-1"])


def test_a_play_that_was_shorter_elsewhere_is_heard_to_its_last_turn():
    """In p0 the second turn is not the last; the first of p1 is."""

    async def play(p, team):
        acts = []
        for _ in range(2 if p.id == "p0" else 1):
            acts.append(await team["a"]())
        for act in acts:
            await team["b"](act)
        from coevolve.play import score

        await score(team, acts[-1:])

    one = scene(Paid(lambda a: 0.0, 2), named, play, members=1)
    heard = heard_by(one, "b", shuffled(one.played(), 1))
    assert [texts for p, texts in heard if p == "p0"] == [["a-p1-0-0"], ["a-p1-0-0"]]


def test_a_role_that_did_not_speak_on_the_next_problem_is_heard_on_the_one_after():
    async def play(p, team):
        from coevolve.play import score

        acts = [] if p.id == "p1" else [await team["a"]()]
        await score(team, [await team["b"](*acts)])

    one = scene(Paid(lambda b: 0.0, 3), named, play, members=2)
    heard = heard_by(one, "b", shuffled(one.played(), 2))
    assert sorted(heard) == [
        *[("p0", ["a-p2-0-0"]), ("p0", ["a-p2-1-0"])],
        *[("p1", []), ("p1", [])],
        *[("p2", ["a-p0-0-0"]), ("p2", ["a-p0-1-0"])],
    ]
    alone = scene(Paid(lambda b: 0.0, 2), named, play, members=1)
    assert sorted(heard_by(alone, "b", shuffled(alone.played(), 1))) == [("p0", [""]), ("p1", [])]  # nobody else spoke


class Noting(Paid):
    solo = False

    def feedback(self, p, turns):
        return [f"note-{turn.role}" for turn in turns]

    def parts(self, cases):
        return [{"one": 1.0} for _ in cases]


def test_the_rest_of_the_task_passes_through():
    task = Noting(lambda a, b: 1.0, 2)
    wrapped = Misheard(task, "a", messages.blank)
    assert (wrapped.solo, wrapped.train, wrapped.test) == (False, task.train, task.test)
    assert wrapped.parts([1, 2]) == [{"one": 1.0}] * 2
    assert not hasattr(Misheard(Paid(lambda: 0.0), "a", messages.blank), "parts")
    assert not hasattr(Misheard(Paid(lambda: 0.0), "a", messages.blank), "feedback")


def rows(one):
    base = one.played()
    return list(messages.rows(one, base, one.returns(base)))


def test_what_there_is_to_change():
    def settings(task, play):
        return [(row["role"], row["setting"]) for row in rows(scene(task, named, play))]

    both = ["blank", "shuffled", "own"]
    assert settings(Paid(lambda a, b: 0.0, 2), chain()) == [("b", setting) for setting in both]
    assert settings(Paid(lambda a, b: 0.0, 2), chain(transfer=False)) == []
    assert settings(Paid(lambda a, b: 0.0, 2), rounds(2)) == []  # the notes are empty
    assert settings(Noting(lambda a, b: 0.0, 2), rounds(2, feedback=True)) == [(r, "notes blank") for r in CAST]
    assert settings(Paid(lambda a, b: 0.0, 2), discussion()) == [(r, setting) for r in CAST for setting in both]


def test_what_it_costs():
    """b is paid for naming the problem, which it knows from what it hears only."""

    def speak(say, words):
        return f"{say.problem.id}" if say.role == "a" else " ".join(words[2:])

    class Spelt(Paid):
        def reward(self, cases):
            return [[float(turn.text == case.problem.id) for turn in case.turns] for case in cases]

    found = {row["setting"]: row for row in rows(scene(Spelt(lambda: 0.0, 6), speak))}
    # b loses its 1, the mean over the two agents 0.5; its own answer was the problem's name too.
    for setting in ("blank", "shuffled"):
        row = found[setting]
        assert (row["reward"], row["difference"], row["low"], row["high"], row["n"]) == (0.5, -0.5, -0.5, -0.5, 6)
    assert (found["own"]["difference"], found["own"]["low"], found["own"]["high"]) == (0, 0, 0)
    assert found["blank"]["policy"] == "bob"


def test_blank_notes_are_only_that():
    task = Noting(lambda a, b: 0.0, 2)
    rows(scene(task, named, rounds(2, feedback=True), members=1))
    second = [(who, texts) for p, who, texts in task.heard if texts and p == "p0"]
    assert second[:2] == [("a", ["a-p0-0-0", "note-a"]), ("b", ["b-p0-0-0", "note-b"])]
    assert second[2:4] == [("a", ["a-p0-0-0", ""]), ("b", ["b-p0-0-0", "note-b"])]
    assert second[4:] == [("a", ["a-p0-0-0", "note-a"]), ("b", ["b-p0-0-0", ""])]
