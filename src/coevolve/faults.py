"""Whose fault an exception is, and the line that says so: the user's code, the machine's want, or a signal."""

from __future__ import annotations

import errno
import signal
import sysconfig
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

_HERE = str(Path(__file__).parent)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})

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

_LONGEST = 300  # characters of what a library says

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
    "file write failed": _DISK,
    "failed writing file": _DISK,
    "unexpected pos ": _DISK,
    "too many open files": _FILES,
    "can't start new thread": _PROCESSES,
    "resource temporarily unavailable": _PROCESSES,
}
"""What libraries that do not raise an OSError say, in lower case; "unexpected pos" is torch's, whose file is shorter
than what was written to it."""


class ShortageError(OSError):
    """The machine lacks something: memory, disk, files, processes. One line with where and what to do."""


class RanksLostError(ShortageError):
    """Processes that learn one policy together died, or did not answer in time; what they learnt since the last
    checkpoint is gone with them."""


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end. number: which; a shell sees 128 more as the exit code."""

    def __init__(self, number: int, said: str = "") -> None:
        super().__init__(said or f"stopped by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def signals() -> Iterator[None]:
    """In here what asks the process to end raises ``Interrupted``, so that it ends like one that Ctrl-C stops.

    A signal that is ignored (``nohup``, a shell's background jobs) or handled by somebody stays so.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():  # nobody else may say
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


@contextmanager
def handlers_kept() -> Iterator[None]:
    """What is called in here (``ray.init``) may not leave signal handlers of its own in the place of ours."""
    before = {number: signal.getsignal(number) for name in _ENDING if (number := getattr(signal, name, None))}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def is_interrupt(error: BaseException) -> bool:
    """Whether somebody asked this process to end. A plain KeyboardInterrupt may be that, or be raised by user code:
    the latter where ``signals`` would have made another of the former, or where Ctrl-C is ignored."""
    if isinstance(error, Interrupted):
        return True
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) not in (_interrupt, signal.SIG_IGN)


def lacking(error: BaseException) -> str | None:
    """What the machine lacked and what to do, if that is what the error says: memory, disk, open files, processes."""
    if isinstance(error, ShortageError):
        return str(error)
    found = _shortage(error)
    return f"{found[0]} ({raised(error)[:_LONGEST]}); {found[1]}" if found else None


def _shortage(error: BaseException) -> tuple[str, str] | None:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # the latter is torch's
        return _MEMORY
    if isinstance(error, OSError) and error.errno is not None:
        return _ERRNOS.get(error.errno)
    if isinstance(error, ValueError | TypeError | LookupError):  # of people, who may say anything
        return None
    said = one_line(error).lower()
    return next((what for words, what in _WORDS.items() if words in said), None)


@contextmanager
def during(where: str) -> Iterator[None]:
    """Say where the machine lacked something: ``step 3: policy 'ann': out of memory``. Other errors pass."""
    try:
        yield
    except Exception as error:
        if line := lacking(error):
            raise _kind(error)(f"{where}: {line}") from error
        raise


def _kind(error: BaseException) -> type[ShortageError]:
    """What a shortage is raised as: ranks that were lost stay that, for a training goes on without them."""
    return type(error) if isinstance(error, ShortageError) else ShortageError


@contextmanager
def blame(where: str) -> Iterator[None]:
    """Turn whatever user code raises, ``sys.exit()`` too, into one line that says where and at which line of its file.

    The original stays attached as the cause. What passes as it is: an interrupt; what becomes a ``ShortageError``: the
    machine's want of memory, disk, files or processes.
    """
    try:
        yield
    except BaseException as error:
        if is_interrupt(error):
            raise
        if lack := lacking(error):
            raise _kind(error)(f"{where}: {lack}") from error
        if isinstance(error, ValueError):  # its message is for people
            line = user_line(error)
            raise ValueError(f"{where}: {error}{f' ({line})' if line else ''}") from error
        raise ValueError(f"{where}: raised {raised(error)}") from error


def raised(error: BaseException) -> str:
    """``KeyError: 'x' (/home/me/reward.py, line 12)``, in one line: an exception and where user code raised it."""
    said, place = one_line(error), user_line(error)
    return "".join([type(error).__name__, f": {said}" if said else "", f" ({place})" if place else ""])


def one_line(said: object) -> str:
    """What an exception, or anything, says, without its line breaks; nothing if it cannot: user code may raise
    anything."""
    try:
        return " ".join(str(said).split())
    except BaseException:  # noqa: BLE001
        return ""


def user_line(error: BaseException) -> str | None:
    """``/home/me/reward.py, line 12``: the last place that the error passed in code of the user's own."""
    found = [
        f"{frame.filename}, line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_HERE, "<", *_LIBRARIES))
    ]
    return found[-1] if found else None


class Closeable(Protocol):
    """What has processes, servers or files to end."""

    def close(self) -> None: ...


@contextmanager
def closed_after(things: Sequence[Closeable]) -> Iterator[None]:
    """Closes all of them behind it, whichever fails to; an error from inside is not replaced by one of that."""
    with ExitStack() as stack:
        for one in things:
            stack.callback(one.close)
        try:
            yield
        except BaseException:
            with suppress(Exception):
                stack.close()
            raise
