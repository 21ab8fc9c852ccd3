"""A server as a child process that does not outlive this process, however this process ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

_GOES = 15.0
"""Seconds between asking a child to end (SIGTERM) and killing it."""

_TORCHRUN = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
})  # fmt: skip
_ONE_THREAD = ("OMP_NUM_THREADS", "1")
"""The variable that torchrun sets if it is not set; a 1 that the user set cannot be told from it."""

_UNTIL_INPUT_ENDS = 'cat > /dev/null; kill -9 "-$1"'
"""The guard's script: its input is a pipe from this process, which closes when this process ends."""

_GUARDS = WeakSet[subprocess.Popen[bytes]]()


class Child:
    """A program in a process group of its own, whose output goes to a file, ``log``.

    A guard, a shell that reads from this process, kills the group when this process is gone. environment: variables
    added to those of this process, of which torchrun's are left out. Raises OSError if the program cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        number, name = tempfile.mkstemp(prefix=f"coevolve-{Path(command[0]).name}-", suffix=".log")
        self.log = Path(name)
        with os.fdopen(number, "wb") as out:
            try:
                self.process = subprocess.Popen(
                    command,
                    env={**without_torchrun(os.environ), **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError:
                self.log.unlink()
                raise
        self._closed = False
        guard = ["sh", "-c", _UNTIL_INPUT_ENDS, "sh", str(self.process.pid)]
        try:
            self.guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
            _GUARDS.add(self.guard)
        except BaseException:  # an interrupt, too: nothing else would end the child
            self._kill()
            self.log.unlink()
            raise

    @property
    def ended(self) -> int | None:
        """The child's exit code; None while it runs."""
        return self.process.poll()

    def lines(self) -> list[str]:
        """Return the lines of the child's output that are not empty."""
        text = self.log.read_text("utf-8", errors="replace") if self.log.exists() else ""
        return [line.strip() for line in text.split("\n") if line.strip()]

    def close(self, keep_log: bool = False) -> None:
        """Ask the child to end, then kill it and all its processes. The log is removed unless ``keep_log``, or unless
        the child had ended by itself."""
        if self._closed:  # a flag, not the state of the guard, which may have been killed from outside
            return
        self._closed = True
        alone = self.ended is not None
        if not alone:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_GOES)
        self._kill()
        self.guard.kill()
        self.guard.communicate()
        if not (alone or keep_log):
            self.log.unlink(missing_ok=True)

    def _kill(self) -> None:
        """Kill the child and all its processes at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def without_torchrun(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that torchrun sets: a program started with them would take itself for
    one of torchrun's processes, and wait for the others."""
    if "TORCHELASTIC_RUN_ID" not in environment:
        return dict(environment)

    def told(key: str, value: str) -> bool:
        return key.startswith("TORCHELASTIC_") or key in _TORCHRUN or (key, value) == _ONE_THREAD

    return {key: value for key, value in environment.items() if not told(key, value)}


def _let_go() -> None:
    """Close a forked process's ends of the guards' pipes; else the guards would outwait the process that they guard."""
    for guard in _GUARDS:
        if guard.stdin is not None:
            guard.stdin.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a program listens at this port now. host: an address of this machine."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def free_port() -> int:
    """Return a port at which no program listens now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
