"""The isolation that this machine offers for untrusted code, its gaps, and the command line of a server inside it."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from coevolve.rewards.sandbox import syscalls
from coevolve.rewards.sandbox.inside.confine import landlock_version

Level = Literal["bubblewrap", "plain"]
ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
FOLDER_BYTES = 32 << 20
"""Most bytes of all files of a case, in bubblewrap."""
INSIDE = Path(__file__).with_name("inside")
LANDLOCK_FULL = 6
"""The first version of Landlock that restricts files, TCP and signals."""
_ALWAYS = ["page tables of up to twice the memory's size", "a bug of the kernel"]
_CAPABILITIES = ["SETUID", "SETGID", "KILL", "CHOWN", "DAC_OVERRIDE", "FOWNER"]
"""Capabilities that a server keeps in bubblewrap if the caller is root: it runs its cases as another user, and cleans
up after them."""


@dataclass(frozen=True)
class Isolation:
    """The layers that isolate a case from the rest of the machine.

    level: with namespaces ("bubblewrap") or without ("plain"). landlock: the kernel's Landlock version, 0 for none.
    seccomp: system calls are filtered. drops: cases run as a user of their own. linux: the kernel is Linux. counted:
    the kernel asks the guests' server before a case creates a file. bwrap: path of the program bwrap.
    """

    level: Level
    landlock: int
    seccomp: bool
    drops: bool
    linux: bool = True
    counted: bool = True
    bwrap: str = ""

    def open_ends(self) -> list[str]:
        """Describe what this isolation cannot stop."""
        if not self.linux:
            found = ["not Linux, so limits and process groups only: files, network and other processes are open"]
        else:
            found = [*self._files(), *(() if self.seccomp else self._calls())]
            if not (self.seccomp and self.counted):
                found.append("files are counted twenty times a second: many more than the limit for that long")
        return [*found, *_ALWAYS]

    def gaps(self) -> list[str]:
        """Return the ``open_ends`` that exist because this machine lacks a layer."""
        best = replace(self, landlock=LANDLOCK_FULL, seccomp=True, counted=True)
        return [end for end in self.open_ends() if end not in best.open_ends() or not self.linux]

    def _files(self) -> Iterator[str]:
        if self.level == "bubblewrap":
            if not self.landlock:
                yield "no Landlock: the sandbox's own sources can be read"
            return
        yield "names and sizes of files, and the name of the machine, can be asked for"
        if not self.landlock:
            yield f"no Landlock: files that {self._whose} may read or write are open"
        elif self.landlock < 3 and not self.seccomp:
            yield f"Landlock {self.landlock}: files that {self._whose} may write can be emptied"

    def _calls(self) -> Iterator[str]:
        """Describe what stays possible without a system call filter; in bubblewrap it is confined to the case's own
        namespaces."""
        yield "no libseccomp: memory beyond the limit (pipes, locks, files), any service of the kernel"
        yield "child processes until the case ends"
        if self.level == "bubblewrap":
            return
        yield f"local sockets, UDP{', TCP' if self.landlock < 4 else ''}, addresses of the machine"
        yield f"times, modes and attributes of files that {self._whose} may change or read, what happens in folders"
        if not self.drops and self.landlock < LANDLOCK_FULL:
            yield "signals to the caller's processes" + ("" if self.landlock else ", and their memory")
        yield "memory that stays when the case is over (shared segments, message queues)"

    @property
    def _whose(self) -> str:
        return "anybody" if self.drops else "the caller"

    def __str__(self) -> str:
        layers = ["namespaces"] if self.level == "bubblewrap" else []
        layers += [f"Landlock {self.landlock}"] if self.landlock else []
        layers += ["seccomp"] if self.seccomp else []
        layers += ["a user of its own"] if self.drops else []
        return f"{self.level} ({', '.join([*layers, 'limits'])}); cannot stop: {'; '.join(self.open_ends())}"


def offered(level: Level) -> Isolation:
    """Return the level with the layers that this machine offers; not yet tried."""
    linux = sys.platform.startswith("linux")
    drops = linux and os.geteuid() == 0 and _many_users()
    seccomp = bool(syscalls.program(forks=False))
    bwrap = bubblewrap() if level == "bubblewrap" else ""
    return Isolation(level, landlock_version(), seccomp, drops, linux, seccomp and _asks(), bwrap)


def _asks() -> bool:
    """Return whether the kernel can ask a process before a system call and then let it go on: from Linux 5.5."""
    return tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (5, 5)


def _many_users() -> bool:
    """Return whether there is more than one user id; a user namespace may have only one."""
    maps = [Path(f"/proc/self/{kind}_map").read_text().splitlines() for kind in ("uid", "gid")]
    return all(sum(int(line.split()[2]) for line in lines) > 1 for lines in maps)


def choose(wanted: str, works: Callable[[Isolation], str]) -> Isolation:
    """Choose the isolation for a setting. works: a function that tries one and returns what went wrong, "" if nothing.

    Raises ValueError if the setting is unknown, or the level that it names does not work on this machine.
    """
    if sys.platform == "win32":
        raise ValueError("the sandbox runs on Linux and macOS; on Windows use WSL 2")
    levels: dict[str, tuple[Level, ...]] = {
        "bubblewrap": ("bubblewrap",), "plain": ("plain",), "auto": ("bubblewrap", "plain"),
    }  # fmt: skip
    if wanted not in levels:
        raise ValueError(f"sandbox isolation is {wanted!r}; known: {', '.join(levels)}")
    problems: list[str] = []
    for level in levels[wanted]:
        problem = bubblewrap_problem() if level == "bubblewrap" else ""
        chosen = offered(level)
        # If a supervisor of this process already answers such questions, the kernel allows no second listener.
        for one in () if problem else (chosen, replace(chosen, counted=False)) if chosen.counted else (chosen,):
            problem = works(one)
            if not problem:
                _say(one, problems)
                return one
        problems.append(f"{level}: {problem}")
    raise ValueError(f"sandbox isolation {wanted!r} does not work here: {'; '.join(problems)}")


def bubblewrap_problem() -> str:
    """Return why bubblewrap cannot be tried; "" if it can."""
    if not sys.platform.startswith("linux"):
        return "bubblewrap needs Linux"
    return "" if bubblewrap() else "the program bwrap is not installed; apt install bubblewrap"


def bubblewrap() -> str:
    """Return the path of bwrap; "" if it is not on PATH."""
    found = shutil.which("bwrap")
    return os.path.abspath(found) if found else ""


_said: set[Isolation] = set()


def _say(chosen: Isolation, problems: list[str]) -> None:
    """Report the chosen isolation, once per process: as a warning if a stronger level failed or a layer is missing."""
    if chosen in _said:
        return
    _said.add(chosen)
    if problems:
        warnings.warn(f"sandbox: {chosen} ({'; '.join(problems)})", stacklevel=4)
    elif chosen.gaps():
        warnings.warn(f"sandbox: {chosen}", stacklevel=4)
    else:
        logging.getLogger(__name__).info("sandbox: %s", chosen)


def interpreter() -> str:
    """Return the path of the interpreter outside of any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable) or sys.executable)


