"""Tries what is in ``doors`` at each level, with and without each of its layers, for ``test_matrix``, which runs this
file as different users.

    python matrix.py FOLDER        # FOLDER holds the packages coevolve and pyseccomp

Prints a line of JSON for each combination: what came through, and which of it the level does not name.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import json
import os
import socket
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

DOORS = Path(__file__).with_name("doors.py").read_text()
WORDS = {
    node.name: (ast.get_docstring(node) or "").split("|")
    for node in ast.parse(DOORS).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("attack_")
}
FILES = [
    "read", "write", "moved", "mode0", "mode3", "truncated", "openat2", "creat", "linked", "symlink", "times", "modes",
    "xattr", "xattr2",
]  # fmt: skip
FOR_ALL = ("/tmp", "/var/tmp", "/dev/shm")


def main(packages: str) -> None:
    sys.path.insert(0, packages)
    from coevolve.rewards.sandbox import isolation

    warnings.simplefilter("ignore")
    for level in ("bubblewrap", "plain"):
        if level == "bubblewrap" and isolation.bubblewrap_problem():
            continue
        offer = isolation.offered(level)
        for seccomp in sorted({offer.seccomp, False}, reverse=True):
            for landlock in sorted({offer.landlock, min(offer.landlock, 1), 0}, reverse=True):
                one = replace(offer, seccomp=seccomp, landlock=landlock, counted=seccomp and offer.counted)
                with contextlib.ExitStack() as stack:
                    print(json.dumps({"isolation": str(one), **_tried(one, stack)}), flush=True)


def _tried(one, stack):
    """What came through at one combination of layers."""
    from coevolve.rewards.sandbox import Program
    from coevolve.rewards.sandbox.split import split
    from coevolve.rewards.sandbox.worker import Limits, Worker

    folder = _folder(stack)
    known = {"FOLDER": folder, "NAMED": folder, "NAME": os.uname().nodename, "MARK": f"matrix-{os.getpid()}"}
    known |= {"TRAINER": os.getpid(), "KEY": 1 << 30 | os.getpid(), "ADDRESS": id(folder), **_listeners(folder, stack)}
    code = DOORS + "".join(f"{name} = {value!r}\n" for name, value in known.items())
    tests = "".join(f"assert not {name}()\n" for name in WORDS)
    worker = Worker(one, Limits(timeout=10.0, memory_mb=256))
    stack.callback(worker.close)
    stack.callback(_forget, known["KEY"], known["MARK"])
    try:
        verdicts = worker.run(Program(code, tests, "at"), split(tests))
        honest = worker.run(Program("def f(x): return x", "assert f(3) == 3", "f"), split("assert f(3) == 3"))
    except OSError as error:
        return {"problem": str(error)}
    ends = "; ".join(one.open_ends())
    through = [name for name, verdict in zip(WORDS, verdicts, strict=True) if verdict.kind == "failed"]
    untold = [name for name in through if not any(words and words in ends for words in WORDS[name])]
    lost = [name for name, verdict in zip(WORDS, verdicts, strict=True) if verdict.message == "given up"]
    return {"through": through, "untold": untold, "lost": lost, "honest": honest[0].kind}


def _folder(stack):
    """A folder, and files in it, that everybody may write."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="matrix-"))
    os.chmod(folder, 0o777)
    for file in (Path(folder, name) for name in FILES):
        file.write_text("sings")
        os.chmod(file, 0o666)
        with contextlib.suppress(OSError):  # not on all file systems
            os.setxattr(file, "user.canary", b"sings")
    return folder


def _listeners(folder, stack):
    """Sockets of the trainer's side: what reaches them came through."""
    udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    udp.bind(("127.0.0.1", 0))
    tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    for address in (f"{folder}/local", f"\0{folder}"):
        local = stack.enter_context(socket.socket(socket.AF_UNIX))
        local.bind(address)
        local.listen()
    os.chmod(f"{folder}/local", 0o777)
    return {"UDP": udp.getsockname()[1], "TCP": tcp.getsockname()[1]}


def _forget(key, mark):
    """Remove what attacks leave where nothing stops them."""
    libc = ctypes.CDLL(None)
    libc.shmctl(libc.shmget(key, 0, 0), 0, None)
    libc.msgctl(libc.msgget(key, 0), 0, None)
    for place in FOR_ALL:
        Path(place, mark).unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1])
