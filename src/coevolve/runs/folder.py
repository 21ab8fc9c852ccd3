"""The run directory: the files that a training writes, readable after a crash at any moment.

    recipe.yaml         the resolved recipe                    environment.json    see ``environment``
    metrics.jsonl       one line a step                        episodes.jsonl      a few episodes a step
    samples.jsonl       the same held-out problems at the      reward-kl.png       the curves (``coevolve train``)
                        start and at every checkpoint          checkpoint-N/       see ``checkpoint``
    signature.json      whose run it is, see ``signature``
    .saved              the step of the newest checkpoint written, after it was: a run that has this file and no
                        checkpoint has lost it

``record`` describes the lines of ``episodes.jsonl`` and ``samples.jsonl``.

Lines are appended step by step and synced before every checkpoint; only the last line can be torn by a crash, and
readers skip it. All other files are written under a temporary name and renamed (``durable``). A training holds
``.lock`` while it writes here; reading needs no lock.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coevolve.files import check_folder, parse_json, read_text
from coevolve.recipe.inputs import dump, load_yaml
from coevolve.runs import durable, environment, lock, shapes, signature
from coevolve.runs.identity import same_recipe

_CHECKPOINT = "checkpoint-"
_SAVED = ".saved"
_OWN = frozenset(
    {"recipe.yaml", signature.FILE, environment.FILE, "metrics.jsonl", "episodes.jsonl", "samples.jsonl", lock.LOCK}
    | {_SAVED, "train.log", "tracker-id", "tensorboard", "wandb"}
)
"""Files and folders that a run may have before it has finished a step."""


def _hidden(name: str) -> bool:
    """Return whether a file is what a command leaves beside its own, which stays where only visible files are removed:
    a lock, or what was being written when it was killed."""
    return durable.is_left_over(name) or (name.startswith(".") and name.endswith((lock.LOCK, ".png")))


@dataclass(frozen=True)
class RunDir:
    """The folder of one run."""

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

    @property
    def begun(self) -> bool:
        """Return whether a training has written metrics or checkpoints here."""
        return self.metrics.exists() or bool(self.checkpoints())

    @property
    def lines(self) -> int:
        """Return the number of lines of metrics, one per step; lines that a power cut broke count too."""
        return self.metrics.read_bytes().count(b"\n") if self.metrics.is_file() else 0

    @property
    def lost_checkpoints(self) -> bool:
        """Return whether the run has lost its checkpoints: it has none, but had one, which left its mark."""
        return not self.checkpoints() and self.metrics.exists() and (self.path / _SAVED).exists()

    def saved(self, step: int) -> None:
        """Leave the mark that a checkpoint was written. A kill between the two only leaves the mark out until
        the resume; a mark before its checkpoint would forbid a run that was killed between to begin anew."""
        durable.write_text(self.path / _SAVED, f"{step}\n")

    def checkpoint(self, step: int) -> Path:
        """Return the folder of the checkpoint after this many steps."""
        return self.path / f"{_CHECKPOINT}{step}"

    def checkpoints(self) -> list[Path]:
        """Return the finished checkpoints, oldest first."""
        return sorted(filter(is_checkpoint, self.path.glob(f"{_CHECKPOINT}*")), key=steps_of)

    def check(self, steps: int, resume: bool, recipe: Mapping[str, Any] | None = None) -> None:
        """Raise ValueError if a training of this many steps cannot start here, or be resumed. recipe: as of
        ``check_resume``. Changes nothing."""
        if not resume:
            check_folder(self.path, "output_dir")  # before its lock, which may be out of reach
        lock.check(self.path)
        if not resume:
            self.check_free()
            return
        self.check_resume(steps, recipe)
        if self.lost_checkpoints:
            raise ValueError(
                f"{self.path} has metrics of {self.lines} steps, and no checkpoint to go on from; bring one back, or "
                "move the folder away to begin anew"
            )

    def check_free(self) -> None:
        """Raise ValueError if a new run cannot start here: the folder cannot be written, or holds something."""
        check_folder(self.path, "output_dir")
        if self.checkpoints() or read_lines(self.metrics):
            raise ValueError(
                f"{self.path} already holds a run; pass --resume to go on (in Python resume=True), or another "
                "output_dir"
            )
        names = sorted(file.name for file in self.path.iterdir()) if self.path.exists() else []
        if foreign := [name for name in names if name not in _OWN and not _hidden(name)]:
            shown = ", ".join(map(repr, foreign[:3])) + (", ..." if len(foreign) > 3 else "")
            raise ValueError(f"output_dir: {self.path} holds {shown} and no run; choose an empty or a new folder")

    def check_resume(self, steps: int, recipe: Mapping[str, Any] | None = None) -> None:
        """Raise ValueError if there is no run here that a training of this many steps can go on with. recipe: that
        training's, to be compared with the run's before its models are loaded."""
        found = self.checkpoints()
        described = found or (self.path / "recipe.yaml").is_file() or not read_lines(self.metrics)
        if not self.begun or not described:
            raise ValueError(f"{self.path} holds no run to go on with; to start one there leave --resume out")
        if found and (done := steps_of(found[-1])) > steps:
            raise ValueError(
                f"{self.path} is at step {done}, beyond the {steps} steps asked for; "
                "ask for more (steps=...), or choose another output_dir"
            )
        if recipe is not None and (file := self.path / "recipe.yaml").is_file():
            same_recipe(self.path, load_yaml(file), recipe)

    def create(self) -> int:
        """Make the folder of a new run; return its first step, 0. Raises ValueError as ``check_free`` does."""
        self.check_free()
        durable.make_folder(self.path)
        lock.sweep_up(self.path)
        self.truncate(0)
        return 0

    def check_lines(self, step: int) -> None:
        """Raise ValueError if the metrics of a step before this one are gone: it would go on over a gap."""
        if (missing := gap(lines_before(self.metrics, step), step)) is not None:
            raise ValueError(
                f"{self.metrics} lacks step {missing}, and the checkpoint is of {step} steps; bring it back, or train "
                "anew in another output_dir"
            )

    def truncate(self, step: int) -> None:
        """Remove all lines from this step on, and all samples of later weights: training writes them again."""
        for file, end in ((self.metrics, step), (self.episodes, step), (self.samples, step + 1)):
            kept = lines_before(file, end) if step else []
            durable.write_text(file, "".join(json.dumps(line) + "\n" for line in kept))
        if not step:  # begins anew, and nothing is lost; or a run was deleted but for this file
            (self.path / _SAVED).unlink(missing_ok=True)

    def sync(self) -> None:
        """Sync all lines to the disk, since a checkpoint relies on them."""
        for file in (self.metrics, self.episodes, self.samples):
            if file.exists():
                durable.sync(file)

    def begin(
        self,
        recipe: Mapping[str, Any],
        seed: int,
        compute: Mapping[str, Any],
        settings: Mapping[str, Any],
        *,
        fresh: bool,
    ) -> None:
        """Write the recipe, the signature and the record of this start; warn if files or settings have changed.

        compute: what computes, for the record. settings: of algorithm and play, with defaults that the recipe leaves
        out. fresh: there was no checkpoint to go on from.
        """
        found = signature.checksums(recipe)
        if not fresh and (changed := signature.changed(self.path, found)):
            files = ", ".join(changed)
            said = f"{files} changed since its last start, and the steps before are of the old content"
            warnings.warn(f"{self.path} goes on with other files: {said}", stacklevel=3)  # the caller of the training
        if not fresh and (others := environment.other_settings(self.path, plain(settings))):
            said = f"{', '.join(others)}; what a recipe leaves out is the package's or your own code's"
            warnings.warn(f"{self.path} goes on with other settings: {said}", stacklevel=3)
        text = dump(plain(recipe))
        durable.write_text(self.path / "recipe.yaml", text)
        if own := signature.signature(self.path, text, found):
            durable.write_text(self.path / signature.FILE, own)
        step = 0 if fresh else steps_of(self.checkpoints()[-1])
        here = {"step": step, **environment.environment(), "seed": seed, "compute": dict(compute)}
        environment.add_start(self.path, here | {"settings": plain(settings)}, fresh=fresh)

    def append(self, line: Mapping[str, Any], episodes: Sequence[Mapping[str, Any]]) -> None:
        """Append one step's metrics, and the records of some of its episodes."""
        _append(self.episodes, [{"step": line["step"], **record} for record in episodes])
        _append(self.metrics, [line])

    def append_samples(self, step: int, episodes: Sequence[Mapping[str, Any]]) -> None:
        """Append the records of held-out problems, played with the weights after ``step`` steps."""
        _append(self.samples, [{"step": step, **record} for record in episodes])


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is called as a checkpoint's folder is."""
    return path.name.startswith(_CHECKPOINT) and path.name.removeprefix(_CHECKPOINT).isdecimal()


