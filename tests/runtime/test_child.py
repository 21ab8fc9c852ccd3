"""A child: what it is told of the process that starts it."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from coevolve.runtime.child import Child

TORCHRUN = {"TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "0", "LOCAL_WORLD_SIZE": "2"}
"""Some of what torchrun tells its processes."""


def told(**environment: str) -> list[str]:
    """What a child finds in its environment of what torchrun sets, or was given."""
    child = Child(["env"], environment)
    try:
        child.process.wait(30)
        names = {line.partition("=")[0] for line in child.log.read_text().splitlines()}
    finally:
        child.close()
        child.log.unlink()
    return sorted(names & {*TORCHRUN, "MASTER_ADDR", "OMP_NUM_THREADS", "GIVEN"})


@pytest.mark.parametrize(("threads", "kept"), [("1", ["GIVEN"]), ("6", ["GIVEN", "OMP_NUM_THREADS"])])
def test_a_child_is_none_of_torchruns_processes(threads: str, kept: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM that takes itself for one waits forever for a store that others would open."""
    for name, value in {**TORCHRUN, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": threads}.items():
        monkeypatch.setenv(name, value)
    assert told(GIVEN="x") == kept


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert {"MASTER_ADDR", "OMP_NUM_THREADS"} <= {*told()}


def test_an_interrupt_before_there_is_a_guard_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[Any]()
    popen = subprocess.Popen

    def interrupted(*args: Any, **how: Any) -> Any:
        if started:
            raise KeyboardInterrupt
        started.append(popen(*args, **how))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Child(["sleep", "60"], {})
    assert started[0].returncode == -9


def test_an_interrupt_from_the_terminal_does_not_reach_the_guard() -> None:
    """It is in a session of its own, as the child is, which else would outlive a later kill of this process."""
    child = Child(["sleep", "60"], {})
    try:
        assert [os.getsid(one.pid) for one in (child.guard, child.process)] == [child.guard.pid, child.process.pid]
    finally:
        child.close()


def test_a_child_whose_guard_was_killed_is_still_ended() -> None:
    child = Child(["sleep", "60"], {})
    child.guard.kill()
    child.guard.wait()
    child.close()
    assert child.process.returncode is not None
    assert not child.log.exists()
    child.close()  # again, which is nothing
