"""Who plays whom, and when that changes."""

import pytest

from coevolve.cast import exchange, fixed, rotate


def test_exchange_swaps_every_five_steps():
    cast = exchange({"pioneer": "ann", "observer": "bob"}, every=5)
    assert [cast(i)["pioneer"] for i in (0, 4, 5, 9, 10)] == ["ann", "ann", "bob", "bob", "ann"]
    assert cast(5) == {"pioneer": "bob", "observer": "ann"}


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
    with pytest.raises(ValueError, match="at least 1"):
        rotate({"a": "x"}, every=0)
