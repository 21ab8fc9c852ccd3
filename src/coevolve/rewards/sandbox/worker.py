"""One worker of the sandbox: a server that forks judges, a server that forks guests, and one case at a time."""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coevolve.rewards.sandbox import isolation as how
from coevolve.rewards.sandbox import syscalls
from coevolve.rewards.sandbox.inside import folder, wire
from coevolve.rewards.sandbox.inside.judge import LIVES
from coevolve.rewards.sandbox.isolation import Isolation
from coevolve.rewards.sandbox.split import Plan, bound
from coevolve.rewards.sandbox.types import Kind, Program, Verdict

GRACE_SECONDS = 0.5
"""Seconds that the judge may take to report after a time limit, before the worker is killed."""
START_SECONDS = 30.0
STARTS, ATTEMPTS, PAUSE_SECONDS = 4, 6, 0.3
"""Attempts to start the servers, and to judge a case if the machine has no process left; the pauses between grow."""
ROLES = ("judge", "guest")
PROCESSES = 32
"""Most threads of a case."""
_NOBODY = 65534
_FULL = os.strerror(errno.EAGAIN)
"""The error text of a server that dies because no process can be created, of bwrap and of Python."""
_BOOT = (
    "import sys; from types import ModuleType; box = sys.modules['inside'] = ModuleType('inside'); "
    "box.__path__ = sys.argv[1:2]; from inside.server import main; main(sys.argv[2], *map(int, sys.argv[3:]))"
)
_slots = itertools.count()


LACKS = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
"""The errors of a full disk, and of too many open files."""


class MachineFullError(OSError):
    """The machine has no process or thread left, which is not the fault of any program."""

    def __init__(self) -> None:
        super().__init__(
            errno.EAGAIN,
            "the sandbox: this machine has no process or thread left; stop other programs, or "
            "raise its limits (ulimit -u, the container's pids), or ask for fewer sandbox workers",
        )


class StartError(OSError):
    """The sandbox's servers do not start, where they have started before: the machine's fault."""

    of_the_machine = True


@dataclass(frozen=True)
class Limits:
    """The limits of a ``Sandbox``: timeout and program_timeout in seconds, memory_mb, stop_at_failure."""

    timeout: float
    memory_mb: int
    program_timeout: float | None = None
    stop_at_failure: bool = False

    @property
    def seconds(self) -> float:
        """The time limit of a whole program, in seconds."""
        return LIVES * self.timeout if self.program_timeout is None else self.program_timeout


