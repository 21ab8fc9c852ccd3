"""A process stopped before every one of its file operations, and the folders that a kill or a power cut there leaves.

The process is traced (ptrace), so operations of libraries in C++ and Rust count like Python's. What is known of the
disk is the strictest reading of POSIX: contents of a file are there as of its last fsync, the names in a folder as of
the folder's; anything since may be lost, kept, or kept in part, each for itself. Linux on x86-64.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import random
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

POSSIBLE = sys.platform == "linux" and platform.machine() == "x86_64"

BY_NUMBER = {1: "write", 18: "pwrite64", 20: "writev", 77: "ftruncate", 74: "fsync", 75: "fdatasync", 285: "fallocate"}
BY_PATH = {2: "open", 76: "truncate", 82: "rename", 83: "mkdir", 84: "rmdir", 85: "creat", 86: "link", 87: "unlink"}
BY_FOLDER = {257: "openat", 258: "mkdirat", 263: "unlinkat", 264: "renameat", 265: "linkat", 316: "renameat2"}
"""System calls that change files, by what names the file: a number, a path, a path below an open folder."""

_TRACEME, _SYSCALL, _SETOPTIONS, _INFO = 0, 24, 0x4200, 0x420E
_ENTRY, _WRITES = 1, os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

State = dict[str, bytes | None]
"""A folder: relative path -> contents, None for a folder."""


def operations(work: Callable[[], object], root: Path) -> Iterator[tuple[str, Path]]:
    """Fork and work there; yields each operation on a file below root, and its path, before it is done.

    Raises ChildProcessError if the work fails.
    """
    child = os.fork()
    if child == 0:
        _libc.ptrace(_TRACEME, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        run_and_exit(work)
    os.waitpid(child, 0)
    _libc.ptrace(_SETOPTIONS, child, None, 1 | 0x100000)  # tell stops at calls from others; end with this process
    try:
        status = yield from _stops(child, root)
    except GeneratorExit:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    if status:
        raise ChildProcessError(f"the traced work ended with {os.waitstatus_to_exitcode(status)}")


def _stops(child: int, root: Path) -> Generator[tuple[str, Path], None, int]:
    """Let it go on from call to call; returns the status that it ended with."""
    info = ctypes.create_string_buffer(128)
    handed = 0
    while True:
        _libc.ptrace(_SYSCALL, child, None, handed or None)
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            return status
        stopped = os.WSTOPSIG(status)
        handed = 0 if stopped == signal.SIGTRAP | 0x80 else stopped
        if handed:
            continue
        _libc.ptrace(_INFO, child, len(info), info)
        found = _operation(child, *struct.unpack_from("<4Q", info.raw, 24)) if info.raw[0] == _ENTRY else None
        if found and found[1].is_relative_to(root):
            yield found


def run_and_exit(work: Callable[[], object]) -> None:
    """What a forked child does: work, and end without the parent's clean-up."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 (nothing of the parent's is to run here)
        traceback.print_exc()
    finally:
        os._exit(code)


