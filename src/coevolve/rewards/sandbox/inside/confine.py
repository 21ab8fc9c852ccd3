"""Confinement of a sandbox process before it runs anything: it irrevocably gives up its user, files, system calls and
descriptors.

Linux only, except for the limits. Landlock: https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

SET_PDEATHSIG, SET_DUMPABLE, SET_SECCOMP, SET_CHILD_SUBREAPER, SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
"""The options of prctl(2) that are used."""
HIGHEST = 64
"""All descriptors of a case are below this number; the servers have few."""
FILE_BYTES = 1 << 20
EXECUTE, WRITE, READ, READ_DIR, TRUNCATE = (1 << bit for bit in (0, 1, 2, 3, 14))
OWN = READ | WRITE | READ_DIR | TRUNCATE | sum(1 << bit for bit in (4, 5, 7, 8, 13))
"""Landlock's rights; ``OWN``, for a case's own folder, includes to create, move and remove files and folders."""
NO_MEMORY = {"MEMLOCK": 0, "MSGQUEUE": 0, "SIGPENDING": 64}
"""Resource limits of memory that the kernel holds for a process outside of its address space."""
_ADD_RULE, _CREATE_RULESET, _RESTRICT_SELF = 445, 444, 446

LINUX = sys.platform.startswith("linux")
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def prctl(option: int, *values: Any) -> None:
    """Call prctl(2). Raises OSError if the kernel refuses."""
    words = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in values]
    words += [ctypes.c_ulong(0)] * (4 - len(words))
    checked(libc.prctl(ctypes.c_int(option), *words))


def landlock_version() -> int:
    """Return the version of the kernel's Landlock, 0 for none."""
    if not LINUX:
        return 0
    return max(0, int(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))))


class Confinement:
    """The rules and filters that confine a process, prepared before the fork. settings: of one server, see
    ``worker.Worker``."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self._rules = _ruleset(settings) if settings["landlock"] else None
        self._filter = _program(bytes.fromhex(settings["seccomp"])) if settings["seccomp"] else None
        self.counter = _program(bytes.fromhex(settings["counter"])) if settings["counter"] else None

    def apply(self, keep: list[int], last: Callable[[], None] = lambda: None) -> None:
        """Confine this process and its future forks. keep: the descriptors besides 0, 1 and 2 that stay open. last:
        called just before the system calls are filtered."""
        os.chdir(self.settings["temp"])
        _limit(self.settings)
        user = self.settings["user"]
        if user is not None:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        if LINUX:
            prctl(SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which resets it
            prctl(SET_DUMPABLE, 0)
            prctl(SET_NO_NEW_PRIVS, 1)
        if self._rules is not None:
            checked(libc.syscall(_RESTRICT_SELF, ctypes.c_int(self._rules), ctypes.c_uint(0)))
        for low, high in pairwise([2, *sorted(keep), HIGHEST]):
            os.closerange(low + 1, high)
        last()
        if self._filter is not None:
            prctl(SET_SECCOMP, 2, ctypes.byref(self._filter))

    def limit_time(self) -> None:
        """Limit the processor time of this process: SIGXCPU at the limit, SIGKILL a second later."""
        seconds = self.settings["cpu_seconds"]
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def checked(result: int) -> int:
    """Return the result of a call of the C library. Raises OSError if it failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _limit(settings: dict[str, Any]) -> None:
    limits = {"CORE": 0, "FSIZE": FILE_BYTES, "NOFILE": HIGHEST, "AS": settings["memory_mb"] << 20, **NO_MEMORY}
    if settings["processes"]:
        limits["NPROC"] = settings["processes"]
    for name, value in limits.items():
        with contextlib.nullcontext() if LINUX else contextlib.suppress(AttributeError, ValueError, OSError):
            limit = getattr(resource, f"RLIMIT_{name}")  # macOS lacks some
            most = resource.getrlimit(limit)[1]  # only root may raise it
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(limit, (value, value))


class _Attributes(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def _ruleset(settings: dict[str, Any]) -> int:
    """Return the descriptor of Landlock rules: read what an interpreter needs, write the own folder, nothing else."""
    version = settings["landlock"]
    files = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    attributes = _Attributes(files, 3 if version >= 4 else 0, 3 if version >= 6 else 0)  # no TCP; no signals to others
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = checked(libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint(0)))
    for path in settings["readable"]:
        _allow(rules, path, files & (EXECUTE | READ | READ_DIR))
    _allow(rules, settings["temp"], files & OWN)
    _allow(rules, "/dev/null", files & (READ | WRITE))
    return rules


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):
        rights &= EXECUTE | READ | WRITE | TRUNCATE
    try:
        beneath = ctypes.byref(_Beneath(rights, place))
        checked(libc.syscall(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(1), beneath, ctypes.c_uint(0)))
    finally:
        os.close(place)


class Instructions(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _program(code: bytes) -> Instructions:
    """Return a system call filter in the kernel's form: 8 bytes per instruction."""
    return Instructions(len(code) // 8, code)
