"""Locks on folders, released when the process that holds them ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import shutil
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO

from coevolve.console import say
from coevolve.runs.durable import is_left_over, make_folder

LOCK = ".lock"
"""The lock file in a folder; it names the process that holds the lock, and stays when the lock is free."""

_LONGEST = 200  # limit for the characters of a command in a message
_UNABLE = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)

_held: set[IO[str]] = set()


@contextmanager
def alone(folder: Path, *, wait: bool = False, name: str = LOCK) -> Iterator[int]:
    """Hold a folder's lock inside the context; the folder is made if it does not exist.

    Yields the file descriptor, for processes that shall hold the lock too: it is free when all its holders have ended.
    Other processes that this one starts or forks do not hold it. wait: print a line and wait until the lock is free;
    otherwise raise ValueError naming the process that holds it. On a file system without locks, warn and go on.
    """
    make_folder(folder)
    with (folder / name).open("a+", encoding="utf-8") as file:
        try:
            _take(file, folder, wait)
        except OSError as error:
            if error.errno not in _UNABLE:
                raise
            said = f"{folder} cannot be locked ({error.strerror}); see to it that nobody else writes there"
            warnings.warn(said, stacklevel=3)
        _held.add(file)
        try:
            file.truncate(0)
            file.write(json.dumps(_me()))
            file.flush()
            yield file.fileno()
        finally:
            _held.discard(file)


def check(folder: Path) -> None:
    """Raise ValueError naming the process that holds the folder's lock, if one does; change nothing."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _opened(folder / LOCK) as file:
        try:
            _take(file, folder, wait=False)
        except OSError as error:  # ``alone`` warns of it before anything is written
            if error.errno not in (*_UNABLE, errno.EBADF):
                raise


def sweep_up(folder: Path) -> None:
    """Delete what a killed process left in a folder, but not what another process has locked (``trained.kept``)."""
    for left in [one for one in folder.iterdir() if is_left_over(one.name)]:
        if left.is_symlink() or not left.is_dir():
            left.unlink(missing_ok=True)
        elif not _held_by_others(left):
            shutil.rmtree(left, ignore_errors=True)


def _held_by_others(folder: Path) -> bool:
    try:
        check(folder)
    except (ValueError, OSError):  # OSError: another user's folder
        return True
    return False


def _opened(lock: Path) -> IO[str]:
    """Open a lock file for writing, without which NFS cannot lock it, or read-only where it cannot be written."""
    try:
        return lock.open("r+", encoding="utf-8")
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
        return lock.open(encoding="utf-8")


def _take(file: IO[str], folder: Path, wait: bool) -> None:
    import fcntl  # exists on Unix only; only locks need it

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        if not wait:
            what = f"{folder} is in use {holder(file)}; wait for it to end, or choose another folder"
            raise ValueError(what) from error
        say(f"waiting for {folder}, which is in use {holder(file)}", error=True)
        fcntl.flock(file, fcntl.LOCK_EX)


def holder(file: IO[str]) -> str:
    """Return which process holds the lock, by the text of its file, as a part of a sentence."""
    file.seek(0)
    try:
        who = json.load(file)
        pid, host, since, command = who["pid"], who["host"], who["since"], who["command"]
    except (ValueError, TypeError, KeyError):
        return "by another process"
    shown = "".join(c if c.isprintable() else "?" for c in f"{host} since {since}: {command}")[:_LONGEST]
    gone = ", which is gone; what it started still runs" if host == socket.gethostname() and not _alive(pid) else ""
    return f"by process {pid} on {shown}{gone}"


def _me() -> dict[str, str | int]:
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "command": command}


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, TypeError, OverflowError):
        return True
    return True


def _let_go() -> None:
    """Close the lock files in a forked process: the locks are its parent's, and shall be free when the parent ends."""
    for file in _held:
        os.close(file.fileno())
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