def _operation(child: int, call: int, first: int, second: int, third: int) -> tuple[str, Path] | None:
    proc = Path(f"/proc/{child}")
    if call in BY_NUMBER:
        target = os.readlink(proc / "fd" / str(first))
        return BY_NUMBER[call], Path(target)
    if call in BY_PATH:
        name, folder, address, flags = BY_PATH[call], "cwd", first, second
    elif call in BY_FOLDER:
        at = ctypes.c_int(first & 0xFFFFFFFF).value
        name, folder, address, flags = BY_FOLDER[call], "cwd" if at < 0 else f"fd/{at}", second, third
    else:
        return None
    if name.startswith("open") and not flags & _WRITES:
        return None
    with (proc / "mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        path = memory.read(4096).split(b"\0")[0].decode()
    return name, Path(os.path.normpath(Path(os.readlink(proc / folder)) / path))


@dataclass
class Disk:
    """What of a folder the system knows, and what of that is on the disk. A node is a file or a folder."""

    root: Path
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    """Folder -> its names now, and the nodes that they name."""
    contents: dict[int, bytes] = field(default_factory=dict)
    synced_names: dict[int, dict[str, int]] = field(default_factory=dict)
    synced: dict[int, bytes] = field(default_factory=dict)
    _nodes: dict[int, int] = field(default_factory=dict)
    _count: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.look()
        self.synced_names, self.synced = {k: dict(v) for k, v in self.names.items()}, dict(self.contents)

    def look(self) -> None:
        """See what is there now. A number that the file system gives again is another node."""
        seen: set[int] = set()
        self.names = {}
        self._look(self.root, seen)
        self._nodes = {number: node for number, node in self._nodes.items() if number in seen}

    def _look(self, path: Path, seen: set[int]) -> int:
        number = path.stat().st_ino
        seen.add(number)
        node = self._nodes.setdefault(number, next(self._count))
        if path.is_dir():
            self.names[node] = {one.name: self._look(one, seen) for one in sorted(path.iterdir())}
        else:
            self.contents[node] = path.read_bytes()
        return node

    def sync(self, path: Path) -> None:
        """A file or folder was synced."""
        node = self._nodes[path.stat().st_ino]
        if path.is_dir():
            self.synced_names[node] = dict(self.names[node])
        else:
            self.synced[node] = self.contents[node]

    def states(self, seed: int) -> Iterator[tuple[str, State]]:
        """What a kill leaves now, and what a power cut may leave."""
        chance = random.Random(seed)
        yield "kill", self._state(lambda old, new: new)
        yield "all lost", self._state(lambda old, new: old)
        yield "contents lost", self._state(lambda old, new: old if isinstance(new, bytes) else new)
        yield "names lost", self._state(lambda old, new: new if isinstance(new, bytes) else old)
        for number in range(2):
            yield f"mixed {number}", self._state(lambda old, new: chance.choice([old, new, _torn(old, new)]))

    def _state(self, choose: Callable[..., bytes | int | None]) -> State:
        state: State = {}

        def build(node: int, path: str) -> None:
            if node in self.contents:
                old, new = self.synced.get(node, b""), self.contents[node]
                state[path] = new if old == new else choose(old, new)
                return
            state[path] = None
            before, now = self.synced_names.get(node, {}), self.names.get(node, {})
            for name in sorted(before.keys() | now.keys()):
                a, b = before.get(name), now.get(name)
                chosen = a if a == b else choose(a, b)
                if chosen is not None:
                    build(chosen, f"{path}/{name}" if path else name)

        build(self._nodes[self.root.stat().st_ino], "")
        return {path: what for path, what in state.items() if path}


def _torn(old: bytes | int | None, new: bytes | int | None) -> bytes | int | None:
    """Half of what was written. What was synced stays where more was appended: no disk takes that back."""
    if not isinstance(new, bytes):
        return new
    kept = len(old) if isinstance(old, bytes) and new.startswith(old) else 0
    return new[: (kept + len(new)) // 2]


def crashes(work: Callable[[], object], root: Path) -> Iterator[tuple[str, State]]:
    """Every different state of root that a kill or a power cut at any operation of this work may leave."""
    disk, seen = Disk(root), set[int]()
    for number, (name, path) in enumerate(operations(work, root)):
        disk.look()
        for how, state in disk.states(number):
            if (key := hash(frozenset(state.items()))) not in seen:
                seen.add(key)
                yield f"{how} at operation {number}, {name} {path.relative_to(root)}", state
        if name in ("fsync", "fdatasync"):
            disk.sync(path)


def lay_out(state: State, root: Path) -> None:
    """Make the folder of a state."""
    root.mkdir(parents=True, exist_ok=True)
    for path, what in sorted(state.items()):
        if what is None:
            (root / path).mkdir(parents=True)
        else:
            (root / path).write_bytes(what)
