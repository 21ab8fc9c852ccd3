"""A machine without a process left: asked again, then said as what it is; never a verdict on a program."""

from __future__ import annotations

import errno
import subprocess

import pytest

from coevolve.rewards.sandbox import Program, Sandbox, worker
from coevolve.rewards.sandbox.box import offers

PROGRAM = Program("def f(x):\n    return x + 1", "assert f(1) == 2\nassert f(1) == 3", "f")
NO_FORK = """
import errno, os, sys
fork, left = os.fork, [{times}]
def refused():
    if sys.argv[2] == {role!r} and left[0]:
        left[0] -= 1
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()
os.fork = refused
"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(worker, "PAUSE_SECONDS", 0.01)


@pytest.fixture(params=["plain", "bubblewrap"])
def box(request):
    try:
        with Sandbox(isolation=request.param, timeout=5.0, workers=1) as made:
            yield made
    except ValueError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("role", ["judge", "guest"])
def test_a_server_that_cannot_fork_at_first(box, monkeypatch, role):
    monkeypatch.setattr(worker, "_BOOT", NO_FORK.format(times=2, role=role) + worker._BOOT)
    assert [verdict.kind for verdict in box.run([PROGRAM])[0]] == ["passed", "failed"]


@pytest.mark.parametrize("role", ["judge", "guest"])
def test_a_server_that_cannot_fork(box, monkeypatch, role):
    monkeypatch.setattr(worker, "_BOOT", NO_FORK.format(times=1000, role=role) + worker._BOOT)
    with pytest.raises(OSError, match="this machine has no process or thread left; stop other programs") as found:
        box.run([PROGRAM])
    assert found.value.errno == errno.EAGAIN and "\n" not in str(found.value)
    monkeypatch.undo()
    box.close()
    assert [verdict.kind for verdict in box.run([PROGRAM])[0]] == ["passed", "failed"]  # nothing of that is remembered


def test_a_guest_that_dies_and_cannot_be_replaced(box, monkeypatch):
    """The verdicts of before are no verdicts: the program is tried again as a whole."""
    code = "import os\ndef f(x):\n    if x == 1:\n        os._exit(0)\n    return x"
    late = NO_FORK.replace("os.fork = refused", "calls = []\ndef later():\n    calls.append(1)\n"
        "    return refused() if len(calls) == 2 else fork()\nos.fork = later")  # fmt: skip
    monkeypatch.setattr(worker, "_BOOT", late.format(times=1, role="guest") + worker._BOOT)
    found = box.run([Program(code, "assert f(0) == 0\nassert f(1) == 1\nassert f(2) == 2", "f")])[0]
    assert [verdict.kind for verdict in found] == ["passed", "crashed", "passed"]


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_trainer_that_cannot_start_a_server(monkeypatch, number):
    box = Sandbox(isolation="plain", timeout=5.0, workers=1)
    start, left = subprocess.Popen, [3]

    def popen(*arguments, **settings):
        if left[0]:
            left[0] -= 1
            raise OSError(number, "no")
        return start(*arguments, **settings)

    monkeypatch.setattr(worker.subprocess, "Popen", popen)
    assert [verdict.kind for verdict in box.run([PROGRAM])[0]] == ["passed", "failed"]
    box.close()
    left[0] = 1000
    with pytest.raises(worker.MachineFullError):
        box.run([Program("def f(x):\n    return x", "assert f(1) == 1", "f")])
    box.close()


def test_no_thread_is_left(monkeypatch):
    box = Sandbox(isolation="plain", timeout=5.0, workers=1)

    def start(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", start)
        with pytest.raises(worker.MachineFullError):
            box.run([PROGRAM])
    box.close()
    assert [verdict.kind for verdict in box.run([PROGRAM])[0]] == ["passed", "failed"]
    box.close()


def test_the_doctor_says_so_too(monkeypatch):
    def full(self):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("coevolve.rewards.sandbox.box._try", lambda isolation: full(None))
    assert "Resource temporarily unavailable" in offers("plain")
