"""The two servers of a worker: one forks a judge for each case, the other a guest when a judge asks for one.

They only fork, wait and clean up; no untrusted code runs in them, and none is sent to the guests' server. Between them
go words, in packets: "start", answered with a new guest's socket, or "full" if the machine has no process left; "look",
how the guest ended by itself; "stop" it.
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
"""How long a guest that closed its socket has to be dead, before it is killed."""
TICK_SECONDS = 0.05
"""How often a guest's files are counted where the kernel cannot ask before each; it is killed for too many."""


def main(role: str, link: int, control: int) -> None:
    """Serve until the trainer closes the link."""
    trainer, other = _low(link), _low(control)
    settings = wire.receive(trainer)
    _move_library(settings["library"])
    _preload()
    if sys.platform.startswith("linux"):
        prctl(SET_PDEATHSIG, signal.SIGKILL)
        prctl(SET_DUMPABLE, 0)
        prctl(SET_CHILD_SUBREAPER, 1)  # a case's orphans come here
    os.umask(0o077)
    os.makedirs(settings["temp"], exist_ok=True)
    os.environ["TMPDIR"] = settings["temp"]
    if settings["user"] is not None:
        os.chown(settings["temp"], settings["user"], settings["user"])
    confinement = Confinement(settings)
    os.dup2(1, 2)  # standard error was the trainer's, until here
    gc.collect()
    gc.freeze()  # garbage collection in a fork touches no page of ours
    wire.send(trainer, ["ready"])
    with contextlib.suppress(wire.Gone):
        (_judges if role == "judge" else _guests)(trainer, other, confinement)


def _preload() -> None:
    """Import what programs use most, without what random and threading would run in each fork: it would undo the seed,
    and no thread is alive at a fork. So this file does not import them by itself.
    """
    import shutil

    shutil.copymode = shutil.copystat = lambda *_, **__: None  # not a case's to set
    register = os.register_at_fork
    os.register_at_fork = lambda **_: None
    for name in PRELOADED.split():
        __import__(name)
    os.register_at_fork = register
    sys.modules["random"].seed(0)  # every case begins here


def _low(descriptor: int) -> socket.socket:
    """The socket under the lowest free number: cases close what lies above."""
    low = os.dup(descriptor)
    os.close(descriptor)
    return socket.socket(fileno=low)


def _move_library(folders: list[str] | None) -> None:
    """Import from these folders, packages that are loaded already too."""
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

    confinement.apply([trainer.fileno(), guests.fileno()])  # once, for all judges: they run nothing untrusted
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
                if os.getppid() != server:  # it died before this process could be told
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
    """The answer to a word, and the descriptors that came with it. Words carry a number, because a judge that is killed
    or out of time leaves an answer behind.
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
    """Process of a new guest, and the descriptor where its calls are asked for; (0, -1): there is no process left."""
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
            if os.getppid() != server:  # it died before this process could be told
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
    """End a guest; the kind of its end if it had come by itself within so many seconds."""
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
    """No process and no file of a case is left."""
    while True:
        try:
            found, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if not found:
            _kill_children(settings["alone"])
    folder.empty(settings["temp"])


def _kill_children(alone: bool) -> None:
    """Kill what is a child of this process now; orphans of those follow. Only without seccomp is there any.

    alone: this process has process numbers of its own, so that all others are its children (and it may see no /proc).
    """
    if alone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        return
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as children:
        for pid in children.read().split():
            os.kill(int(pid), signal.SIGKILL)
    time.sleep(0.001)
