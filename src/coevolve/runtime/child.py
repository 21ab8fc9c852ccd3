"""A server as a child process that does not outlive this one, however this one ends."""

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
"""Seconds that it has to end by itself."""

_TORCHRUN = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
})  # fmt: skip
_ONE_THREAD = ("OMP_NUM_THREADS", "1")
"""What torchrun sets where nothing was set; a 1 of the user's own looks alike."""

_UNTIL_INPUT_ENDS = 'cat > /dev/null; kill -9 "-$1"'
"""What the guard does: its input is ours, and ends with us."""

_GUARDS = WeakSet[subprocess.Popen[bytes]]()


class Child:
    """A program in a process group of its own, whose output goes to a file, ``log``.

    A guard, a shell that reads from this process, kills the group when this process is gone. environment: besides
    that of this process, but for what torchrun put into it. Raises OSError if the program cannot be started.
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
        except BaseException:  # an interrupt, too: nobody else would end it
            self._kill()
            self.log.unlink()
            raise

    @property
    def ended(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.poll()

    def last_line(self) -> str:
        """What it said last."""
        lines = self.log.read_text("utf-8", errors="replace").split("\n") if self.log.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self, keep_log: bool = False) -> None:
        """Ask it to end, and end it and all its processes. The log of one that had ended by itself is kept, too."""
        if self._closed:  # not by its guard, whom somebody may have killed
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
        """End it and all its processes, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def without_torchrun(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what torchrun tells its processes: another program would take itself for one of them, and
    wait for the others."""
    if "TORCHELASTIC_RUN_ID" not in environment:
        return dict(environment)

    def told(key: str, value: str) -> bool:
        return key.startswith("TORCHELASTIC_") or key in _TORCHRUN or (key, value) == _ONE_THREAD

    return {key: value for key, value in environment.items() if not told(key, value)}


def _let_go() -> None:
    """A fork does not keep the guards waiting when the process that they guard is gone."""
    for guard in _GUARDS:
        if guard.stdin is not None:
            guard.stdin.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def listens(port: int) -> bool:
    """Whether somebody listens at this port of this machine now."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
