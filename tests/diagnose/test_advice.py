"""How a team's pay comes about: by hand, on pay that is made of known parts, and what is said about it."""

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from parlour import Paid, scene

from coevolve import cli, noise, observers, rounds
from coevolve.diagnose import advice
from coevolve.recipe.read import load_recipe

ROOT = Path(__file__).parents[2]


def test_two_by_two_by_hand():
    # rows pay 1, 3 and columns 0, 4 more, and the last cell 2 besides
    own, partners, rest = advice.two_way(np.array([[[1.0, 5.0], [3.0, 9.0]]]))
    # row means 3, 6; column means 2, 7; mean 4.5; residuals +-0.5: 4 x 0.25 / 1 = 1
    assert rest == pytest.approx(1.0)
    assert own == pytest.approx((2 * 2 * 1.5**2 / 1 - 1) / 2)
    assert partners == pytest.approx((2 * 2 * 2.5**2 / 1 - 1) / 2)


def test_parts_of_known_variance_are_found():
    draws = np.random.default_rng(0).standard_normal
    own, partners, mixed = 2.0 * draws((4000, 4, 1)), 1.0 * draws((4000, 1, 4)), 0.5 * draws((4000, 4, 4))
    assert advice.two_way(own + partners + mixed) == pytest.approx((4.0, 1.0, 0.25), rel=0.06)


def numbers(say, words):
    return str(noise.integer(0, 9, say.key))


def digit(text):
    return float(text) if text else 0.0


def at_once(worth, members=6):
    return advice._at_once(scene(Paid(worth), numbers, play=rounds(), members=members))


def test_pay_that_adds_up_is_the_partners_luck_and_crossing_takes_it_away():
    found = at_once(lambda a, b: digit(a) + digit(b))
    [one, two] = found["rows"]
    assert one["own"] == pytest.approx(two["partners"])
    assert one["interaction"] == pytest.approx(0.0, abs=1e-9)
    priced = {row["credit"]: row for row in found["credits"]}
    assert priced["crossed"]["variance"] == pytest.approx(one["own"], rel=0.3)
    assert priced["team_return"]["variance"] == pytest.approx(one["own"] + one["partners"], rel=0.3)
    calls = {
        "team_return": 6,
        "first_joint of resampled": 11,
        "counterfactual": 66,
        "crossed, 2 shifts": 12,
        "crossed": 36,
    }
    assert {name: row["rewards"] for name, row in priced.items()} == calls


def test_two_shifts_of_two_members_are_all_joints():
    """Neighbours share a partner, which leave-one-out cancels: by hand for four members B (1/2 - 1/4) 4 / 3."""
    priced = {one["credit"]: one["variance"] for one in advice._priced(1.0, 1.0, 0.5, 2, 2, 1.0, 0.0)}
    assert priced["crossed, 2 shifts"] == priced["crossed"] == 1.25
    of_four = {one["credit"]: one["variance"] for one in advice._priced(1.0, 0.6, 0.5, 4, 2, 1.0, 0.0)}
    assert of_four == pytest.approx(
        {
            "team_return": 2.1,
            "first_joint of resampled": 1.5,
            "counterfactual": 1.5,  # 1.5 x 4 / 3 with its baseline, as the others have with theirs
            "crossed, 2 shifts": 1.0 + 0.6 / 3 + 0.25,
            "crossed": 1.125,
        }
    )


def test_rewards_are_timed_before_anything_is_remembered(monkeypatch):
    """A task that keeps what it has paid asks for 2 seconds a reward once, and for none later."""
    now, known = [0.0], set()

    class Keeps(Paid):
        def reward(self, cases):
            for case in cases:
                key = (case.problem.id, *(turn.text for turn in case.turns))
                now[0] += 0.0 if key in known else 2.0
                known.add(key)
            return super().reward(cases)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    count = itertools.count()
    found = advice._at_once(
        scene(Keeps(lambda a, b: digit(a)), lambda say, words: str(next(count)), play=rounds(), members=4)
    )
    assert (found["seconds_reward"], found["seconds_sampling"]) == (2.0, 0.0)