def steps_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint's folder: how many steps its weights have learnt."""
    return int(checkpoint.name.removeprefix(_CHECKPOINT))


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Return the records of a JSON-lines file, without a torn last line; empty if there is no file.

    Raises ValueError naming the line that is no valid record of this file (``shapes``).
    """
    if not file.exists():
        return []
    whole, _, _ = file.read_bytes().rpartition(b"\n")  # bytes: a crash may have cut a character in two
    lines = read_text(file, whole).split("\n") if whole else []
    return [shapes.line(line, file, f"line {number}") for number, line in enumerate(lines, 1)]


def gap(lines: Sequence[Mapping[str, Any]], steps: int) -> int | None:
    """Return the first of these many steps that no line is of; None if there is none."""
    found = {line["step"] for line in lines}
    return next((step for step in range(steps) if step not in found), None)


def lines_before(file: Path, end: int) -> list[dict[str, Any]]:
    """Return the records of steps before ``end``. Lines after the last of them may be broken, as by a power cut.

    Raises ValueError naming a broken line before it.
    """
    kept: list[dict[str, Any]] = []
    broken: ValueError | None = None
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1] if file.exists() else [], 1):
        try:
            record = parse_json(read_text(file, line), f"{file}, line {number}")
            early = record["step"] < end
        except (ValueError, KeyError, TypeError) as error:
            broken = broken or ValueError(
                f"{file}, line {number} is no record of a step ({error}); repair or delete it"
            )
            continue
        if early and broken:
            raise broken
        if early:
            kept.append(record)
    return kept


def _append(file: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write("".join(json.dumps(plain(line), allow_nan=False) + "\n" for line in lines))


def plain(value: Any) -> Any:
    """Return a value as plain data for YAML and JSON: dicts, lists, texts, numbers; NaN and infinities become None.

    A numpy number or a tensor of one number becomes that number; any other object its ``str``.
    """
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
