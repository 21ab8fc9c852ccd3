"""Locks on folders, which end with the process that holds them, however it ends."""

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
"""The file in a folder that is locked; it says who holds it, and stays when nobody does."""

_LONGEST = 200  # characters of a command that are shown
_UNABLE = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)

_held: set[IO[str]] = set()


@contextmanager
def alone(folder: Path, *, wait: bool = False, name: str = LOCK) -> Iterator[int]:
    """Nobody else holds this lock of a folder meanwhile; the folder is made if it is not there.

    Yields the file descriptor, for processes that shall hold it too: a lock is free when all who hold it have ended.
    Others that this process starts or forks do not hold it. wait: until it is free, and say so; without it, raise
    ValueError naming the process that has it. Where the file system has no locks there is a warning instead.
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
    """Raises ValueError naming the process that holds the folder, if one does; changes nothing."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _opened(folder / LOCK) as file:
        try:
            _take(file, folder, wait=False)
        except OSError as error:  # whoever is going to write there is warned by ``alone``
            if error.errno not in (*_UNABLE, errno.EBADF):
                raise


def sweep_up(folder: Path) -> None:
    """Delete what a kill left in a folder, and not what somebody holds (``trained.kept``)."""
    for left in [one for one in folder.iterdir() if is_left_over(one.name)]:
        if left.is_symlink() or not left.is_dir():
            left.unlink(missing_ok=True)
        elif not _held_by_others(left):
            shutil.rmtree(left, ignore_errors=True)


def _held_by_others(folder: Path) -> bool:
    try:
        check(folder)
    except (ValueError, OSError):  # the latter of a folder of another user's
        return True
    return False


def _opened(lock: Path) -> IO[str]:
    """For writing, without which NFS locks nothing, or as it may be."""
    try:
        return lock.open("r+", encoding="utf-8")
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
        return lock.open(encoding="utf-8")


def _take(file: IO[str], folder: Path, wait: bool) -> None:
    import fcntl  # there on Unix only, where nothing but a lock needs it

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        if not wait:
            what = f"{folder} is in use {holder(file)}; wait for it to end, or choose another folder"
            raise ValueError(what) from error
        say(f"waiting for {folder}, which is in use {holder(file)}", error=True)
        fcntl.flock(file, fcntl.LOCK_EX)


def holder(file: IO[str]) -> str:
    """Who wrote into the lock's file, as a part of a sentence."""
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
    """In a forked process: the lock is its parent's, and shall be free when that ends."""
    for file in _held:
        os.close(file.fileno())
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
