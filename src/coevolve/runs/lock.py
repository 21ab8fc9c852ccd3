"""Locks between processes, which end with those who hold them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(folder: Path, busy: str | None = None) -> Iterator[int]:
    """Nobody else is in this folder meanwhile; yields the lock's file descriptor, for processes that shall hold it too.

    Made if it is not there. busy: raise ValueError saying this if somebody is; without it, wait.
    """
    import fcntl  # there on Unix only, where nothing but a lock needs it

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if busy is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(busy) from error
        yield file.fileno()
