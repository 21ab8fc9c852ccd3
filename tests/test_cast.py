"""Who plays whom, and when that changes."""

import pytest

from coevolve.cast import exchange, fixed, rotate


def test_exchange_swaps_every_five_steps():
    cast = exchange({"pioneer": "ann", "observer": "bob"}, every=5)
    assert [cast(i)["pioneer"] for i in (0, 4, 5, 9, 10)] == ["ann", "ann", "bob", "bob", "ann"]
    assert cast(5) == {"pioneer": "bob", "observer": "ann"}


def test_seats_change_every_five_steps_unless_told_otherwise():
    for cast in (exchange({"a": "x", "b": "y"}), rotate({"a": "x", "b": "y"})):
        assert [cast(i)["a"] for i in (4, 5, 9, 10)] == ["x", "y", "y", "x"]


def test_a_cast_is_of_the_team_as_it_was_given():
    roles = {"a": "x", "b": "y"}
    casts = [fixed(roles), rotate(roles), exchange(roles)]
    roles["a"] = "z"
    assert [cast(0) for cast in casts] == [{"a": "x", "b": "y"}] * 3


def test_rotate_gives_every_policy_every_role():
    cast = rotate({"a": "x", "b": "y", "c": "z"}, every=1)
    assert [dict(cast(i)) for i in range(3)] == [
        {"a": "x", "b": "y", "c": "z"},
        {"a": "y", "b": "z", "c": "x"},
        {"a": "z", "b": "x", "c": "y"},
    ]
    assert list(cast(1)) == ["a", "b", "c"]  # the order of speaking never changes


def test_one_policy_in_both_roles_stays_there():
    cast = exchange({"pioneer": "ann", "observer": "ann"}, every=1)
    assert cast(1) == cast(0) == fixed({"pioneer": "ann", "observer": "ann"})(7)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="rotate"):
        exchange({"a": "x", "b": "y", "c": "z"})
    with pytest.raises(ValueError, match="this team has 1"):
        exchange({"a": "x"})
    with pytest.raises(ValueError, match="at least 1"):
        rotate({"a": "x"}, every=0)