class Worker:
    """A worker that judges one case at a time. Its processes start at the first case. For use by one thread."""

    def __init__(self, isolation: Isolation, limits: Limits) -> None:
        self.isolation, self.limits = isolation, limits
        self._servers: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
        self._temp = ""
        self._owner = os.getpid()

    def run(self, program: Program, plan: Plan) -> tuple[Verdict, ...]:
        """Judge one case and return its verdicts. plan: the plan of its tests.

        Raises ValueError if the prelude does not run, OSError if the servers do not start, MachineFullError if no
        process is left.
        """
        for attempt in range(ATTEMPTS):
            time.sleep(PAUSE_SECONDS * (2**attempt - 1))  # other programs may end meanwhile
            with contextlib.suppress(wire.Full):
                return self._tried(program, plan)
        raise MachineFullError

    def _tried(self, program: Program, plan: Plan) -> tuple[Verdict, ...]:
        """Judge one case once. Raises wire.Full if the machine had no process for one of its interpreters."""
        verdicts: list[Verdict] = []
        rest: Kind = "crashed"
        for _ in range(2):  # servers that died since the last case must not cost this one its verdicts
            try:
                if not self._servers:
                    self._start()
                self._judge(program, plan, verdicts)
                break
            except wire.Gone:
                self.close()
                if verdicts:
                    break
            except wire.Late:
                self.close()
                rest = "timeout"
                break
        for test in plan.sources[len(verdicts) :]:
            verdicts.append(Verdict(rest, test))
            rest = "skipped" if self.limits.stop_at_failure else rest
        return tuple(verdicts)

    def _judge(self, program: Program, plan: Plan, verdicts: list[Verdict]) -> None:
        """Send one case to the judges' server and append its verdicts as they arrive."""
        link, limits = self._servers[0][1], self.limits
        texts = {name: getattr(program, name) for name in ("code", "entry", "prelude", "setup")}
        names = sorted({*plan.names} - bound(program.prelude))
        tests = {"steps": plan.steps, "opening": plan.opening, "names": names, "stars": plan.stars}
        limited = {"timeout": limits.timeout, "seconds": limits.seconds, "stop_at_failure": limits.stop_at_failure}
        wire.send(link, texts | tests | limited)
        last = time.monotonic() + limits.seconds + LIVES * GRACE_SECONDS
        fault, full = None, False
        while True:
            word, *rest = wire.receive(link, until=min(last, time.monotonic() + limits.timeout + GRACE_SECONDS))
            if word == "end":
                break
            if word == "fault":
                fault = rest[0]
            elif word == "full":
                full = True
            elif word == "test":
                index, kind, error, text, line = rest
                verdicts.append(Verdict(kind, plan.sources[index], error, text, line))
        if fault is not None:
            raise ValueError(f"a prelude does not run in the sandbox: {fault}; it begins {program.prelude[:60]!r}")
        if full:
            raise wire.Full

    def close(self) -> None:
        """End the servers; the next case starts others. In a fork of the process that started them, forget them."""
        if os.getpid() != self._owner:
            self._servers, self._temp = [], ""
            return
        for process, link in self._servers:
            link.close()
            _kill(process)
        self._servers.clear()
        if self._temp:
            with contextlib.suppress(OSError):  # a case of a killed server may still be ending
                for role in os.listdir(self._temp):
                    folder.empty(os.path.join(self._temp, role))
            shutil.rmtree(self._temp, ignore_errors=True)
            self._temp = ""

    def _start(self) -> None:
        """Start both servers. Raises StartError with the reason if all attempts fail, wire.Full if no process is left,
        and the OSError of a full disk or of too many open files."""
        problem = ""
        for attempt in range(STARTS):
            time.sleep(attempt * PAUSE_SECONDS)
            try:
                problem = self._started()
            except OSError as error:
                self.close()
                if error.errno in (errno.EAGAIN, errno.ENOMEM):
                    raise wire.Full from error
                if error.errno in LACKS:
                    raise
                problem = str(error)
            if not problem:
                return
            self.close()
        if _FULL in problem:
            raise wire.Full
        raise StartError(f"the sandbox does not start ({self.isolation.level}): {problem}")

    def _started(self) -> str:
        """Try to start both servers and return what went wrong; "" if nothing did."""
        self._temp = tempfile.mkdtemp(prefix="coevolve-sandbox-")
        os.chmod(self._temp, 0o711)
        kind = socket.SOCK_SEQPACKET if self.isolation.linux else socket.SOCK_DGRAM
        for role, control in zip(ROLES, socket.socketpair(socket.AF_UNIX, kind), strict=True):
            ours, theirs = socket.socketpair()
            with control, theirs:
                ends = (theirs.fileno(), control.fileno())
                self._servers.append((self._server(role, ends), ours))
        for role, (process, link) in zip(ROLES, self._servers, strict=True):
            try:
                wire.send(link, self._settings(role))
                wire.receive(link, until=time.monotonic() + START_SECONDS)
            except (wire.Gone, wire.Late) as error:
                process.kill()
                _, said = process.communicate()
                return " ".join(said.decode(errors="replace").split())[-300:] or str(error) or "no answer"
        return ""

    def _server(self, role: str, ends: tuple[int, int]) -> subprocess.Popen[bytes]:
        arguments = ["-c", _BOOT, str(how.INSIDE), role, *map(str, ends)]
        line = how.command(self.isolation, self._own(role), arguments)
        return subprocess.Popen(
            line, pass_fds=ends, env=how.ENVIRONMENT, cwd="/", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def _own(self, role: str) -> str:
        """Return the folder of a server's cases; in bubblewrap it lies in the server's own file system."""
        return os.path.join("/tmp" if self.isolation.level == "bubblewrap" else self._temp, role)

    def _settings(self, role: str) -> dict[str, Any]:
        """Return the settings that a server is sent at its start, for itself and its cases."""
        chosen, guest = self.isolation, role == "guest"
        folders = how.library(chosen)
        return {
            "temp": self._own(role),
            "user": _user() if chosen.drops else None,
            "memory_mb": self.limits.memory_mb,
            "cpu_seconds": math.ceil(self.limits.seconds) + 1,
            "processes": (PROCESSES if chosen.drops else PROCESSES + _tasks()) if chosen.linux and guest else 0,
            "alone": chosen.level == "bubblewrap",
            "landlock": chosen.landlock,
            "seccomp": syscalls.program(forks=not guest).hex() if chosen.seccomp else "",
            "counter": syscalls.counter().hex() if chosen.counted and guest else "",
            "seccomp_call": syscalls.seccomp_call() if chosen.counted and guest else 0,
            "library": folders,
            "readable": [*how.readable(), *(folders or [])],
        }


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a server and, where the kernel does not do so, its cases."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stderr is not None:
        process.stderr.close()


def _user() -> int:
    """Return a user id that no other worker on this machine uses at the same time; that of nobody if such ids are not
    mapped."""
    number = 1 << 30 | (os.getpid() << 8 & 0x3FFFFF00) | next(_slots) & 0xFF
    lines = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return number if any(first <= number < first + count for first, _, count in lines) else _NOBODY


def _tasks() -> int:
    """Return the number of threads of all the caller's processes, which the kernel's limit counts too."""
    count = 0
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            count += len(os.listdir(place / "task")) if place.stat().st_uid == os.getuid() else 0
    return count
