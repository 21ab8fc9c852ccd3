"""The run directory: what is written while training, and how it stays readable whatever happens.

    recipe.yaml         the resolved recipe                    environment.json    versions, git commit, seed
    metrics.jsonl       one line a step                        episodes.jsonl      a few episodes a step
    samples.json        the same problems before and after     reward-kl.png       the curves, drawn at the end
    checkpoint-N/       see ``checkpoint``

Lines are appended and flushed step by step; a line torn by a crash is the last one, and readers skip it. Everything
else is written beside its place and renamed.
"""

from __future__ import annotations

import json
import math
import os
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

from coevolve.types import Episode

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
        """Forget every line from this step on: they will be written again."""
        for file in (self.metrics, self.episodes):
            kept = [line for line in read_lines(file) if line["step"] < step]
            write_text(file, "".join(json.dumps(line) + "\n" for line in kept))

    def describe(self, recipe: Mapping[str, Any], seed: int, *, fresh: bool) -> None:
        """Write what this run is and what it runs on; a resumed run adds where it went on."""
        write_text(self.path / "recipe.yaml", yaml.safe_dump(plain(recipe), sort_keys=False))
        file, here = self.path / "environment.json", environment() | {"seed": seed}
        if not fresh and file.exists():
            first = json.loads(file.read_text("utf-8"))
            here = first | {"resumed": [*first.get("resumed", []), here]}
        write_text(file, json.dumps(here, indent=2) + "\n")

    def append(self, line: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        """One step's metrics, and some of its episodes."""
        rows = [{"step": line["step"], **episode_record(e)} for e in episodes]
        with self.episodes.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(line)) + "\n")

    def write_samples(self, when: str, episodes: Sequence[Episode]) -> None:
        """Merge these episodes into samples.json under ``when`` ("before" or "after")."""
        file = self.path / "samples.json"
        fresh = when == "before" or not file.exists()
        records = [episode_record(episode) for episode in episodes]
        earlier = {} if fresh else {row["problem"]: row for row in json.loads(file.read_text("utf-8"))}
        rows = [
            {"problem": r["problem"], "data": r["data"], **earlier.get(r["problem"], {}), when: r["turns"]}
            for r in records
        ]
        write_text(file, json.dumps(rows, indent=1) + "\n")

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


def write_text(file: Path, text: str) -> None:
    """Replace a file at once, or not at all."""
    beside = file.with_name(file.name + ".tmp")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, file)


def episode_record(episode: Episode) -> dict[str, Any]:
    """An episode as JSON: its problem, who said what for which reward, and which turns were judged together.

    notes: the texts a turn was told, if any. joints: the positions of their turns, what each was paid, and the position
    of the joint that they continue.
    """
    position = {id(turn): number for number, turn in enumerate(episode.turns)}
    turns = [
        {"role": t.role, "policy": t.policy, "text": t.text, "reward": t.reward, "tokens": len(t.action_ids)}
        | ({"notes": notes} if (notes := [part for part in t.heard if isinstance(part, str) and part]) else {})
        for t in episode.turns
    ]
    return {
        "problem": episode.problem.id,
        "member": episode.member,
        "data": plain(episode.problem.data),
        "turns": turns,
        "joints": [
            {"turns": [position[id(t)] for t in joint.turns], "rewards": list(joint.rewards), "after": joint.after}
            for joint in episode.joints
        ],
    }


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
