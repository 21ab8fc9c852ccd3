"""``coevolve doctor``: print what of Coevolve works on this machine, or the machines of a cluster."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import shutil
from collections.abc import Iterator
from typing import get_args

from coevolve.commands import Commands, command
from coevolve.console import say

PACKAGES = ("coevolve", "torch", "transformers", "tokenizers")

_LACKING = "not installed"
_OF_AN_EXTRA = re.compile(r"([\w.-]+).*extra == [\"']([\w-]+)[\"']")
_OF_DEVELOPERS = ("dev", "docs", "peers")


def add(commands: Commands) -> None:
    one = command(
        commands,
        "doctor",
        doctor,
        "say what this machine has: versions, devices, isolation of the sandbox, data, extras",
    )
    one.add_argument(
        "--cluster",
        nargs="?",
        const="auto",
        metavar="ADDRESS",
        help="the machines of a Ray cluster and what they have; of RAY_ADDRESS, or one that runs here, if left out",
    )


def doctor(args: argparse.Namespace) -> None:
    if args.cluster is not None:
        from coevolve.runtime.cluster import nodes

        say("\n".join(nodes(args.cluster)))
        return
    say("\n".join(machine()))


def machine() -> list[str]:
    """Return the report's lines: versions, devices, backends, engines, sandbox levels, data, optional packages."""
    from coevolve.rewards.sandbox.box import offers
    from coevolve.rewards.sandbox.isolation import Level
    from coevolve.runtime.cores import cores

    versions = [f"{name} {_version(name)}" for name in PACKAGES]
    return [
        f"versions: python {platform.python_version()}, {', '.join(versions)}",
        f"machine: {platform.system()} {platform.release()} {platform.machine()}, {cores()} cores",
        f"devices: {', '.join(_devices())}",
        f"compute: {_compute()}",
        f"engines: {_engines()}",
        *(f"sandbox {offers(level)}" for level in get_args(Level)),
        f"data: {_data()}",
        *_extras(),
    ]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return _LACKING


def _devices() -> Iterator[str]:
    import torch

    yield f"cpu ({torch.get_num_threads()} threads)"
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        yield f"cuda:{number} {about.name} {about.total_memory / 2**30:.0f} GiB"


def _compute() -> str:
    """Return the available compute backends."""
    loops = f"cpu (numba {_version('numba')})" if _version("numba") != _LACKING else "no cpu (numba is missing)"
    return f"{loops}, torch, reference"


def _engines() -> str:
    """Return the available engines. A server at a url needs no local program."""
    found = shutil.which("vllm")
    started = f"vllm started from here by {found}" if found else "no vllm to start (no program of that name on PATH)"
    return f"local; {started}; vllm, sglang or openai at a url"


def _data() -> str:
    from coevolve.tasks.data import FOLDER

    folder = os.environ.get(FOLDER)
    if not folder:
        return f"{FOLDER} is not set; tasks ask the hub"
    if not os.path.isdir(folder):
        return f"{FOLDER} is {folder}, which is no folder"
    return f"{FOLDER} is {folder}, {sum(name.endswith('.jsonl.gz') for name in os.listdir(folder))} files"


def _extras() -> list[str]:
    """Return two lines: the extras whose packages are all installed, with versions, and the other extras."""
    try:
        needs = importlib.metadata.requires("coevolve") or []
    except importlib.metadata.PackageNotFoundError:
        needs = []
    packages: dict[str, list[str]] = {}
    for package, extra in (match.groups() for need in needs if (match := _OF_AN_EXTRA.match(need))):
        if extra not in _OF_DEVELOPERS:
            packages.setdefault(extra, []).append(package)
    told = {extra: [f"{name} {_version(name)}" for name in names] for extra, names in sorted(packages.items())}
    lacking = [extra for extra, lines in told.items() if any(line.endswith(_LACKING) for line in lines)]
    there = [f"{extra} ({', '.join(lines)})" for extra, lines in told.items() if extra not in lacking]
    return [
        f"extras here: {', '.join(there) or 'none'}",
        f"extras not here (pip install 'coevolve[NAME]'): {', '.join(lacking) or 'none'}",
    ]
