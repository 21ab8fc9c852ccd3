"""The hardware and software behind each start of a run: ``environment.json``.

The file is the record of the first start; under ``resumed`` it has a record of each later start, with the step that it
went on from. A start that is followed by one from the same step left no numbers in the run.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from coevolve.late import torch
from coevolve.runs import durable, shapes
from coevolve.runs.identity import flat, same

FILE = "environment.json"

_PACKAGES = ("coevolve", "torch", "transformers", "tokenizers", "safetensors", "peft", "numpy", "numba")
_CPUINFO = Path("/proc/cpuinfo")


def starts(run: Path) -> list[dict[str, Any]]:
    """Return the record of every start of a run, the first one first; none if the folder has no record."""
    file = run / FILE
    if not file.is_file():
        return []
    first = shapes.read(file)
    return [{key: value for key, value in first.items() if key != "resumed"}, *first.get("resumed", [])]


def other_settings(run: Path, settings: Mapping[str, Any]) -> list[str]:
    """Describe which of these settings of algorithm and play differ from those of the run's last start."""
    kept = (starts(run) or [{}])[-1].get("settings")
    before, now = flat(kept if isinstance(kept, Mapping) else {}), flat(settings)
    others = [key for key, value in before.items() if not same(run, value, now.get(key))]
    return [f"{key} was {before[key]!r} and is {now.get(key)!r}" for key in others]


def lasting(starts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the starts that left numbers in a run: not those overwritten by a later start from the same or an earlier
    step."""
    steps = [one["step"] for one in starts]
    return [one for place, one in enumerate(starts) if all(steps[place] < step for step in steps[place + 1 :])]


def differing(before: Mapping[str, Any], here: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Describe which of these keys, or of the versions' packages, differ between two starts, with both values.

    Empty if none is known to differ."""
    there, now = ({**one, **one.get("versions", {})} for one in (before, here))
    return ", ".join(
        f"{key} was {there[key]} and is {now.get(key)}" for key in keys if key in there and there[key] != now.get(key)
    )


def add_start(run: Path, here: Mapping[str, Any], *, fresh: bool) -> None:
    """Record a start, after the earlier ones unless the run is fresh; warn if its numbers will round differently."""
    before = [] if fresh else starts(run)
    goes_on_from = lasting([*before, here])[:-1]
    if goes_on_from and (differ := differing(goes_on_from[-1], here, ("torch", "processor", "device"))):
        said = f"from step {here['step']} on numbers round otherwise: {differ}; {FILE} keeps both"
        warnings.warn(f"{run}: {said}", stacklevel=4)  # the caller of the training
    first, *later = [*before, here]
    written = {**first, "resumed": later} if later else first
    durable.write_text(run / FILE, json.dumps(written, indent=2) + "\n")


def environment() -> dict[str, Any]:
    """Return the versions of packages that affect numbers, the processor and device and, if the working directory is a
    git checkout, its commit and the tracked files that have changed since."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": processor(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "git_commit": _git("rev-parse", "--verify", "HEAD").strip() or "not a git checkout",
        "git_changes": _git("diff", "--name-only", "HEAD").splitlines(),
        "versions": versions,
    }


def processor() -> str:
    """Return the processor's name, with the numbers that tell apart generations of the same name."""
    if _CPUINFO.is_file():
        text = _CPUINFO.read_text("utf-8", "replace")
        found = {key.strip(): value.strip() for key, value in re.findall(r"^([^:\n]+):(.+)$", text, re.MULTILINE)}
        for name, *numbers in (("model name", "cpu family", "model"), ("CPU implementer", "CPU part", "CPU variant")):
            if all(key in found for key in (name, *numbers)):  # ARM's have no name
                first = found[name] if name == "model name" else f"{platform.machine()}, implementer {found[name]}"
                return ", ".join([first, *(f"{key.split()[-1]} {found[key]}" for key in numbers)])
    return _of_mac() or platform.processor() or platform.machine()


def _of_mac() -> str:
    """Return the processor's name on macOS, where Python calls all of Apple's own ``arm``; elsewhere nothing."""
    if platform.system() != "Darwin" or not shutil.which("sysctl"):
        return ""
    asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def _git(*words: str) -> str:
    """Return the output of a git command; empty without git or a checkout."""
    if not shutil.which("git"):
        return ""
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout
