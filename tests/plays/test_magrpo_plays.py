"""rounds, tree, best_of, discussion with the scripted engine: who hears what, in how many calls, who is compared."""

import pytest
from lesson_cases import asked, collated

from coevolve.credit import team_return
from coevolve.engines.scripted import ScriptedEngine
from coevolve.measure import endings
from coevolve.play import score, together
from coevolve.plays import PLAYS, best_of, discussion, rounds, tree
from coevolve.recipe.components import component
from coevolve.rollout import Stage, rollout
from coevolve.runs.record import records
from coevolve.types import Problem, Sampling

CAST = {"a": "ann", "b": "bob"}
P = (Problem("p"), Problem("q"))


class Numbers:
    """A turn says its round; the team is paid the sum of what was said. Notes quote nobody, but name the round."""

    train = test = P

    def __init__(self):
        self.heard, self.noted = [], []

    def prompt(self, p, role, heard):
        self.heard.append((p.id, role, [h if isinstance(h, str) else f"{h.role}{h.text}" for h in heard]))
        return f"{p.id} {role}"

    def reward(self, cases):
        return [[float(sum(int(t.text) for t in case.turns))] * len(case.turns) for case in cases]

    def feedback(self, p, turns):
        self.noted.append([t.text for t in turns])
        return [f"note on {t.role}{t.text}" for t in turns]


def played(play, members=1, problems=P[:1], script=lambda role, problem, member, number: str(number), cast=CAST):
    task, engine = Numbers(), ScriptedEngine(script)
    return rollout(play, problems, Stage(cast, task, engine, Sampling(4)), members=members), engine, task


def shapes(engine):
    return [{name: len(says) for name, says in call.items()} for call in engine.calls]


def test_one_round_is_one_call_in_which_nobody_hears_anybody():
    episodes, engine, task = played(rounds(), members=3, problems=P)
    assert shapes(engine) == [{"ann": 6, "bob": 6}]
    assert all(heard == [] for _, _, heard in task.heard)
    assert [len(e.joints) for e in episodes] == [1] * 6
    assert collated(episodes, team_return(), "ann").peers_B.tolist() == [0, 0, 0, 1, 1, 1]


def test_rounds_hear_their_own_history_only():
    episodes, engine, task = played(rounds(3, feedback=True))
    assert shapes(engine) == [{"ann": 1, "bob": 1}] * 3
    assert task.heard[2:4] == [("p", "a", ["a0", "note on a0"]), ("p", "b", ["b0", "note on b0"])]
    assert task.heard[4] == ("p", "a", ["a0", "note on a0", "a1", "note on a1"])
    assert [joint.after for joint in episodes[0].joints] == [None, 0, 1]
    # turns pay 0, 2, 4: returns 6, 6, 4
    assert asked(team_return(), episodes[0]) == [6.0, 6.0, 6.0, 6.0, 4.0, 4.0]


def test_rounds_without_feedback_hear_an_empty_note():
    _, _, task = played(rounds(2))
    assert task.heard[2] == ("p", "a", ["a0", ""])
    assert task.noted == []


def test_a_reward_sees_what_came_before():
    histories = []

    class Nosy(Numbers):
        def reward(self, cases):
            histories.extend([[t.text for t in joint] for joint in case.history] for case in cases)
            return super().reward(cases)

    def play(which):
        stage = Stage(CAST, Nosy(), ScriptedEngine(lambda role, p, member, number: str(number)), Sampling(4))
        rollout(which, P[:1], stage)

    play(rounds(3))
    assert histories == [[], [["0", "0"]], [["0", "0"], ["1", "1"]]]
    histories.clear()
    play(tree(2, 2))
    assert histories == [[], [], [["0", "0"]], [["0", "0"]], [["1", "1"]], [["1", "1"]]]


