"""Anything at all from a hostile guest: the judge ends with a verdict for each test, none of them passed."""

from __future__ import annotations

import ast
import contextlib
import json
import signal
import socket
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coevolve.rewards.sandbox import Kind
from coevolve.rewards.sandbox.inside import opaque, wire
from coevolve.rewards.sandbox.inside.judge import LIVES, Judge
from coevolve.rewards.sandbox.split import split

SEEDED = settings(max_examples=200, derandomize=True, deadline=None, database=None)
TESTS = (
    "assert candidate([2], {3: 4}) == 'what nobody knows'\n"
    "given = [2]\ncandidate(given)\nassert given == ['what nobody knows']\n"
    "for item in candidate(1): item()\nassert helper(1) == 'what nobody knows'\n"
    "try:\n    candidate(1)\nexcept ValueError as error:\n    pass\nassert LIMIT == 'what nobody knows'\n"
)
PLAN = split(TESTS)
LETTERS = st.sampled_from([*"ifbyTltszqdcrghknxe"])
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
    | st.sampled_from(["0x1f", "ff", "nan", "int", "object", "candidate"])
    | st.sampled_from(["ValueError", "SystemExit", "StopIteration", "ExceptionGroup"])
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.builds(lambda letter, parts: [letter, *parts], LETTERS, st.lists(inner, max_size=4))
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=12,
)
REPORTS = st.builds(lambda *parts: [*parts], st.lists(LEAVES, max_size=3) | VALUES, VALUES, VALUES, VALUES) | VALUES
REPLIES = (
    st.builds(lambda number, value, changed: ["value", number, value, changed], st.integers(0, 9), VALUES, VALUES)
    | st.builds(lambda number, at, value: ["value", number, None, [[at, value]]], st.integers(0, 9), LEAVES, VALUES)
    | st.builds(lambda number, report: ["raised", number, report], st.integers(0, 9), REPORTS)
    | VALUES
)
LOADED = (
    st.builds(lambda names, pairs: ["loaded", names, pairs], VALUES, VALUES)
    | st.builds(lambda value: ["loaded", ["helper"], [["LIMIT", value]]], VALUES)
    | st.just(["loaded", ["helper", "LIMIT"], []])
    | REPLIES
)


@pytest.fixture(autouse=True)
def alarm():
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def framed(message):
    raw = json.dumps(message).encode()
    return wire.HEAD.pack(len(raw)) + raw


def judged(*lives, plan=PLAN):
    """What a judge tells whose guests say these bytes and are silent then."""
    scripts, told = iter(lives), []
    held = []

    def start():
        ours, theirs = socket.socketpair()
        theirs.sendall(next(scripts, b""))
        theirs.shutdown(socket.SHUT_WR)
        held.append(theirs)
        return ours

    program = {"code": "", "setup": "", "prelude": "", "entry": "candidate", "timeout": 5.0, "seconds": 15.0}
    program |= {"steps": plan.steps, "opening": plan.opening, "names": plan.names, "stars": plan.stars}
    judge = Judge(program | {"stop_at_failure": False}, start, lambda word: "crashed")
    judge.run(told.append)
    for sock in held:
        sock.close()
    if judge.sock is not None:
        judge.sock.close()
    return told


def kinds(told, plan=PLAN):
    """The kinds of all verdicts, each told once, in order, as the trainer can take them."""
    verdicts = [message for message in told if message[0] == "test"]
    assert [message[1] for message in verdicts] == list(range(len(plan.sources)))
    for _, _, kind, error, text, line in verdicts:
        assert kind in get_args(Kind)
        assert error is None or error.encode() is not None
        assert text.encode() is not None and (line is None or 0 < line < 1_000_000)
    json.dumps(told, allow_nan=False)
    return [message[2] for message in verdicts]


def test_a_guest_that_answers_rightly_passes():
    """What follows could fail."""
    right = ["value", 1, "what nobody knows", []]
    plan = split("assert candidate(1) == 'what nobody knows'")
    assert kinds(judged(framed(["loaded", [], []]) + framed(right), plan=plan), plan) == ["passed"]


@SEEDED
@given(st.lists(st.binary(max_size=200), max_size=LIVES))
@example([wire.HEAD.pack(3) + b"nul"])
@example([framed(["loaded", [], []]) + b"\xff\xff\xff\xff"])
@example([framed(["loaded", [], []]) + wire.HEAD.pack(20000) + b"[" * 20000])
@example([framed(["loaded", [], []]) + framed(0).replace(b"0", b"9")])
def test_any_bytes(lives):
    assert "passed" not in kinds(judged(*lives))


@SEEDED
@given(st.lists(st.tuples(LOADED, st.lists(REPLIES, max_size=5)), min_size=1, max_size=LIVES))
def test_any_messages(lives):
    told = judged(*(b"".join(framed(message) for message in (loaded, *replies)) for loaded, replies in lives))
    assert "passed" not in kinds(told)


@SEEDED
@given(VALUES)
@example(["c", ["i", hex(10**400)], 1])
def test_only_exact_builtins_come_out(value):
    def lent(letter, parts):
        if letter != "h" or type(parts[0]) is not int:
            raise ValueError(letter)
        return opaque.Opaque(None, ["h", parts[0]])

    try:
        found = wire.decode(json.loads(json.dumps(value)), lent)
    except wire.Gone:
        return
    waiting = [found]
    while waiting:
        one = waiting.pop()
        kind = type(one)
        if kind is dict:
            waiting += [*one.keys(), *one.values()]
        elif kind.__name__ in ("list", "tuple", "set", "frozenset", "deque"):
            waiting += one
        else:
            assert (
                kind in {*wire.TYPES.values(), bytearray, range, type(None), opaque.Opaque}
                or one in wire.TYPES.values()
            )


@SEEDED
@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_none(raw):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(raw)
        theirs.shutdown(socket.SHUT_WR)
        with contextlib.suppress(wire.Gone):
            json.dumps(wire.receive(ours, 256))


def test_a_later_guest_defines_nothing_new():
    first = framed(["loaded", [], []])  # and dies at the first call
    second = framed(["loaded", ["helper"], [["LIMIT", "mine"]]]) + framed(["value", 2, "mine", []])
    plan = split("assert candidate(1) == 3\nassert candidate(2) == LIMIT")
    assert kinds(judged(first, second, plan=plan), plan) == ["crashed", "error"]


def test_nothing_inside_unpickles():
    for file in Path(wire.__file__).parent.glob("*.py"):
        names = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(file.read_text()))
            for name in ([one.name for one in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else [])
            + ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
        }
        assert not names & {"pickle", "marshal", "shelve", "dill", "multiprocessing"}, file
