"""The two servers of a worker: one forks a judge for each case, the other a guest when a judge asks for one."""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from . import wire
from .confine import confine

PRELOADED = (
    "abc array ast base64 bisect calendar cmath collections collections.abc contextlib copy ctypes dataclasses datetime "
    "decimal difflib enum fractions functools hashlib heapq html inspect io itertools json keyword locale math "
    "numbers operator os queue random re secrets statistics string struct sys textwrap threading time traceback types "
    "typing unicodedata uuid warnings weakref zlib"
).split()
DYING_SECONDS = 0.05
"""How long a guest that closed its socket has to be dead, before it is killed."""


def main(role: str, link: int, control: int) -> None:
    """Serve until the trainer closes the link."""
    for name in PRELOADED:
        __import__(name)
    trainer, other = socket.socket(fileno=link), socket.socket(fileno=control)
    settings = wire.receive(trainer)
    gc.freeze()
    wire.send(trainer, ["ready"])
    try:
        _judges(trainer, other, settings) if role == "judge" else _Guests(trainer, other, settings).serve()
    except wire.Gone:
        pass


def _judges(trainer: socket.socket, guests: socket.socket, settings: dict[str, Any]) -> None:
    while True:
        program = wire.receive(trainer)
        pid = os.fork()
        if not pid:
            _judge(trainer, guests, settings, program)
        _, status = os.waitpid(pid, 0)
        _ask(guests, "stop")
        wire.send(trainer, ["end", status])


def _judge(trainer: socket.socket, guests: socket.socket, settings: dict[str, Any], program: dict[str, Any]) -> NoReturn:
    try:
        from .judge import Judge

        random.seed(0)

        def start() -> socket.socket:
            guests.send(b"start")
            _, fds, _, _ = socket.recv_fds(guests, 64, 1)
            return socket.socket(fileno=fds[0])

        Judge(program, start, lambda: _ask(guests, "look")).run(lambda message: wire.send(trainer, message))
    finally:
        os._exit(0)


def _ask(guests: socket.socket, what: str) -> str:
    guests.send(what.encode())
    return guests.recv(64).decode()


class _Guests:
    def __init__(self, trainer: socket.socket, judges: socket.socket, settings: dict[str, Any]) -> None:
        self.trainer, self.judges, self.settings = trainer, judges, settings
        self.pid = 0

    def serve(self) -> None:
        while True:
            request = self.judges.recv(64)
            if not request:
                return
            if request == b"start":
                self.start()
            else:
                self.judges.send(self.stop(DYING_SECONDS if request == b"look" else 0).encode())

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            try:
                from . import guest

                confine(self.settings, ours.fileno())
                guest.run(socket.socket(fileno=3))
            finally:
                os._exit(1)
        ours.close()
        socket.send_fds(self.judges, [b"guest"], [theirs.fileno()])
        theirs.close()

    def stop(self, patience: float) -> str:
        if not self.pid:
            return "crashed"
        status = self.dead(patience)
        if status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.pid = 0
        return "crashed"

    def dead(self, seconds):
        until = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return status
            if time.monotonic() >= until:
                return None
            time.sleep(0.002)