def readable() -> list[str]:
    """Return the paths that an interpreter reads: its library, those of the system, time zones, randomness."""
    own = {os.path.dirname(os.__file__), f"{sys.base_prefix}/lib", f"{sys.base_exec_prefix}/lib"}
    system = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/dev/urandom")
    return [path for path in sorted(own) + list(system) if os.path.exists(path)]


def command(isolation: Isolation, own: str, arguments: list[str]) -> list[str]:
    """Return the command line that starts a Python server in this isolation. own: the folder of its cases."""
    python = [interpreter(), "-s", "-S", "-P", "-B", *arguments]
    if isolation.level == "plain":
        return python
    words = "--unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try --die-with-parent"
    line = [isolation.bwrap, *words.split(), "--hostname", "sandbox", "--new-session", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        line += ["--setenv", name, value]
    if isolation.drops:
        line += ["--cap-drop", "ALL"]
        for name in _CAPABILITIES:
            line += ["--cap-add", f"CAP_{name}"]
    else:
        line += ["--unshare-user"]
    line += ["--perms", "0755", "--tmpfs", "/"]
    paths = [*readable(), interpreter(), str(INSIDE), "/dev/null"]
    parents = {str(parent): None for path in [*paths, own] for parent in list(Path(path).parents)[-2::-1]}
    for folder in parents:  # made by bubblewrap itself, they would be root's alone
        line += ["--perms", "0755", "--dir", folder]
    for path in paths:
        line += ["--dev-bind" if path.startswith("/dev/") else "--ro-bind", path, path]
    line += ["--perms", "0700", *_size(isolation.bwrap), "--tmpfs", own]
    return [*line, "--remount-ro", "/", "--chdir", own, "--", *python]


@cache
def _size(bwrap: str) -> tuple[str, ...]:
    """Return the option that limits the size of a folder in memory, if this bubblewrap has it (from 0.5)."""
    said = subprocess.run([bwrap, "--help"], capture_output=True, text=True, check=False)
    return ("--size", str(FOLDER_BYTES)) if "--size" in said.stdout + said.stderr else ()


def _remove(place: Path, owner: int) -> None:
    """Remove a folder, except at the end of a forked process: its parent still reads it."""
    if os.getpid() == owner:
        shutil.rmtree(place, ignore_errors=True)


@cache
def library(isolation: Isolation) -> list[str] | None:
    """Return folders of the standard library for cases that cannot reach the interpreter's own; None if they can.

    Root's interpreter may lie in a folder that only root can enter; then its library is copied, once per process.
    """
    stdlib = Path(os.__file__).parent
    if (
        isolation.level == "bubblewrap"
        or not isolation.drops
        or all(p.stat().st_mode & 1 for p in (stdlib, *stdlib.parents))
    ):
        return None
    place = Path(tempfile.mkdtemp(prefix="coevolve-stdlib-"))
    atexit.register(_remove, place, os.getpid())
    place.chmod(0o755)
    drop = ("site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3", "config-*")
    shutil.copytree(stdlib, place / "lib", ignore=shutil.ignore_patterns(*drop, "*.a"))
    return [str(place / "lib"), str(place / "lib" / "lib-dynload")]