def test_joints_scored_at_once_need_to_be_told_apart():
    def apart(say_which):
        async def play(p, team):
            before = {"a": (), "b": ()}
            for _ in range(2):
                a, b = await together(team["a"](), team["b"]())
                after = before if say_which else {"a": None, "b": None}
                await together(score(team, [a], after["a"]), score(team, [b], after["b"]))
                before = {"a": [a], "b": [b]}

        return play

    episodes, _, _ = played(apart(True))
    assert [joint.after for joint in episodes[0].joints] == [None, None, 0, 1]
    with pytest.raises(ValueError, match="problem 'p': scores without `after` where several joints were scored at"):
        played(apart(False))


def test_a_draft_answers_for_the_joint_of_those_who_heard_it():
    async def branch(team, role):
        draft = await team[role]()
        final = await team[role](draft)
        await score(team, [final], after=())

    async def play(p, team):
        await together(branch(team, "a"), branch(team, "b"))

    script = {("a", "p", 0, 0): "0", ("a", "p", 0, 1): "3", ("b", "p", 0, 0): "0", ("b", "p", 0, 1): "7"}
    episodes, _, _ = played(play, script=script)
    assert [turn.role for turn in episodes[0].turns] == ["a", "b", "a", "b"]
    assert asked(team_return(), episodes[0]) == [3.0, 7.0, 3.0, 7.0]


def ended(play, script):
    """What each ending is paid, and how much it counts."""
    episodes, _, _ = played(play, script=lambda role, p, member, number: str(script[number]), cast={"a": "ann"})
    return [(joint.rewards[0], weight) for joint, weight in endings(episodes[0])]


def test_what_an_interaction_came_to():
    assert ended(rounds(3), [1, 2, 3]) == [(3.0, 1.0)]
    assert ended(tree(2, 2), range(6)) == [(2.0, 0.25), (3.0, 0.25), (4.0, 0.25), (5.0, 0.25)]
    # The first branch is done at once and stands for half of what may happen.
    assert ended(tree(2, 2, done=5.0), [9, 1, 1, 1]) == [(9.0, 0.5), (1.0, 0.25), (1.0, 0.25)]
    # A draft that was not chosen led nowhere.
    assert ended(best_of(2, 2), [0, 1, 10, 12]) == [(10.0, 0.5), (12.0, 0.5)]


def test_members_of_the_same_round_are_peers():
    episodes, _, _ = played(rounds(2), members=2)
    assert collated(episodes, team_return(), "ann").peers_B.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("done", [0, 1.5, lambda rewards: rewards == [2.0, 2.0]])
def test_rounds_stop_when_told_to_and_not_before(done):
    episodes, engine, _ = played(rounds(5, done=done))
    assert len(engine.calls) == 2  # pays 0, then 2
    assert len(episodes[0].joints) == 2
    _, engine, _ = played(rounds(5))
    assert len(engine.calls) == 5


def test_a_tree_has_its_nodes_groups_shares_and_returns():
    episodes, engine, task = played(tree(2, 2, feedback=True))
    episode = episodes[0]
    assert shapes(engine) == [{"ann": 2, "bob": 2}, {"ann": 4, "bob": 4}]
    assert [joint.after for joint in episode.joints] == [None, None, 0, 0, 1, 1]
    batch = collated(episodes, team_return(0.5), "ann")
    assert batch.peers_B.tolist() == [0, 0, 1, 1, 2, 2]
    # one root of two: 1/2 each; two nodes of two: 1/4 each; six turns an episode
    assert batch.weight_B.tolist() == [3.0, 3.0, 1.5, 1.5, 1.5, 1.5]
    # a and b say 0, 1 | 2, 3 | 4, 5; joints pay 0, 2 | 4, 6 | 8, 10: 0 + 0.5 * 5 = 2.5, 2 + 0.5 * 9 = 6.5
    assert batch.credit_B.tolist() == [2.5, 6.5, 4.0, 6.0, 8.0, 10.0]
    assert task.heard[4:6] == [("p", "a", ["a0", "note on a0"])] * 2
    assert task.heard[8] == ("p", "a", ["a1", "note on a1"])
    assert len({(t.role, t.round) for t in episode.turns}) == 12  # every turn draws its own random numbers


