"""The resumable state of a pre-training run: one file, written under another name and renamed, so that it is never
torn."""

import json
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coevolve.faults import ShortageError, lacking, one_line
from coevolve.runs import durable
from coevolve.runs.folder import lines_before

NAME = "checkpoint.pt"


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, losses: Sequence[float]) -> None:
    """Save the state after `step` updates. losses: those of the updates that no line of metrics covers yet."""
    beside = folder / (NAME + ".new")
    try:
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"losses": list(losses)}, beside)
        durable.publish(beside, folder / NAME)
    except (OSError, RuntimeError) as error:  # torch raises the latter for a full disk
        free = shutil.disk_usage(folder).free >> 20
        beside.unlink(missing_ok=True)
        said = f"could not write {folder / NAME} ({free} MiB were free there)"
        raise ShortageError(f"{said}: {lacking(error) or one_line(error)}") from error


def restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, list[float]]:
    """Load the saved state; return its number of updates, 0 if nothing was saved yet, and the losses of the updates
    that no line of metrics covers."""
    path = folder / NAME
    if not path.is_file():
        return 0, []
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, KeyError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path}: not a checkpoint of this recipe ({error}); delete the run to start over") from error
    return int(state["step"]), [float(loss) for loss in state.get("losses", ())]


def drop_metrics_after(path: Path, step: int) -> None:
    """Remove the lines that an interrupted run wrote after its last checkpoint; they will be written again."""
    if not path.is_file():
        return
    durable.write_text(path, "".join(json.dumps(line) + "\n" for line in lines_before(path, step + 1)))
