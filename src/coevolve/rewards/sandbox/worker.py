"""One worker of the sandbox: a server of judges and a server of guests, and one case at a time between them."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from coevolve.rewards.sandbox import isolation as how
from coevolve.rewards.sandbox import syscalls
from coevolve.rewards.sandbox.inside import wire
from coevolve.rewards.sandbox.inside.judge import LIVES
from coevolve.rewards.sandbox.isolation import Isolation
from coevolve.rewards.sandbox.split import Plan
from coevolve.rewards.sandbox.types import Kind, Program, Verdict

GRACE_SECONDS = 0.5
"""How long after a limit the judge may take to say so, before the worker is killed."""
START_SECONDS = 30.0
STARTS, PAUSE_SECONDS = 4, 0.3
ROLES = ("judge", "guest")
PROCESSES = 32
"""Threads that a case may have."""
_NOBODY = 65534
_BOOT = (
    "import sys; from types import ModuleType; box = sys.modules['inside'] = ModuleType('inside'); "
    "box.__path__ = sys.argv[1:2]; from inside.server import main; main(sys.argv[2], *map(int, sys.argv[3:]))"
)
_slots = itertools.count()


class Worker:
    """Processes start at the first case. timeout (seconds), memory_mb: as ``Sandbox`` has them. For one thread."""

    def __init__(self, isolation: Isolation, timeout: float, memory_mb: int) -> None:
        self.isolation, self.timeout, self.memory_mb = isolation, timeout, memory_mb
        self._servers: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
        self._temp = ""
        self._owner = os.getpid()

    def run(self, program: Program, plan: Plan) -> tuple[Verdict, ...]:
        """The verdicts of one case. plan: of its tests.

        ValueError: the prelude does not run. OSError: the servers do not start.
        """
        verdicts: list[Verdict] = []
        rest: Kind = "crashed"
        for _ in range(2):  # servers that died unseen, of the case before, must not cost this one its verdicts
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
        return (*verdicts, *(Verdict(rest, test) for test in plan.sources[len(verdicts) :]))

    def _judge(self, program: Program, plan: Plan, verdicts: list[Verdict]) -> None:
        """Append the verdicts as they come."""
        link = self._servers[0][1]
        texts = {name: getattr(program, name) for name in ("code", "entry", "prelude", "setup")}
        case = {"steps": plan.steps, "opening": plan.opening, "names": plan.names, "timeout": self.timeout}
        wire.send(link, texts | case)
        fault = None
        while True:
            word, *rest = wire.receive(link, until=time.monotonic() + self.timeout + GRACE_SECONDS)
            if word == "end":
                break
            if word == "fault":
                fault = rest[0]
            elif word == "test":
                index, kind, error, text, line = rest
                verdicts.append(Verdict(kind, plan.sources[index], error, text, line))
        if fault is not None:
            raise ValueError(f"a prelude does not run in the sandbox: {fault}; it begins {program.prelude[:60]!r}")

    def close(self) -> None:
        """End the processes; the next case starts others. In a fork of the process that started them, forget them."""
        if os.getpid() != self._owner:
            self._servers, self._temp = [], ""
            return
        for process, link in self._servers:
            link.close()
            _kill(process)
        self._servers.clear()
        if self._temp:
            shutil.rmtree(self._temp, ignore_errors=True)
            self._temp = ""

    def _start(self) -> None:
        """Start both servers. OSError: they did not, at several attempts, and why."""
        problem = ""
        for attempt in range(STARTS):
            time.sleep(attempt * PAUSE_SECONDS)  # for other cases to end, where the machine had no process left
            problem = self._started()
            if not problem:
                return
            self.close()
        raise OSError(f"the sandbox does not start ({self.isolation.level}): {problem}")

    def _started(self) -> str:
        """Start both servers; what went wrong, "" if nothing did."""
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
        return subprocess.Popen(
            how.command(self.isolation, arguments), pass_fds=ends, env=how.ENVIRONMENT, cwd="/", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def _settings(self, role: str) -> dict[str, Any]:
        """What a server and its cases are told about themselves."""
        chosen = self.isolation
        own = "/tmp" if chosen.level == "bubblewrap" else self._temp
        folders = how.library(chosen)
        return {
            "temp": os.path.join(own, role),
            "user": _user() if chosen.drops else None,
            "memory_mb": self.memory_mb,
            "cpu_seconds": math.ceil(LIVES * self.timeout) + 1,
            "processes": (PROCESSES if chosen.drops else PROCESSES + _tasks()) if chosen.linux else 0,
            "alone": chosen.level == "bubblewrap",
            "landlock": chosen.landlock,
            "seccomp": syscalls.program(forks=role == "judge").hex() if chosen.seccomp else "",
            "library": folders,
            "readable": [*how.readable(), *(folders or [])],
        }


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The server and, where the kernel does not do it, its cases."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stderr is not None:
        process.stderr.close()


def _user() -> int:
    """A number that no other worker on this machine uses at the same time; nobody's, where the machine has few."""
    number = 1 << 30 | (os.getpid() << 8 & 0x3FFFFF00) | next(_slots) & 0xFF
    lines = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return number if any(first <= number < first + count for first, _, count in lines) else _NOBODY


def _tasks() -> int:
    """Threads of all the caller's processes: the kernel's limit counts them too."""
    count = 0
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            count += len(os.listdir(place / "task")) if place.stat().st_uid == os.getuid() else 0
    return count