def test_crossed_responses_are_paid_the_mean_over_their_partners():
    script = {("a", "p", 0, 0): "1", ("a", "p", 0, 1): "2", ("b", "p", 0, 0): "10", ("b", "p", 0, 1): "30"}
    episodes, _, _ = played(tree(1, 2, joint="cross"), script=script)
    # joints pay 11, 31, 12, 32: a gets 21 and 22, b 11.5 and 31.5
    assert len(episodes[0].joints) == 4
    assert collated(episodes, team_return(), "ann").credit_B.tolist() == [21.0, 22.0]
    assert collated(episodes, team_return(), "bob").credit_B.tolist() == [11.5, 31.5]
    assert [t.reward for t in episodes[0].turns] == [21.0, 22.0, 11.5, 31.5]


def test_the_crossed_tree_grows_from_every_combination():
    episodes, engine, _ = played(tree(2, 2, joint="cross"))
    assert shapes(engine) == [{"ann": 2, "bob": 2}, {"ann": 8, "bob": 8}]  # 4 joints, 2 responses below each
    # 10 turns an agent: a root of two, 1/2 each; below it four nodes of two, 1/8 each
    assert collated(episodes, team_return(), "ann").weight_B.tolist() == [5.0] * 2 + [1.25] * 8
    _, engine, _ = played(tree(1, 2, joint="cross"), cast={"a": "ann", "b": "bob", "c": "cat"})
    assert shapes(engine) == [{"ann": 2, "bob": 2, "cat": 2}]


def test_the_tree_is_written_down():
    episodes, _, _ = played(tree(2, 2))
    [record] = records(episodes[:1], {}, {})
    # turns: a a b b | a a b b below the first joint, a a b b below the second
    assert [(one["turns"], one["after"]) for one in record["joints"][:4]] == [
        ([0, 2], None),
        ([1, 3], None),
        ([4, 6], 0),
        ([5, 7], 0),
    ]
    assert record["joints"][1]["rewards"] == [2.0, 2.0]
    assert [turn["heard"] for turn in record["turns"][:5]] == [[], [], [], [], [0, ""]]
    episodes, _, _ = played(rounds(2, feedback=True))
    [record] = records(episodes[:1], {}, {})
    assert [turn["heard"] for turn in record["turns"]] == [[], [], [0, "note on a0"], [1, "note on b0"]]


def test_a_done_branch_does_not_grow():
    # root joints pay 0 and 2; the second is done
    episodes, engine, _ = played(tree(2, 2, done=1.0))
    assert shapes(engine)[1] == {"ann": 2, "bob": 2}
    assert [joint.after for joint in episodes[0].joints] == [None, None, 0, 0]
    # four turns an agent: 1/2 each at the root, 1/4 each below, as if the done branch had grown too
    assert collated(episodes, team_return(), "ann").weight_B.tolist() == [2.0, 2.0, 1.0, 1.0]


def test_best_of_lets_the_best_joint_go_on_and_pays_each_turn_its_own():
    script = {("a", "p", 0, i): text for i, text in enumerate("3512")} | {
        ("b", "p", 0, i): text for i, text in enumerate("0040")
    }
    episodes, engine, task = played(best_of(2, 2, feedback=True, weights=[1.2, 0.8]), script=script)
    assert shapes(engine) == [{"ann": 2, "bob": 2}] * 2
    assert task.heard[4:] == [("p", "a", ["a5", "note on a5"])] * 2 + [("p", "b", ["b0", "note on b0"])] * 2
    batch = collated(episodes, team_return(), "ann")
    assert batch.credit_B.tolist() == [3.0, 5.0, 5.0, 2.0]  # 3 + 0, 5 + 0 | 1 + 4, 2 + 0
    assert [joint.after for joint in episodes[0].joints] == [None, None, 1, 1]
    assert batch.peers_B.tolist() == [0, 0, 1, 1]
    assert batch.weight_B.tolist() == pytest.approx([2.4, 2.4, 1.6, 1.6])  # 4 turns * 1.2 / 2, 4 * 0.8 / 2


