"""Exact checkpoints: a run killed at any moment and resumed writes the same numbers and ends in the same weights.

    checkpoint-N/
      manifest.json             every file with its size and checksum; written last
      trainer.json              step, the algorithm's state (KL weights, reward statistics), the recipe it belongs to
      agents/<policy>/          a Hugging Face or PEFT folder that loads alone, and its value head
      training/<policy>.pt      optimiser
      generators.pt             generator states, for user code that draws from them

A checkpoint is written under a temporary name, synced and renamed, and renamed again before it is deleted: after a kill
or a power cut at any moment each one is whole or absent. Cast and sampler positions are functions of the step and need
no state. On a GPU, weights are only the same as far as its kernels are deterministic.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import warnings
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError

from coevolve.checks import plain_state
from coevolve.faults import RanksError, ShortageError, during, lacking, of_device, one_line
from coevolve.names import inside
from coevolve.recipe.inputs import load_yaml
from coevolve.runs import durable, lock, shapes
from coevolve.runs.folder import RunDir, plain, steps_of
from coevolve.runs.identity import same_recipe


class Resumable(Protocol):
    """A trainer, as far as a checkpoint saves and restores it. state: what its algorithm carries from step to step.
    versions: of each policy's weights; a play may read them."""

    state: Mapping[str, Any]
    steps: int
    versions: dict[str, int]

    @property
    def policies(self) -> Mapping[str, Any]: ...


_STATE = "trainer.json"
_GENERATORS = "generators.pt"


def save(trainer: Resumable, run: RunDir, step: int, identity: Mapping[str, Any], keep_last: int) -> Path:
    """Write checkpoint-<step> and delete all but the newest ``keep_last``.

    Raises ShortageError (a full disk), with the run intact; RanksError if a policy's ranks are lost meanwhile."""
    target = run.checkpoint(step)
    beside = run.path / f".{target.name}.tmp"
    shutil.rmtree(beside, ignore_errors=True)
    try:
        run.sync()
        _write(trainer, beside, step, identity)
        durable.publish(beside, target)
    except Exception as error:
        free = shutil.disk_usage(run.path).free >> 20
        shutil.rmtree(beside, ignore_errors=True)
        if isinstance(error, RanksError) or of_device(error):
            raise  # not for lack of disk space; if they can be started again, from the checkpoint before
        # torch, tokenizers and safetensors report a full disk as errors of their own.
        why = lacking(error)
        if not isinstance(error, OSError | RuntimeError | SafetensorError) and not why:
            raise
        said = f"could not write {target} ({free} MiB were free there): {why or one_line(error)}"
        raise ShortageError(f"{said}; the run and its older checkpoints are intact") from error
    with suppress(OSError):  # a resume writes the mark if this cannot
        run.saved(step)
    _keep(run, keep_last)
    return target


def _keep(run: RunDir, newest: int) -> None:
    for old in run.checkpoints()[: -max(newest, 1)]:
        try:
            durable.remove(old)
        except OSError as error:  # no reason to end a training
            warnings.warn(
                f"the old {old} could not be deleted whole ({one_line(error)}); delete it by hand", stacklevel=4
            )


def resume(trainer: Resumable, run: RunDir, identity: Mapping[str, Any], keep_last: int) -> int:
    """Restore the newest checkpoint into the trainer; return the step to go on with, 0 if there is none yet.

    All but the newest ``keep_last`` checkpoints are deleted, since a kill may have come before that was done. Raises
    ValueError, with nothing changed, if there is no run, or one of another recipe or beyond the last step, or one that
    lacks metrics of steps before the checkpoint.
    """
    run.check_resume(trainer.steps)
    lock.sweep_up(run.path)
    found, recipe = run.checkpoints(), run.path / "recipe.yaml"
    if not found and recipe.exists():
        same_recipe(run.path, load_yaml(recipe), plain(identity))
    if found:
        run.check_lines(steps_of(found[-1]))
    step = load(trainer, found[-1], identity) if found else 0
    if found:  # a kill may have come before the mark
        run.saved(step)
    _keep(run, keep_last)
    run.truncate(step)
    return step