def test_a_part_below_zero_is_none():
    """As small samples have them. Of [[0, 1], [1, 0]] nothing is the row's or the column's own."""

    class Alternates(Paid):
        def reward(self, cases):
            return [[float(sum(turn.member for turn in case.turns) % 2)] * 2 for case in cases]

    found = advice._at_once(scene(Alternates(lambda **texts: 0.0), numbers, play=rounds(), members=2))
    assert [row["own"] for row in found["rows"]] == [-0.5, -0.5]
    assert "0% is its own, 0% its partners', 100% how they go together" in found["advice"][0]
    [said] = advice._said_of_luck(-0.1, 0.4, float("nan"))
    assert "no measurable difference" in said


def test_dear_rewards_are_not_asked_for_more_often():
    own, partners, mixed = 1.0, 0.2, 0.2
    free = advice._priced(own, partners, mixed, 4, 2, seconds_sampling=1.0, seconds_reward=0.0)
    dear = advice._priced(own, partners, mixed, 4, 2, seconds_sampling=1.0, seconds_reward=10.0)
    assert free[0]["credit"] == "crossed"
    assert dear[0]["credit"] == "team_return"
    assert "credit: crossed" in advice._said_at_once(own, partners, mixed, free)[-1]
    assert "no other credit is worth its rewards" in advice._said_at_once(own, partners, mixed, dear)[-1]
    assert "does not vary" in advice._said_at_once(0.0, 0.0, 0.0, free)[0]


def test_what_problems_differ_by():
    draws = np.random.default_rng(1).standard_normal
    own, partners, mixed = 2.0 * draws((4000, 4, 1)), 1.0 * draws((4000, 1, 4)), 0.5 * draws((4000, 4, 4))
    paid = own + partners + mixed
    assert advice.between(paid + 3.0 * draws((4000, 1, 1)), 4.0, 1.0, 0.25) == pytest.approx(9.0, rel=0.06)
    assert advice.between(paid, 4.0, 1.0, 0.25) == pytest.approx(0.0, abs=0.1)
    assert np.isnan(advice.between(paid[:1], 4.0, 1.0, 0.25))


def test_the_baseline_by_what_problems_differ_by():
    plain = {"credit": "team_return", "variance": 3.0}
    [alike] = advice._said_of_baselines(plain, 1.0, 1.0, 1.0, 0.125, 4)  # 3 x 4 / 3; 3 + 0.125
    assert "of its group it varies 4, against one number for the role 3.12; baseline: moving" in alike
    for differ, role in ((0.5, "3.5"), (2.0, "5")):  # saves too little; is worse
        [apart] = advice._said_of_baselines(plain, 1.0, 1.0, 1.0, differ, 4)
        assert f"the role {role}; baseline: loo" in apart
    crossed = {"credit": "crossed", "variance": 1.25}
    [found] = advice._said_of_baselines(crossed, 1.0, 1.0, 1.0, 0.5, 4)  # 1.25 x 4 / 3; 1 + 2 / 4 + 0.5
    assert "varies 1.67, against one number for the role 2;" in found
    assert advice._said_of_baselines(plain, 1.0, 1.0, 1.0, float("nan"), 4) == []


@pytest.mark.parametrize("times", [2, 0])
def test_the_second_ones_luck(times):
    # the first is paid so many times its digit, the second its own whatever it heard: luck is the variance of a digit
    class Each(Paid):
        def reward(self, cases):
            return [[times * digit(t.text) if t.role == "a" else digit(t.text) for t in case.turns] for case in cases]

    own, luck, cost = advice._nested(
        scene(Each(lambda **texts: 0.0, problems=100), numbers, play=observers(4), members=4)
    )
    of_a_digit = torch.arange(10.0).var(unbiased=False).item()
    assert luck == pytest.approx(of_a_digit, rel=0.1)
    assert own == pytest.approx(times**2 * of_a_digit, rel=0.2, abs=0.5)
    assert cost.keys() == {"seconds_sampling", "seconds_reward"}


