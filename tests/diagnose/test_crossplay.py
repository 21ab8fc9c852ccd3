"""Teams that understand themselves better than each other."""

from parlour import Paid, coin, scene

from coevolve.diagnose import crossplay
from coevolve.report.findings import verdicts


def accent(say, words):
    """The team that the policy comes from."""
    return say.policy.split("/")[0]


def rows(worth, roles, teams):
    casts = {name: {role: f"{name}/{role}" for role in roles} for name in teams}
    one = scene(Paid(worth, 6), accent, cast=casts[teams[0]])
    return list(crossplay.rows(one, list(casts.items())))


def shown(found):
    return [(row["setting"], row["role"], row.get("from"), row.get("by"), row["reward"]) for row in found]


def test_two_roles_make_the_whole_matrix():
    # x with x earns 4, y with y 2, mixed 1; mixed teams are compared with (4 + 2) / 2.
    found = rows(lambda a, b: {"xx": 4.0, "yy": 2.0}.get(a + b, 1.0), "ab", ["x", "y"])
    assert shown(found) == [
        ("self", "all", "x", "x", 4),
        ("self", "all", "y", "y", 2),
        ("cross", "a", "x", "y", 1),
        ("cross", "a", "y", "x", 1),
        ("mean", "all", None, None, 1),
    ]
    assert [row["difference"] for row in found[2:]] == [-2, -2, -2]
    assert found[2]["policy"] == "x/a+y/b"


def test_of_three_roles_one_at_a_time_is_filled_from_elsewhere():
    found = rows(lambda a, b, c: float((a + b + c).count("x")), "abc", ["x", "y"])
    assert shown(found)[2:] == [
        *(("cross", role, *pair) for role in "abc" for pair in (("x", "y", 1), ("y", "x", 2))),
        ("mean", "all", None, None, 1.5),
    ]
    assert found[-1]["difference"] == 0


def test_three_teams():
    found = rows(lambda a, b: float(a == b), "ab", ["x", "y", "z"])
    assert [row["setting"] for row in found] == ["self"] * 3 + ["cross"] * 6 + ["mean"]
    assert (found[-1]["reward"], found[-1]["difference"]) == (0, -1)


def test_a_mixed_team_that_the_task_refuses_is_a_reason_and_not_the_end():
    def worth(a, b):
        if (a, b) == ("x", "y"):
            raise ValueError("no such pair")
        return float(a == b)

    found = rows(worth, "ab", ["x", "y"])
    assert ["no such pair" in row.get("reason", "") for row in found] == [False, False, True, False, False]
    assert (found[3]["difference"], found[4]["difference"]) == (-1, -1)  # of the other one alone
    said = verdicts.cross_play(found)
    assert "Mixed teams that could be played" in said
    assert "a: cannot be played (" in said
    assert "rely on" not in said  # the rest is not known
    refused = rows(lambda a, b: worth("x", "y") if a != b else 1.0, "ab", ["x", "y"])
    assert [row["setting"] for row in refused] == ["self", "self", "cross", "cross"]
    assert verdicts.cross_play(refused).startswith("No mixed team could be compared: a: cannot be played (")


def test_teams_that_do_not_differ():
    found = rows(lambda a, b: 1.0, "ab", ["x", "y"])
    assert all((row["difference"], row["low"], row["high"]) == (0, 0, 0) for row in found[2:])


def test_whoever_plays_has_the_same_random_numbers():
    """Teams of policies that toss the coin of their request differ in nothing, problem by problem."""
    casts = {name: {role: f"{name}/{role}" for role in "ab"} for name in "xy"}
    one = scene(Paid(lambda a, b: 2 * float(a) + float(b)), coin, cast=casts["x"])
    found = list(crossplay.rows(one, list(casts.items())))
    assert 1 < found[0]["reward"] < 2  # both faces came up
    assert found[0]["se"] > 0
    assert all((row["difference"], row["low"], row["high"]) == (0, 0, 0) for row in found[2:])


def test_the_hosts_order_of_roles_decides_who_speaks_first():
    said = []

    def speak(say, words):
        said.append(say.role)
        return "w"

    one = scene(Paid(lambda a, b: 1.0, 1), speak, cast={"a": "ann", "b": "bob"}, members=1)
    list(crossplay.rows(one, [("x", {"a": "ann", "b": "bob"}), ("y", {"b": "dan", "a": "eve"})]))
    assert said == ["a", "b"] * 4
