"""The two servers of a worker: one forks a judge for each case, the other a guest when a judge asks for one.

They only fork, wait and clean up; no untrusted code runs in them, and none is sent to the guests' server. A judge sends
words to the guests' server, in packets: "start", answered with a new guest's socket, or "full" if the machine has no
process left; "look", answered with how the guest ended by itself; and "stop", which ends it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from . import counter, folder, wire
from .confine import SET_CHILD_SUBREAPER, SET_DUMPABLE, SET_PDEATHSIG, Confinement, prctl

PRELOADED = """
abc array bisect cmath collections collections.abc contextlib copy dataclasses datetime decimal enum fractions functools
heapq io itertools json math numbers operator os random re statistics string struct sys textwrap time traceback types
typing unicodedata warnings weakref
"""
DYING_SECONDS = 0.1
"""Seconds that a guest which closed its socket has to end by itself, before it is killed."""
TICK_SECONDS = 0.05
"""Interval at which a guest's files are counted if the kernel cannot ask before each; too many, and it is killed."""


def main(role: str, link: int, control: int) -> None:
    """Serve until the trainer closes the link."""
    trainer, other = _low(link), _low(control)
    settings = wire.receive(trainer)
    _move_library(settings["library"])
    _preload()
    if sys.platform.startswith("linux"):
        prctl(SET_PDEATHSIG, signal.SIGKILL)
        prctl(SET_DUMPABLE, 0)
        prctl(SET_CHILD_SUBREAPER, 1)  # becomes the parent of a case's orphans
    os.umask(0o077)
    os.makedirs(settings["temp"], exist_ok=True)
    os.environ["TMPDIR"] = settings["temp"]
    if settings["user"] is not None:
        os.chown(settings["temp"], settings["user"], settings["user"])
    confinement = Confinement(settings)
    os.dup2(1, 2)  # until here standard error was the trainer's pipe
    gc.collect()
    gc.freeze()  # so that garbage collection in a fork copies no shared page
    wire.send(trainer, ["ready"])
    with contextlib.suppress(wire.Gone):
        (_judges if role == "judge" else _guests)(trainer, other, confinement)


def _preload() -> None:
    """Import the modules that programs use most, without the fork hooks of random and threading: these would undo the
    seed, and no thread is alive at a fork. So this file itself must not import these two.
    """
    import shutil

    shutil.copymode = shutil.copystat = lambda *_, **__: None  # a case may not set modes and times
    register = os.register_at_fork
    os.register_at_fork = lambda **_: None
    for name in PRELOADED.split():
        __import__(name)
    os.register_at_fork = register
    sys.modules["random"].seed(0)  # every case starts with this seed


def _low(descriptor: int) -> socket.socket:
    """Move a socket to the lowest free descriptor, because cases close the higher ones."""
    low = os.dup(descriptor)
    os.close(descriptor)
    return socket.socket(fileno=low)


def _move_library(folders: list[str] | None) -> None:
    """Import from these folders from now on, also submodules of packages that are already loaded."""
    if folders is None:
        return
    old = os.path.dirname(os.__file__)
    sys.path[:] = folders
    sys.path_importer_cache.clear()
    for module in list(sys.modules.values()):
        paths = getattr(module, "__path__", None)
        if isinstance(paths, list):
            paths[:] = [folders[0] + path[len(old) :] if path.startswith(old) else path for path in paths]


