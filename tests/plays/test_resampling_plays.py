"""resampled, observers, hinted, misheard with the scripted engine: who hears what, is paid together, is compared."""

import pytest
from lesson_cases import asked, collated
from test_magrpo_plays import CAST, Numbers, P, played, shapes

from coevolve.credit import first_joint, own_reward, team_return
from coevolve.engines.scripted import ScriptedEngine
from coevolve.plays import chain, discussion, hinted, misheard, observers, resampled, rounds
from coevolve.rollout import Stage, rollout
from coevolve.types import Problem, Sampling


def test_one_agents_turn_is_said_again_beside_the_same_partner():
    script = {("a", "p", 0, i): text for i, text in enumerate("359")} | {
        ("b", "p", 0, i): text for i, text in enumerate(("10", "20", "40"))
    }
    episodes, engine, _ = played(resampled(3), script=script)
    assert shapes(engine) == [{"ann": 3, "bob": 3}]
    said = [tuple(turn.text for turn in joint.turns) for joint in episodes[0].joints]
    assert said == [("3", "10"), ("5", "10"), ("9", "10"), ("3", "20"), ("3", "40")]
    assert asked(first_joint(), episodes[0]) == [13.0, 15.0, 19.0, 13.0, 23.0, 43.0]
    # what a turn earned in all its joints has its partners' other turns in it: (13 + 23 + 43) / 3, (13 + 15 + 19) / 3
    assert asked(team_return(), episodes[0])[0] == pytest.approx(79 / 3)
    batch = collated(episodes, first_joint(), "ann")
    assert batch.peers_B.tolist() == [0, 0, 0]
    assert batch.weight_B.tolist() == pytest.approx([1.0, 1.0, 1.0])  # 1/3 each, three turns of hers


def test_the_best_joint_of_all_that_were_paid_goes_on():
    script = {("a", "p", 0, i): text for i, text in enumerate("3512")} | {
        ("b", "p", 0, i): text for i, text in enumerate("1940")
    }
    episodes, engine, task = played(resampled(2, 2, feedback=True), script=script)
    assert shapes(engine) == [{"ann": 2, "bob": 2}] * 2
    # joints pay 3 + 1, 5 + 1, 3 + 9: the last one goes on
    assert task.heard[4:] == [("p", "a", ["a3", "note on a3"])] * 2 + [("p", "b", ["b9", "note on b9"])] * 2
    assert [(joint.after, joint.answered) for joint in episodes[0].joints] == [(None, False)] * 3 + [(2, False)] * 3
    assert collated(episodes, first_joint(), "ann").peers_B.tolist() == [0, 0, 1, 1]


def test_observers_share_what_they_heard():
    script = {("a", "p", m, 0): f"{m + 1}" for m in range(2)} | {
        ("b", "p", m, i): f"{10 * (i + 1) + m}" for m in range(2) for i in range(2)
    }
    episodes, engine, task = played(observers(2), members=2, script=script)
    assert shapes(engine) == [{"ann": 2}, {"bob": 4}]
    assert task.heard[2:] == [("p", "b", ["a1"])] * 2 + [("p", "b", ["a2"])] * 2
    # joints pay 1 + 10, 1 + 20; 2 + 11, 2 + 21: the pioneer the mean over its observers
    assert asked(team_return(), episodes[0]) == [16.0, 11.0, 21.0]
    pioneers, others = (collated(episodes, team_return(), name) for name in ("ann", "bob"))
    assert pioneers.peers_B.tolist() == [0, 0]
    assert others.peers_B.tolist() == [0, 0, 1, 1]
    assert others.weight_B.tolist() == [1.0] * 4  # half each, two turns an episode


