"""Which level is chosen, and what is said about it."""

from __future__ import annotations

import sys

import pytest

from coevolve.doctor import doctor
from coevolve.rewards.sandbox import Program, Sandbox
from coevolve.rewards.sandbox import isolation as module
from coevolve.rewards.sandbox.isolation import Isolation, choose
from coevolve.rewards.sandbox.split import split
from coevolve.rewards.sandbox.worker import Worker

FULL = Isolation("bubblewrap", landlock=5, seccomp=True, drops=False)
BARE = Isolation("plain", landlock=0, seccomp=False, drops=False)


@pytest.fixture
def offered(monkeypatch):
    """A machine with bubblewrap, where nothing has been said yet."""
    monkeypatch.setattr(module, "_said", set())
    monkeypatch.setattr(module, "bubblewrap_problem", lambda: "")
    monkeypatch.setattr(module, "offered", lambda level: {"bubblewrap": FULL, "plain": BARE}[level])


def test_auto_takes_the_strongest(offered):
    assert choose("auto", lambda isolation: "") is FULL
    assert choose("plain", lambda isolation: "") is BARE


def test_auto_falls_back_and_says_so_once(offered):
    def works(isolation):
        return "no user namespaces" if isolation is FULL else ""

    with pytest.warns(UserWarning, match=r"sandbox: plain \(limits\); cannot stop: .*bubblewrap: no user namespaces"):
        assert choose("auto", works) is BARE
    assert choose("auto", works) is BARE  # no second warning: pytest.warns is not there to take it


def test_a_required_level_is_required(offered):
    with pytest.raises(ValueError, match="'bubblewrap' does not work here: bubblewrap: no user namespaces"):
        choose("bubblewrap", lambda isolation: "no user namespaces")


def test_bubblewrap_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="the program bwrap is not installed; apt install bubblewrap"):
        Sandbox(isolation="bubblewrap")


def test_windows(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ValueError, match="on Windows use WSL 2"):
        choose("auto", lambda isolation: "")


def test_what_is_said():
    assert str(FULL) == "bubblewrap (namespaces, Landlock 5, seccomp, limits); cannot stop: a bug of the kernel"
    assert BARE.open_ends() == [
        "names and sizes of files can be asked for",
        "no Landlock: files that the caller may read or write are open",
        "no libseccomp: local sockets and UDP, and child processes until the case ends",
        "signals to the caller's processes, modes of the caller's files",
        "a bug of the kernel",
    ]


def test_servers_that_do_not_start(monkeypatch):
    monkeypatch.setattr(module, "interpreter", lambda: "/bin/false")
    worker = Worker(BARE, timeout=1.0, memory_mb=256)
    with pytest.raises(OSError, match=r"the sandbox does not start \(plain\)"):
        worker.run(Program("def f(): return 1", "assert f() == 1", "f"), split("assert f() == 1"))


def test_the_doctor_tells_each_level():
    lines = doctor()
    assert [line.split()[1].rstrip(":") for line in lines if line.startswith("sandbox ")] == ["bubblewrap", "plain"]
    assert lines[0].startswith("versions: python 3.")
    assert [line for line in lines if line.startswith("data: COEVOLVE_DATA")] != []