def _judges(trainer: socket.socket, guests: socket.socket, confinement: Confinement) -> None:
    from .judge import Judge

    confinement.apply([trainer.fileno(), guests.fileno()])  # once, for all judges, which run nothing untrusted
    server = os.getpid()
    while True:
        program = wire.receive(trainer)
        try:
            child = os.fork()
        except OSError as error:
            wire.send(trainer, ["full", str(error)])
            wire.send(trainer, ["end", 0])
            continue
        if not child:
            if sys.platform.startswith("linux"):
                prctl(SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != server:  # the server died before PDEATHSIG was set
                    os._exit(1)
            confinement.limit_time()
            _judge(Judge, trainer, guests, program)
        _, status = os.waitpid(child, 0)
        _ask(guests, "stop")
        _clean(confinement.settings)
        wire.send(trainer, ["end", status])


def _judge(judge: Any, trainer: socket.socket, guests: socket.socket, program: dict[str, Any]) -> NoReturn:
    try:
        case = judge(program, lambda: _new_guest(guests), lambda word: _ask(guests, word)[0])
        case.run(lambda message: wire.send(trainer, message))
    except wire.Full as full:
        wire.send(trainer, ["full", str(full)])
    finally:
        os._exit(0)


def _new_guest(guests: socket.socket) -> socket.socket:
    how, descriptors = _ask(guests, "start")
    if not descriptors:
        raise wire.Full(how)
    return socket.socket(fileno=descriptors[0])


def _ask(guests: socket.socket, word: str) -> tuple[str, list[int]]:
    """Send a word to the guests' server; return its answer and the descriptors that came with it. Words carry a random
    number, because a judge that is killed or out of time leaves an unread answer behind.
    """
    number = os.urandom(8).hex()
    guests.send(f"{word} {number}".encode())
    while True:
        answer, descriptors, _, _ = socket.recv_fds(guests, 64, 1)
        if not answer:
            raise wire.Gone("the guests' server is gone")
        how, _, to = answer.decode().partition(" ")
        if to == number:
            return how, list(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _guests(trainer: socket.socket, judges: socket.socket, confinement: Confinement) -> None:
    from . import guest

    own, child, listener, files = confinement.settings["temp"], 0, -1, None
    poller = select.poll()
    for sock in (trainer, judges):
        poller.register(sock, select.POLLIN)
    while True:
        ready = dict(poller.poll(TICK_SECONDS * 1000 if child and listener < 0 else None))
        if trainer.fileno() in ready:
            return
        if files is not None and ready.get(listener, 0) & select.POLLIN:
            files.answer(listener)
        elif listener in ready:  # the guest has ended
            listener = _forget(poller, listener)
        elif not ready and folder.count(own, counter.FILES) > counter.FILES:
            os.kill(child, signal.SIGKILL)
        if judges.fileno() not in ready:
            continue
        word, _, number = judges.recv(64).decode().partition(" ")
        if word == "start":
            child, listener = _start(guest.run, judges, confinement, number)
            files = counter.Counter(own)
            if listener >= 0:
                poller.register(listener, select.POLLIN)
        else:
            how = _stop(child, DYING_SECONDS if word == "look" else 0.0)
            child, listener = 0, _forget(poller, listener)
            _clean(confinement.settings)
            judges.send(f"{how} {number}".encode())


def _forget(poller: select.poll, listener: int) -> int:
    if listener >= 0:
        poller.unregister(listener)
        os.close(listener)
    return -1


def _start(run: Any, judges: socket.socket, confinement: Confinement, number: str) -> tuple[int, int]:
    """Fork a guest; return its process id and the descriptor on which the kernel asks about its calls, or (0, -1) if no
    process is left."""
    ours, theirs = socket.socketpair()
    server = os.getpid()
    try:
        child = os.fork()
    except OSError:
        for sock in (ours, theirs):
            sock.close()
        judges.send(f"full {number}".encode())
        return 0, -1
    if not child:
        try:
            confinement.limit_time()
            confinement.apply([ours.fileno()], lambda: counter.hand_over(confinement, ours))
            if os.getppid() != server:  # the server died before PDEATHSIG was set
                os._exit(1)
            run(ours)
        finally:
            os._exit(1)
    ours.close()
    listener = counter.take_over(confinement, theirs)
    socket.send_fds(judges, [f"guest {number}".encode()], [theirs.fileno()])
    theirs.close()
    return child, listener


def _stop(child: int, patience: float) -> str:
    """End a guest after up to ``patience`` seconds; return the kind of its end if it came by itself, else "crashed"."""
    if not child:
        return "crashed"
    until = time.monotonic() + patience
    found, status = os.waitpid(child, os.WNOHANG)
    while not found and time.monotonic() < until:
        time.sleep(0.002)
        found, status = os.waitpid(child, os.WNOHANG)
    if not found:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "crashed"
    end = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return "timeout" if end == signal.SIGXCPU else "forbidden" if end == signal.SIGSYS else "crashed"


def _clean(settings: dict[str, Any]) -> None:
    """Remove all processes and files of a case."""
    while True:
        try:
            found, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if not found:
            _kill_children(settings["alone"])
    folder.empty(settings["temp"])


def _kill_children(alone: bool) -> None:
    """Kill the current children of this process; their orphans follow in a later call. There are any only without
    seccomp.

    alone: this process has a pid namespace of its own, so that all others are its children (and it may see no /proc).
    """
    if alone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        return
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as children:
        for pid in children.read().split():
            os.kill(int(pid), signal.SIGKILL)
    time.sleep(0.001)
