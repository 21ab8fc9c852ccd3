"""The same policies in other seats."""

import pytest
from parlour import Paid, coin, scene

from coevolve.diagnose.casts import alone, permutations, swapped
from coevolve.diagnose.scene import condition


def of_policy(say, words):
    """ann is worth 3 in role a and 1 elsewhere, others 1."""
    return "3" if (say.role, say.policy) == ("a", "ann") else "1"


def total(**texts):
    return float(sum(map(int, texts.values())))


def orders(*names):
    return ["".join(cast.values()) for cast in permutations(dict(zip("abcd", names, strict=False)))]


def test_every_other_order_of_up_to_three_roles():
    assert orders("x") == []
    assert orders("x", "y") == ["yx"]
    assert orders("x", "y", "z") == ["xzy", "yxz", "yzx", "zxy", "zyx"]


def test_cyclic_shifts_of_four():
    assert orders("x", "y", "z", "w") == ["yzwx", "zwxy", "wxyz"]


def test_a_policy_in_two_roles_makes_fewer_casts():
    assert orders("x", "x") == []
    assert orders("x", "x", "y") == ["xyx", "yxx"]
    assert orders("x", "y", "x", "y") == ["yxyx"]


def test_what_a_swap_costs():
    one = scene(Paid(total, 6), of_policy)
    [row] = swapped(one, one.returns(one.played()))
    assert (row["setting"], row["role"], row["policy"]) == ("a=bob, b=ann", "all", "bob+ann")
    assert (row["reward"], row["difference"], row["low"], row["high"]) == (2, -2, -2, -2)  # 3 + 1 against 1 + 1


def test_alone_is_the_first_role_on_the_bare_prompt():
    one = scene(Paid(total, 3), of_policy)
    base = one.returns(one.played())
    one.task.heard.clear()
    rows = list(alone(one, base))
    assert [(row["role"], row["policy"], row["reward"], row["difference"]) for row in rows] == [
        ("a", "ann", 3, -1),
        ("a", "bob", 1, -3),
    ]
    assert {(role, *texts) for _, role, texts in one.task.heard} == {("a",)}


def test_a_policy_in_two_roles_is_alone_once_and_named_once():
    one = scene(Paid(total, 3), of_policy, cast={"a": "ann", "b": "bob", "c": "ann"})
    base = one.returns(one.played())
    assert [(row["role"], row["policy"], row["reward"]) for row in alone(one, base)] == [
        ("a", "ann", 3),
        ("a", "bob", 1),
    ]
    assert [row["policy"] for row in swapped(one, base)] == ["ann+bob", "bob+ann"]


class Joint(Paid):
    solo = False


def test_nobody_is_alone_where_the_task_does_not_pay_it_or_the_team_is_one():
    one = scene(Joint(total, 3), of_policy)
    assert list(alone(one, one.returns(one.played()))) == []
    one = scene(Paid(total, 3), of_policy, cast={"a": "ann"})
    assert list(alone(one, one.returns(one.played()))) == []


def test_the_return_is_the_mean_over_agents_by_problem_and_member():
    class Each(Paid):
        def reward(self, cases):
            return [[float(turn.text) for turn in case.turns] for case in cases]

    one = scene(Each(total, 2), lambda say, words: str(say.member + 10 * (say.role == "b")), members=3)
    assert one.returns(one.played()).tolist() == [[5, 6, 7]] * 2


def test_a_scene_that_is_refused_says_why():
    one = scene(Paid(lambda a, b: float("nan"), 2), of_policy)
    found = condition(one, None)
    assert list(found) == ["reason"]
    assert "want a finite number" in found["reason"]
    with pytest.raises(ValueError, match="want a finite number"):
        one.played()


def test_a_swap_of_policies_that_toss_the_same_coin_costs_nothing():
    one = scene(Paid(lambda a, b: 2 * float(a) + float(b)), coin)
    base = one.returns(one.played())
    [row] = swapped(one, base)
    assert base.std() > 0
    assert (row["difference"], row["low"], row["high"]) == (0, 0, 0)