def load(trainer: Resumable, folder: Path, identity: Mapping[str, Any] | None = None) -> int:
    """Restore a checkpoint after all its files have been checked; return its step.

    identity: if given, must equal the recorded recipe but for keys that do not change a step. Raises ValueError naming
    the folder if it is torn, of another recipe, or has other policies.
    """
    state = verify(folder)
    try:
        if identity is not None:
            same_recipe(folder, state["identity"], plain(identity))
            same_compute(folder, state["compute"], trainer)
        missing = set(trainer.policies) ^ set(state["policies"])
        if missing:
            raise ValueError(f"{folder} and this run differ in the policies {', '.join(sorted(missing))}")
        for name, policy in trainer.policies.items():
            kept = _read(folder / "training" / f"{name}.pt")
            with during(f"{folder}: policy {name!r}"):
                policy.load(folder / "agents" / name, kept)
        trainer.state = plain_state(state["state"])
        trainer.versions = {name: int(state["versions"][name]) for name in trainer.policies}
        _set_generators(_read(folder / _GENERATORS))
        return int(state["step"])
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        if of_device(error):
            raise
        # The checksums match, so another version wrote it like this, or it was edited by hand.
        said = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(
            f"{folder} does not fit this version of coevolve ({said}); resume with the one that wrote it"
        ) from error


def verify(folder: Path) -> dict[str, Any]:
    """Check every file against the manifest; return trainer.json. Raises ValueError naming the file that is wrong."""
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        raise ValueError(f"{folder} is not a checkpoint of coevolve, or torn: it has no manifest.json; move it away")
    older = "delete the folder to resume from the one before"
    try:
        files = shapes.read(manifest)
        if _STATE not in files:
            raise ValueError(f"it does not name {_STATE}")
    except ValueError as error:
        raise ValueError(f"{folder} is torn: its manifest.json is none ({error}); {older}") from error
    for path, expected in files.items():
        file = inside(folder, path)
        if not os.path.isfile(file) or _fingerprint(file) != expected:
            # os.path, unlike Path, does not raise for a name that no file can have
            how = "changed since it was written" if os.path.exists(file) else "missing"
            raise ValueError(f"{folder} is torn: {path[:200]} is {how}; {older}")
    return shapes.read(folder / _STATE)


def _write(trainer: Resumable, folder: Path, step: int, identity: Mapping[str, Any]) -> None:
    (folder / "training").mkdir(parents=True)
    for name, policy in trainer.policies.items():
        policy.save(folder / "agents" / name)
        torch.save(policy.training_state(), folder / "training" / f"{name}.pt")
    torch.save(_generators(), folder / _GENERATORS)
    state = {"step": step, "policies": list(trainer.policies), "state": trainer.state, "identity": plain(identity)}
    state["versions"] = dict(trainer.versions)
    state["compute"] = {name: policy.compute for name, policy in trainer.policies.items()}
    (folder / _STATE).write_text(json.dumps(state, indent=1), "utf-8")
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    manifest = {p.relative_to(folder).as_posix(): _fingerprint(p) for p in files}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), "utf-8")


def _fingerprint(file: Path) -> list[int]:
    """Return a file's size and CRC-32: these detect torn files, not forged ones."""
    crc = 0
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 22):
            crc = zlib.crc32(chunk, crc)
    return [file.stat().st_size, crc]


def _read(file: Path) -> Any:
    try:
        with during(str(file)):
            return torch.load(file, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:  # torch's own message advises to load without this check
        why = "holds other things than numbers, which could run code, or is damaged; nothing of it was used"
        raise ValueError(f"{file} {why}; delete the checkpoint to resume from the one before") from error
    except (FileNotFoundError, RuntimeError, EOFError, ValueError, LookupError) as error:
        why = one_line(error)[:160] or type(error).__name__
        raise ValueError(
            f"{file} cannot be read ({why}); delete the checkpoint to resume from the one before"
        ) from error


def same_compute(folder: Path, there: Mapping[str, str], trainer: Resumable) -> None:
    """Raise ValueError naming the first policy whose backend differs from the checkpoint's, unless the recipe sets it.

    Another backend's numbers are equal but for rounding; those of a resumed run are to be equal to the bit."""
    for name, policy in trainer.policies.items():
        before, now = there.get(name, policy.compute), policy.compute
        if before != now and policy.spec.compute == "auto":
            raise ValueError(
                f"{folder} was computed by {before} for policy {name!r}, and here is {policy.about}; to go on "
                f"with other rounding say policies.{name}.compute={now}"
            )


def _generators() -> dict[str, Any]:
    version, state, gauss = random.getstate()
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "random": [version, list(state), gauss],
        "numpy": [name, np.asarray(keys).tolist(), *rest],
    }


def _set_generators(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
    version, internal, gauss = state["random"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