def measured(slope, gain):
    return {name + end: value for name, three in (("slope", slope), ("gain", gain))
            for end, value in zip(("", "_low", "_high"), three, strict=True)}  # fmt: skip


@pytest.mark.parametrize(
    ("slope", "gain"),
    [
        ((0.6, 0.4, 0.8), (0.02, -0.1, 0.1)),  # a gain of 0 falls on this side in half of all measurements
        ((0.6, 0.4, 0.8), (-0.02, -0.1, 0.1)),
        ((0.35, 0.2, 0.5), (0.2, 0.1, 0.3)),
        ((0.6, 0.4, 0.8), (0.2, float("nan"), float("nan"))),
    ],
)
def test_whether_a_second_role_reads_is_open_if_its_interval_has_both_sides(slope, gain):
    said = advice._said_of_reading(measured(slope, gain))
    assert said[-1].startswith("whether the second one reads is open")
    assert "cory" not in str(said) and "hindsight" not in str(said)


def test_what_is_said_of_a_chain():
    nan = float("nan")
    said = advice._said_of_reading(measured((0.6, 0.4, 0.8), (0.2, 0.1, 0.3)))
    assert said[0] == (
        "slope of r2 on r1 0.60 [0.40, 0.80] (wants 0.3), gain of reading +0.200 [+0.100, +0.300] (wants above 0), "
        "with 95 % intervals"
    )
    assert "algorithm: {name: cory, credit: to_go}, by theory; not measured" in said[-1]
    for deaf in (
        measured((0.1, 0.0, 0.2), (0.2, 0.1, 0.3)),
        measured((0.6, 0.4, 0.8), (-0.1, -0.2, 0.0)),
        measured((nan, nan, nan), (0.1, 0.05, 0.2)),
    ):
        assert "algorithm: hindsight" in advice._said_of_reading(deaf)[-1]
    assert "50% is the second one's luck; best number of observers 1.00" in advice._said_of_luck(1.0, 1.0, 1.0)[0]


def test_the_command(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.main(["advise", "recipes/posg-chicken-joint.yaml", "--members", "8", "--problems", "1"]) == 0
    told = capsys.readouterr().out
    assert "rounds: 1 held-out problems, 8 times each, by start policies" in told
    assert "advice: of the variance of an agent's credit" in told
    chained = ["advise", "recipes/posg-chicken-joint.yaml", "task.game=trust", "play=chain", "--problems", "1"]
    assert cli.main(chained) == 0
    told = capsys.readouterr().out
    assert "is the second one's luck" in told
    assert "to sample a problem" in told
    assert "whether the second reads: the prompt of role 'second'" in told  # the game wants a move, not nothing
    numbers = ["recipes/cory-arithmetic-tiny.yaml", "--problems", "2", "--members", "2", "sampling.max_new_tokens=8"]
    assert cli.main(["advise", *numbers]) == 0
    assert "slope of r2 on r1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["recipes/grpo-writing-mini.yaml"], "advise is about teams; this one has one role, writer"),
        (
            ["recipes/posg-chicken-joint.yaml", "play=discussion"],
            "discussion of 2 roles is not measured; it knows chains",
        ),
        (["recipes/posg-chicken-joint.yaml", "--members", "1"], "advise: 1 members of a problem; want at least 2"),
        (["recipes/posg-chicken-joint.yaml", "--problems", "0"], "--problems is 0; want at least 1"),
        (["runs/none"], "runs/none"),
    ],
)
def test_what_it_is_not_for(words, message, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.main(["advise", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_chain_that_reads_nothing_is_refused_by_name():
    recipe = load_recipe(ROOT / "recipes" / "cory-sentiment-chain3.yaml")
    with pytest.raises(ValueError, match="chain of 3 roles is not measured"):
        advice.advise(recipe, problems=1, members=2)
