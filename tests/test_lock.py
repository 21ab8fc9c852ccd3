"""One folder, one process: who holds it is told, and a lock ends with its holder."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy import toy

from coevolve import cli
from coevolve.report.runs import find
from coevolve.runs import lock
from coevolve.runs.folder import read_lines
from coevolve.runs.lock import LOCK, alone, check

flock = fcntl.flock

HOLD = """
import os, sys, time
from pathlib import Path
from subprocess import Popen
from coevolve.runs.lock import alone
with alone(Path(sys.argv[1])) as number:
    print(*({children}), flush=True)
    time.sleep(100)
"""


def hold(folder, children=""):
    """A process that holds the folder, once it does, and the ids of the children that it started."""
    code = HOLD.format(children=children or "()")
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE)
    return process, [int(word) for word in process.stdout.readline().split()]


def killed(process):
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_the_holder_is_named_and_a_kill_ends_its_lock(tmp_path):
    process, _ = hold(tmp_path)
    named = rf"{tmp_path} is in use by process {process.pid} on \S+ since 20\d\d-\d\d-\d\d .*: -c {tmp_path}; wait"
    with pytest.raises(ValueError, match=named), alone(tmp_path):
        pass
    with pytest.raises(ValueError, match=named):
        check(tmp_path)
    killed(process)
    check(tmp_path)
    with alone(tmp_path):
        pass


def test_what_a_holder_started_does_not_hold_its_lock(tmp_path):
    process, children = hold(tmp_path, "Popen(['sleep', '100']).pid, os.fork() or time.sleep(100)")
    killed(process)
    for _ in range(300):  # the forked child may not have begun
        try:
            check(tmp_path)
            break
        except ValueError:
            time.sleep(0.1)
    with alone(tmp_path):  # though both children live on
        for child in children:
            os.kill(child, signal.SIGKILL)


def test_one_that_is_handed_the_lock_holds_it_and_is_told_of(tmp_path):
    process, (child,) = hold(tmp_path, "[Popen(['sleep', '100'], pass_fds=[number]).pid]")
    killed(process)
    with pytest.raises(ValueError, match=rf"by process {process.pid} .*which is gone; what it started still runs"):
        check(tmp_path)
    os.kill(child, signal.SIGKILL)
    with alone(tmp_path, wait=True):
        pass


def test_a_lock_that_says_nothing_is_a_lock(tmp_path):
    with alone(tmp_path):
        (tmp_path / LOCK).write_text("\x1b[2J")
        with pytest.raises(ValueError, match="is in use by another process"):
            check(tmp_path)


def without_locks(file, how):
    raise OSError(errno.ENOLCK, "No locks available")


def over_nfs(file, how):
    """NFS locks for writing what is open for writing only."""
    if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "Bad file descriptor")
    flock(file, how)


@pytest.mark.parametrize(("locks", "warned"), [(without_locks, 1), (over_nfs, 0)])
def test_a_run_goes_on_where_there_are_no_locks(locks, warned, micro_model, tmp_path, monkeypatch, recwarn):
    monkeypatch.setattr(fcntl, "flock", locks)
    run = toy(micro_model, steps=1).run(tmp_path / "run", save_every=1, listeners=[])
    toy(micro_model, steps=2).run(run, resume=True, save_every=1, listeners=[])
    assert len(read_lines(run / "metrics.jsonl")) == 2
    assert len([one for one in recwarn if "cannot be locked" in str(one.message)]) == 2 * warned


def test_a_lock_that_may_only_be_read_is_asked(tmp_path, monkeypatch):
    opened = Path.open

    def for_reading(file, mode="r", **how):
        if "+" in mode:
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(file, mode, **how)

    with alone(tmp_path):
        monkeypatch.setattr(Path, "open", for_reading)
        with pytest.raises(ValueError, match="is in use by process"):
            check(tmp_path)
    check(tmp_path)


def test_a_free_folder_is_not_touched_by_the_question(tmp_path):
    check(tmp_path)
    check(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("resume", [False, True])
def test_two_trainings_do_not_share_a_run_and_readers_need_no_lock(micro_model, tmp_path, resume):
    run = toy(micro_model, steps=2).run(tmp_path / "run")
    before = (run / "metrics.jsonl").read_text()
    with alone(run):
        with pytest.raises(ValueError, match=rf"run is in use by process {os.getpid()}"):
            toy(micro_model, steps=4).run(run, resume=resume)
        assert len(find([run])[0].lines) == 2
        assert cli.main(["report", str(run)]) == 0
    assert (run / "metrics.jsonl").read_text() == before
    toy(micro_model, steps=3).run(run, resume=True)
    assert len(read_lines(run / "metrics.jsonl")) == 3


def test_a_run_is_held_while_it_trains(micro_model, tmp_path):
    seen = []

    def listen(line):
        with pytest.raises(ValueError, match="in use"):
            check(tmp_path / "run")
        seen.append(line["step"])

    toy(micro_model, steps=2).run(tmp_path / "run", listeners=[listen])
    assert seen == [0, 1]
    check(tmp_path / "run")


def test_reports_of_one_name_are_written_one_after_the_other(micro_model, tmp_path, capsys):
    run = toy(micro_model, steps=2).run(tmp_path / "run", listeners=[])
    command = [sys.executable, "-m", "coevolve.cli", "report", str(run)]
    with alone(run, name=f".report.html{LOCK}"):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr.readline().startswith(f"waiting for {run}, which is in use by process {os.getpid()}")
        assert not (run / "report.html").exists()
    process.communicate()
    assert process.returncode == 0
    assert (run / "report.html").is_file()


def test_a_folder_that_cannot_be_asked_is_left_where_it_is(tmp_path, monkeypatch):
    """Another user's, say, who reads a checkpoint there."""
    (tmp_path / ".reading-a.tmp").mkdir()
    (tmp_path / ".old.tmp").touch()
    monkeypatch.setattr(lock, "check", refused)
    lock.sweep_up(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == [".reading-a.tmp"]


def refused(folder):
    raise PermissionError(13, "Permission denied", str(folder))