def test_a_discussion_hears_everybody_and_pays_the_last_round():
    episodes, engine, task = played(discussion())
    assert shapes(engine) == [{"ann": 1, "bob": 1}] * 2
    assert task.heard[2:] == [("p", "a", ["a0", "b0"]), ("p", "b", ["a0", "b0"])]
    assert [t.reward for t in episodes[0].turns] == [None, None, 2.0, 2.0]
    assert asked(team_return(), episodes[0]) == [2.0] * 4  # the first round answers for the last


def test_a_discussion_of_two_rounds_hears_the_round_before_only():
    episodes, engine, task = played(discussion(2))
    assert shapes(engine) == [{"ann": 1, "bob": 1}] * 3
    assert task.heard[4:] == [("p", "a", ["a1", "b1"]), ("p", "b", ["a1", "b1"])]
    assert [t.reward for t in episodes[0].turns] == [None] * 4 + [4.0, 4.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rounds(0), "n is 0"),
        (lambda: tree(1, 1), "k is 1"),
        (lambda: best_of(2, 1), "k is 1"),
        (lambda: best_of(2, 2, weights=[1.0]), "want 2, one per turn"),
        (lambda: discussion(0), "n is 0"),
    ],
)
def test_settings_out_of_range_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_recipes_done_is_a_number():
    assert component({"name": "rounds", "n": 2, "done": 2}, PLAYS, "play")
    with pytest.raises(ValueError, match=r"play: done.*True"):
        component({"name": "rounds", "n": 2, "done": True}, PLAYS, "play")
    with pytest.raises(ValueError, match="play: done: input should be a valid number, found True"):
        rounds(2, done=True)


def test_feedback_that_is_missing_or_misshapen_is_named():
    class Mute:
        train = test = P
        reward = Numbers.reward

        def prompt(self, p, role, heard):
            return p.id

    stage = Stage(CAST, Mute(), ScriptedEngine(lambda *place: "1"), Sampling(4))
    with pytest.raises(ValueError, match="problem 'p': the play wants feedback between turns; Mute has no `feedback`"):
        rollout(rounds(2, feedback=True), P[:1], stage)
    with pytest.raises(ValueError, match="feedback returned 'well done'; want a list of 2 texts"):
        played(rounds(2, feedback=lambda p, turns: "well done"))


def test_scoring_after_turns_that_were_never_scored_together_is_named():
    async def lost(p, team):
        first = await team["a"]()
        second = await team["b"]()
        await score(team, [second], after=[first])

    with pytest.raises(ValueError, match="problem 'p': scores turns `after` turns that were not scored together"):
        played(lost)


def test_any_number_of_agents():
    cast = {role: role.upper() for role in "abcd"}
    episodes, engine, _ = played(rounds(2, feedback=True), cast=cast)
    assert shapes(engine) == [{"A": 1, "B": 1, "C": 1, "D": 1}] * 2
    assert [len(joint.turns) for joint in episodes[0].joints] == [4, 4]
    assert [turn.policy for turn in episodes[0].turns] == [*"ABCDABCD"]


@pytest.mark.parametrize(
    ("make", "notes"),
    [
        (rounds, 1),
        (lambda n, feedback: best_of(n, 2, feedback), 1),
        (lambda n, feedback: tree(n, 2, feedback=feedback), 2),
    ],
)
def test_nobody_is_asked_for_a_note_that_nobody_hears(make, notes):
    asked = []

    def feedback(p, turns):
        asked.append(turns)
        return ["note"] * len(turns)

    played(make(2, feedback=feedback))
    assert len(asked) == notes  # on the first turn only; a tree's has two joints
