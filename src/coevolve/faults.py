"""The causes of exceptions, and their messages in one line: user code, a shortage of the machine, or a signal."""

from __future__ import annotations

import errno
import os
import signal
import site
import sysconfig
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

_PLACES = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_LIBRARIES = tuple(
    place + os.sep
    for place in {str(Path(__file__).parent), *_PLACES, *site.getsitepackages(), site.getusersitepackages()}
)
"""Folders whose code is not the user's: this package, Python's own, and what was installed for all or for the user."""

_MEMORY = (
    "out of memory",
    "use smaller micro_tokens, with which a run can go on, or a smaller model, batch_size or members, or end what else "
    "needs memory",
)
_DISK = "the disk is full", "free some space"
_SIZE = "a file became larger than it may be", "raise the limit (ulimit -f), or choose another disk"
_FILES = "too many open files", "raise the limit (ulimit -n), or end what holds them"
_PROCESSES = (
    "no more processes or threads",
    "raise the limit (ulimit -u, or that of the container), or end what holds them",
)

_LONGEST = 300  # characters of a library's message

_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")

_ERRNOS = {
    errno.ENOMEM: _MEMORY,
    errno.ENOSPC: _DISK,
    errno.EDQUOT: _DISK,
    errno.EFBIG: _SIZE,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EAGAIN: _PROCESSES,
}

_WORDS = {
    "out of memory": _MEMORY,
    "can't allocate memory": _MEMORY,
    "cannot allocate memory": _MEMORY,
    "alloc_failed": _MEMORY,
    "no space left": _DISK,
    "disk quota": _DISK,
    "disk is full": _DISK,
    "file write failed": _DISK,
    "failed writing file": _DISK,
    "unexpected pos ": _DISK,
    "too many open files": _FILES,
    "can't start new thread": _PROCESSES,
    "resource temporarily unavailable": _PROCESSES,
}
"""Messages of libraries that do not raise an OSError, in lower case; "unexpected pos" is torch's, for a file that is
shorter than what was written to it."""


_DEVICES = ("cuda error", "cuda driver", "cublas", "cudnn", "nccl", "hip error")
"""What is in the messages of GPUs and of the libraries that ranks talk by, in lower case."""


class ShortageError(OSError):
    """A shortage of the machine: memory, disk, files, processes. The message is one line: where, and what to do."""


class RanksError(ShortageError):
    """Ranks that train one policy together died, or did not answer in time; what they learnt since the last checkpoint
    is lost."""


class RanksLostError(RanksError):
    """Such ranks can be started again from here: the training goes on from the last checkpoint."""


class Interrupted(KeyboardInterrupt):
    """A signal that asks this process to end. number: the signal; the exit code is 128 + number."""

    def __init__(self, number: int, said: str = "") -> None:
        super().__init__(said or f"stopped by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def signals() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP raise ``Interrupted`` in this context, so that all end the process like Ctrl-C.

    A signal that is ignored (``nohup``, a shell's background jobs) or has a handler keeps it.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():  # other threads may not set handlers
        for name in _ENDING:
            number = getattr(signal, name, None)
            if number and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> None:
    raise Interrupted(number)


def is_interrupt(error: BaseException) -> bool:
    """Return whether this process was asked to end. A plain KeyboardInterrupt was raised by user code if ``signals`` is
    active, which raises ``Interrupted`` instead, or if Ctrl-C is ignored."""
    if isinstance(error, Interrupted):
        return True
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) not in (_interrupt, signal.SIG_IGN)


def lacking(error: BaseException) -> str | None:
    """Return what the machine lacked (memory, disk, open files, processes) and what to do; None for other errors.
    ``of_the_machine`` marks those of the sandbox, which imports nothing from here."""
    if isinstance(error, ShortageError) or getattr(error, "of_the_machine", False):
        return str(error)
    found = _shortage(error)
    return f"{found[0]} ({raised(error)[:_LONGEST]}); {found[1]}" if found else None


def _shortage(error: BaseException) -> tuple[str, str] | None:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # OutOfMemoryError: torch's
        return _MEMORY
    if isinstance(error, OSError) and error.errno is not None:
        return _ERRNOS.get(error.errno)
    if isinstance(error, ValueError | TypeError | LookupError):  # from user code, whose messages may say anything
        return None
    said = one_line(error).lower()
    return next((what for words, what in _WORDS.items() if words in said), None)


def of_device(error: BaseException) -> bool:
    """Return whether an error is of a GPU, or of ranks that talk to each other, whatever was being done meanwhile."""
    said = one_line(error).lower()
    return any(words in said for words in _DEVICES)


@contextmanager
def during(where: str) -> Iterator[None]:
    """Add the place to a shortage error: ``step 3: policy 'ann': out of memory``. Other errors pass unchanged."""
    try:
        yield
    except Exception as error:
        if line := lacking(error):
            raise _kind(error)(f"{where}: {line}") from error
        raise


def _kind(error: BaseException) -> type[ShortageError]:
    """Return the class to raise a shortage as: that of a ShortageError itself, since training recovers from lost ranks
    (``RanksLostError``)."""
    return type(error) if isinstance(error, ShortageError) else ShortageError


@contextmanager
def blame(where: str) -> Iterator[None]:
    """Turn any exception of user code, also ``sys.exit()``, into a ValueError of one line with place, file and line.

    The original is its cause. An interrupt passes unchanged, and a shortage of memory, disk, open files or processes
    becomes a ``ShortageError``.
    """
    try:
        yield
    except BaseException as error:
        if is_interrupt(error):
            raise
        if lack := lacking(error):
            raise _kind(error)(f"{where}: {lack}") from error
        if isinstance(error, ValueError):  # its message is written for users
            line = user_line(error)
            raise ValueError(f"{where}: {error}{f' ({line})' if line else ''}") from error
        raise ValueError(f"{where}: raised {raised(error)}") from error


def raised(error: BaseException) -> str:
    """Return an exception and where user code raised it: ``KeyError: 'x' (/home/me/reward.py, line 12)``."""
    said, place = one_line(error), user_line(error)
    return "".join([type(error).__name__, f": {said}" if said else "", f" ({place})" if place else ""])


def one_line(said: object) -> str:
    """Return the text of an exception or other object without line breaks; empty if its ``__str__`` fails."""
    try:
        return " ".join(str(said).split())
    except BaseException:  # noqa: BLE001
        return ""


def user_line(error: BaseException) -> str | None:
    """Return the innermost line of user code in a traceback, ``/home/me/reward.py, line 12``; None without one."""
    found = [
        f"{frame.filename}, line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", *_LIBRARIES))
    ]
    return found[-1] if found else None


class Closeable(Protocol):
    """An object with processes, servers or files to close."""

    def close(self) -> None: ...


@contextmanager
def closed_after(things: Sequence[Closeable]) -> Iterator[None]:
    """Close all objects after this context, even if one fails to; an error inside it is not replaced by theirs."""
    with ExitStack() as stack:
        for one in things:
            stack.callback(one.close)
        try:
            yield
        except BaseException:
            with suppress(Exception):
                stack.close()
            raise
