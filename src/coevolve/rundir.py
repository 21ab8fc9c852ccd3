"""The run directory: what is written while training, and how it stays readable whatever happens.

    recipe.yaml         the resolved recipe                    environment.json    versions, git commit, seed
    metrics.jsonl       one line a step                        episodes.jsonl      a few episodes a step
    samples.jsonl       the same held-out problems at the      reward-kl.png       the curves, drawn at the end
                        start and at every checkpoint          checkpoint-N/       see ``checkpoint``

``record`` says what stands in a line of ``episodes.jsonl`` and ``samples.jsonl``.

Lines are appended and flushed step by step; a line torn by a crash is the last one, and readers skip it. Everything
else is written beside its place and renamed.
"""

from __future__ import annotations

import json
import math
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml

from coevolve.durable import write_text

_PACKAGES = ("coevolve", "torch", "transformers", "tokenizers", "safetensors", "peft", "numpy")


@dataclass(frozen=True)
class RunDir:
    """One run's folder."""

    path: Path

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def episodes(self) -> Path:
        return self.path / "episodes.jsonl"

    @property
    def samples(self) -> Path:
        return self.path / "samples.jsonl"

    def checkpoints(self) -> list[Path]:
        """Finished checkpoints, oldest first."""
        found = [p for p in self.path.glob("checkpoint-*") if p.name.removeprefix("checkpoint-").isdigit()]
        return sorted(found, key=lambda p: int(p.name.removeprefix("checkpoint-")))

    def check_free(self) -> None:
        """Raises ValueError if the folder holds a run already, or cannot be one."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"output_dir: {self.path} is a file; choose another output_dir")
        if self.checkpoints() or read_lines(self.metrics):
            raise ValueError(f"{self.path} already holds a run; pass --resume to go on, or another output_dir")

    def create(self) -> int:
        """Make the folder for a new run; returns its first step, 0. Raises ValueError if it holds a run already."""
        self.check_free()
        self.path.mkdir(parents=True, exist_ok=True)
        self.truncate(0)
        return 0

    def truncate(self, step: int) -> None:
        """Forget every line from this step on, and every sample of later weights: they will be written again."""
        for file, end in ((self.metrics, step), (self.episodes, step), (self.samples, step + 1)):
            kept = [line for line in read_lines(file) if step and line["step"] < end]
            write_text(file, "".join(json.dumps(line) + "\n" for line in kept))

    def describe(self, recipe: Mapping[str, Any], seed: int, *, fresh: bool) -> None:
        """Write what this run is and what it runs on; a resumed run adds where it went on."""
        write_text(self.path / "recipe.yaml", yaml.safe_dump(plain(recipe), sort_keys=False))
        file, here = self.path / "environment.json", environment() | {"seed": seed}
        if not fresh and file.exists():
            first = json.loads(file.read_text("utf-8"))
            here = first | {"resumed": [*first.get("resumed", []), here]}
        write_text(file, json.dumps(here, indent=2) + "\n")

    def append(self, line: Mapping[str, Any], episodes: Sequence[Mapping[str, Any]]) -> None:
        """One step's metrics, and the records of some of its episodes."""
        _append(self.episodes, [{"step": line["step"], **record} for record in episodes])
        _append(self.metrics, [line])

    def append_samples(self, step: int, episodes: Sequence[Mapping[str, Any]]) -> None:
        """The records of held-out problems, played by what ``step`` steps have made of the team."""
        _append(self.samples, [{"step": step, **record} for record in episodes])

    def plot(self) -> Path:
        """Draw reward, KL and objective over the steps."""
        from coevolve.report.plot import reward_kl  # matplotlib is slow to import and only needed here

        target = self.path / "reward-kl.png"
        reward_kl([self.path], target)
        return target


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file, without a last line that a crash cut short; empty if there is no file.

    Raises ValueError naming a broken line that is not the last.
    """
    if not file.exists():
        return []
    lines = file.read_text("utf-8").split("\n")
    records = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}, line {number} is not JSON: {error}; repair or delete it") from error
    return records


def _append(file: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write("".join(json.dumps(plain(line), allow_nan=False) + "\n" for line in lines))


def environment() -> dict[str, Any]:
    """Versions of what decides the numbers, and the commit of the working directory if it is a git checkout."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    commit = ""
    if shutil.which("git"):
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "git_commit": commit or "not a git checkout",
        "versions": versions,
    }


def plain(value: Any) -> Any:
    """The same with only what YAML and JSON know: dicts, lists, text, numbers; NaN and infinities become null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
