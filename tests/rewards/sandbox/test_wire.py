"""The wire: what a hostile peer may send comes out as plain data of exact types, or as Gone."""

from __future__ import annotations

import socket
import time

import pytest

from coevolve.rewards.sandbox.inside import wire


def lent(letter, parts):
    return ("lent", letter, *parts)


def test_letters():
    assert wire.encode((1, [2.5, None]), lent) == ["t", 1, ["l", 2.5, None]]
    assert wire.encode({"a": {1}}, lent) == ["d", "a", ["s", 1]]
    assert wire.encode(1 << 70, lent) == ["i", "0x400000000000000000"]
    assert wire.encode(float("-inf"), lent) == ["f", "-inf"]
    assert wire.encode(int, lent) == ["T", "int"]


def test_an_object_is_what_the_caller_makes_of_it():
    thing = object()
    assert wire.encode([thing], lambda value: ["h", 3] if value is thing else None) == ["l", ["h", 3]]
    assert wire.decode(["l", ["h", 3]], lent) == [("lent", "h", 3)]


@pytest.mark.parametrize(
    "nonsense",
    [
        {}, [], ["i"], ["i", "x"], ["i", 3], ["b", "0"], ["d", 1], ["s", ["l"]], ["T", "object"], ["r", "a"], ["c"],
        ["f", "x"], [["l"]], ["r", 1, 2, 0],
    ],
    ids=str,
)  # fmt: skip
def test_nonsense_is_no_value(nonsense):
    def unknown(letter, parts):
        raise ValueError(letter)

    with pytest.raises(wire.Gone):
        wire.decode(nonsense, unknown)


def test_messages_over_a_socket():
    left, right = socket.socketpair()
    with left, right:
        wire.send(left, ["a", 1, "ä\ud800"])
        assert wire.receive(right) == ["a", 1, "ä\ud800"]
        with pytest.raises(OverflowError, match="a value of 102 bytes on the wire; at most 100 pass"):
            wire.send(left, "x" * 100, 100)
        left.sendall(b"\0\1\0\0")
        with pytest.raises(wire.Gone, match="a message of 65536 bytes; at most 100 pass"):
            wire.receive(right, 100)


@pytest.mark.parametrize("raw", [b"\0\0\0\3abc", b"\0\0\0\1\xff", b"\0\0\0\2"])
def test_a_broken_message(raw):
    left, right = socket.socketpair()
    with right:
        left.sendall(raw)
        left.close()
        with pytest.raises(wire.Gone):
            wire.receive(right)


def test_a_deadline_holds_for_the_whole_message():
    left, right = socket.socketpair()
    with left, right:
        left.sendall(b"\0\0\0\4ab")
        begin = time.monotonic()
        with pytest.raises(wire.Late):
            wire.receive(right, until=begin + 0.1)
        assert 0.1 <= time.monotonic() - begin < 5
