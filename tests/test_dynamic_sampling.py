"""Problems that were paid alike are joined by others: which ones, how many, how often, what a training makes of it."""

import pytest
from toy import Lucky, toy, without_times

from coevolve import Problem, dapo, grpo, rounds
from coevolve.dynamic_sampling import paid_alike, with_others
from coevolve.types import Episode, Joint, Turn

PROBLEMS = [Problem(f"p{i}") for i in range(8)]


def episode(problem, *joints, member=0):
    """joints: (rewards, after)."""
    made = Episode(problem, member)
    for rewards, after in joints:
        turns = tuple(Turn("a", "ann", problem, member, 0, [5], [6], [0.0], "", True) for _ in rewards)
        made.turns += turns
        made.joints.append(Joint(turns, rewards, after))
    return made


ROOT, THEN, ONE = None, 0, (1.0,)


@pytest.mark.parametrize(
    ("members", "alike"),
    [
        ([[((1.0,), ROOT)], [((1.0,), ROOT)]], True),
        ([[((1.0,), ROOT)], [((0.0,), ROOT)]], False),
        ([[((0.3,), ROOT)], [((0.1 + 0.2,), ROOT)]], True),  # rounding
        ([[((1.0, 2.0), ROOT)], [((1.0, 2.0), ROOT)]], True),  # each agent what it had before
        ([[((1.0, 2.0), ROOT)], [((2.0, 1.0), ROOT)]], False),
        ([[((1.0,), ROOT), ((2.0,), THEN)], [((1.0,), ROOT), ((2.0,), THEN)]], True),  # the second turn earns more
        ([[((1.0,), ROOT), ((2.0,), THEN)], [((1.0,), ROOT), ((3.0,), THEN)]], False),
        ([[((0.0,), ROOT), ((0.0,), THEN)], [((0.0,), ROOT)]], False),  # one stopped early
        ([[((1.0,), ROOT), ((1.0,), ROOT)]], True),  # a tree of one member
        ([[((1.0,), ROOT), ((0.0,), ROOT)]], False),
        ([[((-1.0,), ROOT)], [((-1.0,), ROOT)]], True),  # less than nothing
        ([[((-1.0,), ROOT)], [((-1.1,), ROOT)]], False),
        ([[((1.0,), ROOT)], [((1.0 + 1e-5,), ROOT)]], False),  # more than rounding
        # which branch goes on first does not matter, how many do does, also where as many are played
        ([[(ONE, ROOT), (ONE, 0), (ONE, ROOT), (ONE, 2)], [(ONE, ROOT), (ONE, ROOT), (ONE, 0), (ONE, 1)]], True),
        ([[(ONE, ROOT), (ONE, ROOT), (ONE, 0)], [(ONE, ROOT), (ONE, 0), (ONE, 0)]], False),
        ([[(ONE, ROOT), (ONE, 0)], [(ONE, ROOT), (ONE, 0), (ONE, 0)]], False),
    ],
)
def test_paid_alike(members, alike):
    assert paid_alike([episode(PROBLEMS[0], *joints, member=i) for i, joints in enumerate(members)]) is alike


class Played:
    """Pays both members of a problem alike, or not."""

    def __init__(self, differ):
        self.differ, self.calls = differ, []

    def __call__(self, problems):
        self.calls.append([p.id for p in problems])
        return [
            episode(p, ((float(member and p.id in self.differ),), ROOT), member=member)
            for p in problems
            for member in (0, 1)
        ]


def ids(episodes):
    return [one.problem.id for one in episodes[::2]]


def test_as_many_others_as_taught_nothing_until_all_do():
    play = Played({"p0", *(f"p{i}" for i in range(4, 8))})
    first = play(PROBLEMS[:3])  # p1 and p2 teach nothing
    found = with_others(first, PROBLEMS, play, 9, seed=0, step=0)
    assert found[: len(first)] == first, "what was played stays"
    assert len(play.calls[1]) == 2
    assert len(set(ids(found))) == len(ids(found)), "no problem twice"
    taught = [name for name in ids(found) if name in play.differ]
    assert len(taught) == 3, "as many as the step was to have"
    for before, after in zip(play.calls, play.calls[1:], strict=False):
        assert len(after) == sum(name not in play.differ for name in before)


def test_no_more_often_than_asked_and_not_beyond_the_problems_there_are():
    play = Played(set())
    first = play(PROBLEMS[:3])
    assert with_others(first, PROBLEMS, play, 0, 0, 0) == first
    assert len(with_others(first, PROBLEMS, Played(set()), 1, 0, 0)) == 2 * 6
    everything = with_others(first, PROBLEMS, play, 9, 0, 0)
    assert sorted(ids(everything)) == [p.id for p in PROBLEMS]


def test_which_ones_is_a_function_of_seed_and_step():
    first = Played(set())(PROBLEMS[:2])

    def drawn(seed, step):
        return ids(with_others(first, PROBLEMS, Played(set()), 1, seed, step))[2:]

    assert drawn(0, 0) == drawn(0, 0)
    assert len({tuple(drawn(seed, step)) for seed in range(4) for step in range(4)}) > 4


class HalfFlat(Lucky):
    """Every other problem pays 1 whatever is said."""

    def reward(self, cases):
        paid = super().reward(cases)
        return [[1.0] * len(of) if int(c.problem.id[1:]) % 2 else of for c, of in zip(cases, paid, strict=True)]


def trained(micro_model, task, rule, steps=2):
    settings = {"roles": ("a",), "play": rounds(), "members": 4, "batch_size": 4, "steps": steps, "algorithm": rule}
    trainer = toy(micro_model, **settings)
    trainer.task = task
    return trainer, [without_times(trainer.step(i)) for i in range(steps)]


def test_a_step_is_filled_up_and_the_same_twice(micro_model):
    trainer, lines = trained(micro_model, HalfFlat(), dapo(resample=3))
    assert lines == trained(micro_model, HalfFlat(), dapo(resample=3))[1]
    odd = {e.problem.id for e in trainer.episodes if int(e.problem.id[1:]) % 2}
    even = {e.problem.id for e in trainer.episodes} - odd
    assert odd and len(even) >= 4
    assert len(trainer.episodes) == 4 * (len(odd) + len(even)), "every problem by all members"
    _, plain = trained(micro_model, HalfFlat(), dapo(resample=0))
    assert plain[0]["turns"] == 16 < lines[0]["turns"]


def test_where_every_problem_teaches_nothing_changes(micro_model):
    class Different(Lucky):
        def reward(self, cases):
            return [[float(turn.member) for turn in case.turns] for case in cases]

    assert trained(micro_model, Different(), dapo())[1] == trained(micro_model, Different(), dapo(resample=0))[1]


def test_it_goes_with_what_leaves_groups_out():
    assert dapo().resample == 3
    assert grpo().resample == 0
    with pytest.raises(ValueError, match="resample plays others in place of groups that drop_flat leaves out"):
        grpo(resample=1)
    with pytest.raises(ValueError, match="group: peers"):
        dapo(group="role")
