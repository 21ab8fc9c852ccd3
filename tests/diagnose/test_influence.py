"""Who moves the return, in games where that is known."""

import math

import numpy as np
import pytest
from parlour import CAST, Paid, Parlour, coin, scene

from coevolve import Problem, Sampling
from coevolve.diagnose import influence
from coevolve.report.findings import verdicts
from coevolve.types import Say

ENDS = {"ann": [0], "bob": [0]}


def found(worth, speak=coin, members=16, **settings):
    """{(role, setting): row}"""
    one = scene(Paid(worth), speak, members=members, **settings)
    rows = influence.rows(one, one.returns(one.played()), ENDS)
    return {(row["role"], row["setting"]): row for row in rows}


def test_jansens_estimate():
    base = np.array([[0.0, 2.0], [1.0, 3.0]])  # variance within either problem: (1 + 1) / (2 - 1) = 2
    first = np.array([[1.0, 2.0], [1.0, 4.0]])  # halved squares 0.5, 0 and 0, 0.5: mean 0.25
    second = np.array([[2.0, 0.0], [3.0, 1.0]])  # 2 everywhere
    base, first, second = (np.tile(one, (3, 1)) for one in (base, first, second))
    rows = influence.total_effects(base, np.stack([first, second]))
    assert [row["effect"] for row in rows] == [0.25 / 2, 2 / 2]
    assert [row["share"] for row in rows] == [pytest.approx(1 / 9), pytest.approx(8 / 9)]
    assert (rows[1]["effect_low"], rows[1]["effect_high"]) == (1, 1)  # all problems say the same


def test_of_one_problem_the_members_are_the_units():
    # Mean 1, squared deviations of 1, variance 8/7; the first is drawn anew with squares 4, 0, 0, ...: mean half 0.25.
    base, anew = np.array([[0.0, 2.0] * 4]), np.array([[2.0, 2.0] + [0.0, 2.0] * 3])
    [row] = influence.total_effects(base, anew[None])
    assert row["effect"] == pytest.approx(0.25 / (8 / 7))
    assert row["effect_low"] == 0 < row["effect_high"]


@pytest.mark.parametrize("same", [np.ones((3, 2)), np.full((3, 85), 0.1)])
def test_a_return_that_does_not_vary_has_no_causes(same):
    [row] = influence.total_effects(same, same[None])
    assert all(map(math.isnan, row.values()))


def test_how_hard_a_problem_is_does_not_count():
    base, anew = np.array([[0.0, 2.0], [1.0, 3.0]] * 3), np.array([[2.0, 0.0], [3.0, 1.0]] * 3)
    harder = np.array([[0.0], [100.0]] * 3)
    assert influence.total_effects(base + harder, (anew + harder)[None]) == influence.total_effects(base, anew[None])


def test_a_role_whose_other_turns_the_task_refuses_is_a_reason_and_not_the_end():
    calls = []

    def worth(a, b):
        calls.append(a)
        if len(calls) > 64 * 16 * 2:  # from the second role's turns on
            raise ValueError("enough")
        return float(a)

    rows = found(worth)
    assert "effect" not in rows["a", "redrawn"]
    assert rows["a", "redrawn"]["reward"] > 0
    assert "enough" in rows["b", "redrawn"]["reason"]
    said = verdicts.influence(list(rows.values()))
    assert said.startswith("Whose choices move the return cannot be told: with the turns of b drawn anew it cannot be")


def test_only_the_first_counts():
    rows = found(lambda a, b: float(a))
    second = rows["b", "redrawn"]
    assert (second["effect"], second["effect_high"], second["share"], second["share_high"]) == (0, 0, 0, 0)
    assert rows["a", "redrawn"]["effect"] == pytest.approx(1, abs=0.1)
    assert rows["a", "redrawn"]["share"] == 1


def test_a_sum_is_divided_by_variance():
    # Var(2a + b) = 4/4 + 1/4: the total effects are 4/5 and 1/5.
    rows = found(lambda a, b: 2 * float(a) + float(b))
    for role, share in (("a", 0.8), ("b", 0.2)):
        row = rows[role, "redrawn"]
        assert row["share"] == pytest.approx(share, abs=0.04)
        assert row["share_low"] < share < row["share_high"]
        assert row["effect"] == pytest.approx(share, abs=0.08)


def test_an_interaction_is_everybodys():
    # a xor b: whoever is drawn anew, the return is that of another coin.
    rows = found(lambda a, b: float(a != b))
    assert rows["a", "redrawn"]["effect"] == pytest.approx(1, abs=0.1)
    assert rows["b", "redrawn"]["effect"] == pytest.approx(1, abs=0.1)


def test_influence_goes_through_what_is_heard():
    def parrot(say, words):
        return words[-1] if say.role == "b" else coin(say, words)

    rows = found(lambda a, b: float(b), parrot)
    assert rows["a", "redrawn"]["share"] == 1
    assert rows["b", "redrawn"]["effect"] == 0


def test_what_silence_costs():
    def constant(say, words):
        return "three words now" if say.role == "a" else coin(say, words)

    rows = found(lambda a, b: float(len(a.split())) + float(b or 0), constant)
    assert rows["a", "redrawn"]["effect"] == 0  # it always says the same, and is worth something all the same
    silent = rows["a", "silent"]
    assert (silent["difference"], silent["low"], silent["high"]) == (-3, -3, -3)
    # Half a coin, give or take three standard errors of 0.5 / sqrt(64 * 16).
    assert rows["b", "silent"]["difference"] == pytest.approx(-0.5, abs=0.05)


def test_silence_that_the_task_refuses_has_a_reason():
    rows = found(lambda a, b: int(a) + int(b))
    assert "invalid literal for int()" in rows["a", "silent"]["reason"]
    assert "reward" not in rows["a", "silent"]


def test_a_single_role_is_not_compared():
    assert found(lambda a: float(a), cast={"a": "ann"}) == {}


def test_silent_turns_are_put_where_they_were_asked_for():
    asked = [Say(role, "ann", Problem("p"), 0, 0, [5], Sampling(4), 1) for role in ("a", "b", "a", "b")]
    loud = Parlour(lambda say, words: "hello")
    loud.read = lambda ids: ""
    turns = influence.Silent(loud, "a", {"ann": [7]}).generate({"ann": asked})["ann"]
    assert [turn.text for turn in turns] == ["", "hello", "", "hello"]
    assert (turns[0].action_ids, turns[0].logps, turns[0].finished) == ([7], [0.0], True)
    assert [len(call["ann"]) for call in loud.calls] == [2]
    [nothing] = influence.Silent(loud, "a", {"ann": []}).generate({"ann": asked[:1]})["ann"]
    assert (nothing.action_ids, nothing.finished) == ([], False)


def test_only_one_roles_numbers_are_drawn_anew():
    asked = [Say(role, CAST[role], Problem("p"), 0, 0, [5], Sampling(4), 1) for role in ("a", "b")]
    engine = Parlour(lambda say, words: "hello")
    engine.read = lambda ids: ""
    influence.Redrawn(engine, "a").generate({"ann": asked[:1], "bob": asked[1:]})
    [call] = engine.calls
    assert call["ann"][0].key != 1
    assert call["bob"][0].key == 1


def test_a_changed_engine_says_how_long_a_context_is():
    class Knows:
        def context(self, policy):
            return {"ann": 7}[policy]

    for one in (influence.Redrawn(Knows(), "a"), influence.Silent(Knows(), "a", {}), influence.Redrawn(object(), "a")):
        assert one.context("ann") == (7 if isinstance(one.engine, Knows) else None)
