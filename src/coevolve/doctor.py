"""What this machine has for Coevolve: ``coevolve doctor``."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator
from typing import get_args

import torch

from coevolve.rewards.sandbox.box import offers
from coevolve.rewards.sandbox.isolation import Level
from coevolve.runtime.pool import cores
from coevolve.tasks.data import FOLDER

PACKAGES = ("coevolve", "torch", "transformers", "tokenizers")


def doctor() -> list[str]:
    """Lines of a report: versions, devices, how the sandbox would hold code at each level, data, optional packages."""
    versions = [f"{name} {_version(name)}" for name in PACKAGES]
    return [
        f"versions: python {platform.python_version()}, {', '.join(versions)}",
        f"machine: {platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} processors",
        f"devices: {', '.join(_devices())}",
        f"compute: {_compute()}",
        *(f"sandbox {offers(level)}" for level in get_args(Level)),
        f"data: {_data()}",
        *(f"optional: {line}" for line in _extras()),
    ]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> Iterator[str]:
    yield f"cpu ({torch.get_num_threads()} threads)"
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        yield f"cuda:{number} {about.name} {about.total_memory / 2**30:.0f} GiB"
    if torch.backends.mps.is_available():
        yield "mps"


def _compute() -> str:
    """What of the backends is here."""
    loops = f"cpu (numba {_version('numba')})" if _version("numba") != "not installed" else "no cpu (numba is missing)"
    return f"{loops}, torch, reference; {cores()} cores for worker processes"


def _data() -> str:
    folder = os.environ.get(FOLDER)
    if not folder:
        return f"{FOLDER} is not set; tasks ask the hub"
    if not os.path.isdir(folder):
        return f"{FOLDER} is {folder}, which is no folder"
    return f"{FOLDER} is {folder}, {sum(name.endswith('.jsonl.gz') for name in os.listdir(folder))} files"


def _extras() -> Iterator[str]:
    """The packages of each optional extra but those of developers."""
    try:
        needs = importlib.metadata.requires("coevolve") or []
    except importlib.metadata.PackageNotFoundError:
        needs = []
    found = (re.match(r"([\w.-]+).*extra == [\"']([\w-]+)[\"']", need) for need in needs)
    for package, extra in sorted({match.groups() for match in found if match}, key=lambda pair: pair[1]):
        if extra != "dev":
            yield f"{package} {_version(package)} (coevolve[{extra}])"
