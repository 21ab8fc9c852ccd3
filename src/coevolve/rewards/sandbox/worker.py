"""One worker of the sandbox: a server of judges and a server of guests, and one case at a time between them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coevolve.rewards.sandbox.inside import wire
from coevolve.rewards.sandbox.types import Program, Verdict

GRACE_SECONDS = 0.5
"""How long after a limit the judge may take to say so, before the worker is killed."""
_INSIDE = Path(__file__).with_name("inside")
_BOOT = (
    "import sys, types; package = sys.modules['inside'] = types.ModuleType('inside'); package.__path__ = [sys.argv[1]]\n"
    "from inside.server import main; main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))"
)


class Worker:
    def __init__(self, memory_mb: int) -> None:
        self.memory_mb = memory_mb
        self._servers: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
        self._temp = ""

    def run(self, program: Program, tests: tuple[str, ...], timeout: float) -> tuple[Verdict, ...]:
        """The verdicts of one case."""
        if not self._servers:
            self._start()
        link = self._servers[0][1]
        verdicts: list[Verdict] = []
        wire.send(link, asdict(program) | {"timeout": timeout})
        try:
            while True:
                message = wire.receive(link, until=time.monotonic() + timeout + GRACE_SECONDS)
                if message[0] == "fault":
                    raise ValueError(message[1])
                if message[0] == "end":
                    break
                if message[0] == "test":
                    _, index, kind, error, text, line = message
                    verdicts.append(Verdict(kind, tests[index], error, text, line))
        except (wire.Gone, wire.Late) as end:
            self.close()
            kind = "timeout" if isinstance(end, wire.Late) else "crashed"
            verdicts += [Verdict(kind, test) for test in tests[len(verdicts) :]]
        verdicts += [Verdict("crashed", test) for test in tests[len(verdicts) :]]
        return tuple(verdicts)

    def close(self) -> None:
        for process, link in self._servers:
            process.kill()
            process.wait()
            link.close()
        self._servers.clear()
        if self._temp:
            shutil.rmtree(self._temp, ignore_errors=True)

    def _start(self) -> None:
        self._temp = tempfile.mkdtemp(prefix="coevolve-sandbox-")
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for role, control in zip(("judge", "guest"), pair, strict=True):
            ours, theirs = socket.socketpair()
            process = subprocess.Popen(
                [getattr(sys, "_base_executable", sys.executable), "-s", "-S", "-P", "-B", "-c", _BOOT, str(_INSIDE), role, str(theirs.fileno()), str(control.fileno())],
                pass_fds=(theirs.fileno(), control.fileno()), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={"PYTHONHASHSEED": "0"}, start_new_session=True,
            )
            theirs.close()
            control.close()
            self._servers.append((process, ours))
            wire.send(ours, {"temp": self._temp, "memory_mb": self.memory_mb, "cpu_seconds": 60})
        for process, link in self._servers:
            assert wire.receive(link) == ["ready"]
