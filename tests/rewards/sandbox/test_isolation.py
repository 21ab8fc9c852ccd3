"""Which level is chosen, and what is said about it."""

from __future__ import annotations

import errno
import sys
import tempfile
import warnings
from dataclasses import replace

import pytest

from coevolve.commands.doctor import machine
from coevolve.rewards.sandbox import Program, Sandbox
from coevolve.rewards.sandbox import isolation as module
from coevolve.rewards.sandbox.box import _try
from coevolve.rewards.sandbox.isolation import Isolation, choose
from coevolve.rewards.sandbox.split import split
from coevolve.rewards.sandbox.worker import Limits, StartError, Worker

FULL = Isolation("bubblewrap", landlock=6, seccomp=True, drops=False)
BARE = Isolation("plain", landlock=0, seccomp=False, drops=False)
ALWAYS = ["page tables of up to twice the memory's size", "a bug of the kernel"]


@pytest.fixture
def offered(monkeypatch):
    """A machine with bubblewrap, where nothing has been said yet."""
    monkeypatch.setattr(module, "_said", set())
    monkeypatch.setattr(module, "bubblewrap_problem", lambda: "")
    monkeypatch.setattr(module, "offered", lambda level: {"bubblewrap": FULL, "plain": BARE}[level])


def test_auto_takes_the_strongest(offered):
    assert choose("auto", lambda isolation: "") is FULL
    with pytest.warns(UserWarning, match="sandbox: plain"):
        assert choose("plain", lambda isolation: "") is BARE


def test_auto_falls_back_and_says_so_once(offered):
    def works(isolation):
        return "no user namespaces" if isolation.level == "bubblewrap" else ""

    with pytest.warns(UserWarning, match=r"sandbox: plain \(limits\); cannot stop: .*bubblewrap: no user namespaces"):
        assert choose("auto", works) is BARE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose("auto", works) is BARE  # no second warning


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
    assert str(FULL) == (f"bubblewrap (namespaces, Landlock 6, seccomp, limits); cannot stop: {'; '.join(ALWAYS)}")
    assert BARE.open_ends() == [
        "names and sizes of files, and the name of the machine, can be asked for",
        "no Landlock: files that the caller may read or write are open",
        "no libseccomp: memory beyond the limit (pipes, locks, files), any service of the kernel",
        "child processes until the case ends",
        "local sockets, UDP, TCP, addresses of the machine",
        "times, modes and attributes of files that the caller may change or read, what happens in folders",
        "signals to the caller's processes, and their memory",
        "memory that stays when the case is over (shared segments, message queues)",
        "files are counted twenty times a second: many more than the limit for that long",
        *ALWAYS,
    ]


@pytest.mark.parametrize(
    ("lacks", "named"),
    [
        ({"seccomp": False}, "no libseccomp"),
        ({"landlock": 0}, "no Landlock"),
        ({"counted": False}, "files are counted"),
        ({"linux": False}, "not Linux"),
    ],
)
@pytest.mark.parametrize("level", ["bubblewrap", "plain"])
def test_a_missing_layer_is_a_warning_once(offered, level, lacks, named):
    chosen = replace(FULL, level=level, **lacks)
    with pytest.warns(UserWarning, match=named):
        module._say(chosen, [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module._say(chosen, [])
        module._say(replace(FULL, level=level), [])  # what a level has everywhere is no news
    assert any(named in gap for gap in chosen.gaps())


def test_landlock_by_its_version():
    ends = {version: "; ".join(replace(BARE, landlock=version).open_ends()) for version in range(7)}
    assert [version for version, said in ends.items() if "TCP" in said] == [0, 1, 2, 3]
    assert [version for version, said in ends.items() if "can be emptied" in said] == [1, 2]
    assert [version for version, said in ends.items() if "signals" in said] == [0, 1, 2, 3, 4, 5]
    assert replace(BARE, landlock=1, seccomp=True).gaps() == []  # the filter closes what this version leaves


def test_a_kernel_that_is_asked_already_counts_files_otherwise(offered):
    with pytest.warns(UserWarning, match="files are counted"):
        assert choose("auto", lambda isolation: "busy" if isolation.counted else "") == replace(FULL, counted=False)


def test_bubblewrap_wherever_it_is_on_the_path(monkeypatch, tmp_path):
    real = module.bubblewrap()
    if not real:
        pytest.skip("no bwrap")
    mine = tmp_path / "bin" / "bwrap"
    mine.parent.mkdir()
    mine.write_text(f'#!/bin/sh\necho ran >> {tmp_path}/told\nexec {real} "$@"\n')
    mine.chmod(0o755)
    monkeypatch.setenv("PATH", str(mine.parent))
    with Sandbox(isolation="bubblewrap", timeout=5.0, workers=1) as box:
        (verdict,) = box.run([Program("def f(): return 1", "assert f() == 1", "f")])[0]
    assert verdict.kind == "passed"
    assert (tmp_path / "told").read_text().startswith("ran")


def test_servers_that_do_not_start(monkeypatch):
    monkeypatch.setattr(module, "interpreter", lambda: "/bin/false")
    worker = Worker(BARE, Limits(timeout=1.0, memory_mb=256))
    with pytest.raises(StartError, match=r"the sandbox does not start \(plain\)"):
        worker.run(Program("def f(): return 1", "assert f() == 1", "f"), split("assert f() == 1"))


def test_a_full_disk_is_no_fault_of_the_isolation(monkeypatch):
    def full(**named):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    worker = Worker(BARE, Limits(timeout=1.0, memory_mb=256))
    with pytest.raises(OSError, match="No space left on device") as told:
        worker.run(Program("def f(): return 1", "assert f() == 1", "f"), split("assert f() == 1"))
    assert told.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="No space left on device"):  # which a ValueError is not
        choose("plain", _try.__wrapped__)


def test_the_doctor_tells_each_level():
    lines = machine()
    assert [line.split()[1].rstrip(":") for line in lines if line.startswith("sandbox ")] == ["bubblewrap", "plain"]
    assert lines[0].startswith("versions: python 3.")
    assert [line for line in lines if line.startswith("data: COEVOLVE_DATA")] != []


def test_the_doctor_tells_each_extra_in_one_line():
    there, lacking = machine()[-2:]
    assert "fast (numba " in there
    assert lacking.startswith("extras not here")
    assert "peers" not in there + lacking