def test_hinted_answers_stand_beside_what_they_heard():
    script = {("a", "p", 0, 0): "1", ("b", "p", 0, 0): "2", ("a", "p", 0, 1): "30", ("b", "p", 0, 1): "40"}
    episodes, engine, task = played(hinted(), script=script)
    assert shapes(engine) == [{"ann": 1, "bob": 1}] * 2
    assert task.heard == [("p", "a", []), ("p", "b", []), ("p", "a", ["b2"]), ("p", "b", ["a1"])]
    said = [tuple(turn.text for turn in joint.turns) for joint in episodes[0].joints]
    assert said == [("1", "2"), ("30", "2"), ("1", "40")]
    assert asked(first_joint(), episodes[0]) == [3.0, 3.0, 32.0, 41.0]
    # none continues another: what first answers earned is the mean of their joints, (3 + 41) / 2 and (3 + 32) / 2
    assert [joint.after for joint in episodes[0].joints] == [None] * 3
    assert asked(team_return(), episodes[0]) == [22.0, 17.5, 32.0, 41.0]
    three, engine, task = played(hinted(), cast={role: role.upper() for role in "abc"})
    assert task.heard[3:] == [("p", "a", ["b0", "c0"]), ("p", "b", ["a0", "c0"]), ("p", "c", ["a0", "b0"])]
    assert len(three[0].joints) == 4


def test_every_digit_that_is_misheard_is_another_one():
    script = {("a", "p", member, 0): "305" for member in range(4)} | {("b", "p", m, 0): "7" for m in range(4)}
    episodes, engine, task = played(misheard(1.0), members=4, script=script)
    assert shapes(engine) == [{"ann": 4}, {"bob": 4}]
    heard = [told.removeprefix("a") for _, _, [told] in task.heard[4:]]
    assert all(len(text) == 3 and all(x != y for x, y in zip(text, "305", strict=True)) for text in heard)
    assert len(set(heard)) > 1
    assert [[turn.text for turn in e.joints[0].turns] for e in episodes] == [["305", "7"]] * 4  # what was said is paid
    assert played(misheard(1.0), members=4, script=script)[2].heard == task.heard


def test_how_often_is_misheard():
    problems = [Problem(f"{i}") for i in range(400)]
    for rate in (0.0, 0.3, 1.0):
        _, _, task = played(misheard(rate), problems=problems, script=lambda role, problem, *_: problem)
        wrong = [heard != [f"a{problem}"] for problem, _, heard in task.heard[400:]]
        assert sum(wrong) / 400 == pytest.approx(rate, abs=0.07 if 0 < rate < 1 else 0)


def test_what_is_misheard_is_another_thing_at_every_step_and_seed():
    """Also of a pioneer that never learns, whose words and version stay as they are."""

    def heard(**names):
        task = Numbers()
        stage = Stage(CAST, task, ScriptedEngine(lambda *_: "305"), Sampling(8), **names)
        rollout(misheard(0.5), [Problem("p")], stage)
        return task.heard[1][2]

    assert heard(seed=1) == heard(seed=1)
    assert len({str(heard(seed=1, step=step)) for step in range(30)}) > 5
    assert len({str(heard(seed=seed)) for seed in range(30)}) > 5


def test_the_first_joint_of_a_turn_that_is_part_of_one_only_is_what_it_was_paid():
    for play in (rounds(), chain()):
        [episode] = played(play)[0]
        assert asked(first_joint(), episode) == asked(own_reward(), episode)
    with pytest.raises(
        ValueError, match="first_joint: problem 'p': a turn of role 'a' was part of no joint; team_return"
    ):
        asked(first_joint(), played(discussion())[0][0])


@pytest.mark.parametrize(
    ("make", "roles", "message"),
    [
        (lambda: observers(2), "abc", "observers is for two roles, this team has 3; use chain"),
        (hinted, "a", "hinted is for several roles, who read each other; use rounds for one"),
        (lambda: resampled(1), "ab", "k is 1; want at least 2"),
        (lambda: resampled(2, 0), "ab", "n is 0; want at least 1"),
        (lambda: misheard(0.5), "abc", "misheard is for two roles, this team has 3; use chain"),
        (lambda: observers(1), "ab", "m is 1; want at least 2"),
    ],
)
def test_what_a_play_is_not_for(make, roles, message):
    stage = Stage({role: role for role in roles}, Numbers(), ScriptedEngine(lambda *place: "1"), Sampling(4))
    with pytest.raises(ValueError, match=message):
        rollout(make(), P[:1], stage)
