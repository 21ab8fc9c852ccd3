"""The training loop of both kinds of recipe, and its checkpoint: one file, written under another name and renamed, so
that it is never torn."""

import json
import math
import pickle
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coevolve.console import say
from coevolve.faults import ShortageError, during, lacking, one_line
from coevolve.pretrain.recipe import CHECKPOINT, Recipe
from coevolve.runs import durable
from coevolve.runs.folder import lines_before

_FINAL_RATE = 0.05  # of the peak learning rate, at the end of the cosine
_MAX_GRADIENT_NORM = 1.0

Loss = Callable[[int], Tensor]  # step -> mean loss of its batch, a function of (seed, step) and the weights only


def train(model: nn.Module, loss: Loss, recipe: Recipe, folder: Path) -> None:
    """Run the updates after the checkpoint in `folder`, with a new checkpoint after every `checkpoint_every` updates.

    Raises ValueError, before the update, if a loss is not finite.
    """
    optimizer = _optimizer(model, recipe)
    first, window = _restore(folder, model, optimizer)
    metrics = folder / "metrics.jsonl"
    _drop_metrics_after(metrics, first)
    model.train()
    began, before = time.monotonic(), len(window)  # before: updates of the interrupted process, not timed here
    for step in range(first, recipe.steps):
        rate = learning_rate(step, recipe)
        window.append(_update(model, optimizer, loss, step, rate, recipe))
        done = step + 1
        if done % recipe.log_every == 0 or done == recipe.steps:
            seconds = (time.monotonic() - began) / (len(window) - before)
            _log(metrics, done, sum(window) / len(window), rate, seconds, recipe)
            window, began, before = [], time.monotonic(), 0
        if done % recipe.checkpoint_every == 0 or done == recipe.steps:
            if metrics.exists():  # a checkpoint implies that the lines before it are on the disk
                durable.sync(metrics)
            _save(folder, done, model, optimizer, window)


def learning_rate(step: int, recipe: Recipe) -> float:
    """Return the learning rate of a step: linear warm-up to the peak, then half a cosine down to a twentieth of it."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return recipe.learning_rate * (_FINAL_RATE + (1 - _FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * progress)))


def _update(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, step: int, rate: float, recipe: Recipe
) -> float:
    # Dropout is a function of the step, so that a resume is exact. A seed may be larger than torch takes.
    torch.manual_seed((recipe.seed * 1_000_003 + step) % (1 << 63))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=recipe.dtype == "bfloat16"):
        value = loss(step)
    number = float(value.detach())
    if not math.isfinite(number):
        raise ValueError(f"step {step}: the loss is {number}; lower learning_rate and start over")
    value.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), _MAX_GRADIENT_NORM)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return number


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Return an AdamW optimizer without weight decay on vectors (norms, biases)."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98), fused=True)


def _log(path: Path, step: int, loss: float, rate: float, seconds: float, recipe: Recipe) -> None:
    """Write a line to the metrics file and the terminal. seconds: the mean duration of a step."""
    line = {"step": step, "loss": round(loss, 5), "learning_rate": rate, "seconds_per_step": round(seconds, 4)}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    left = (recipe.steps - step) * seconds / 60
    say(f"step {step}/{recipe.steps}  loss {loss:.3f}  {seconds:.2f} s/step  {left:.1f} min left")


def _save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, losses: Sequence[float]) -> None:
    """Save the state after `step` updates. losses: those of the updates that no line of metrics covers yet."""
    beside = folder / (CHECKPOINT + ".new")
    try:
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"losses": list(losses)}, beside)
        durable.publish(beside, folder / CHECKPOINT)
    except (OSError, RuntimeError) as error:  # torch raises the latter for a full disk
        free = shutil.disk_usage(folder).free >> 20
        beside.unlink(missing_ok=True)
        said = f"could not write {folder / CHECKPOINT} ({free} MiB were free there)"
        raise ShortageError(f"{said}: {lacking(error) or one_line(error)}") from error


def _restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, list[float]]:
    """Load the saved state; return its number of updates, 0 if nothing was saved yet, and the losses of the updates
    that no line of metrics covers."""
    path = folder / CHECKPOINT
    if not path.is_file():
        return 0, []
    try:
        with during(str(path)):
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, KeyError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path}: not a checkpoint of this recipe ({error}); delete the run to start over") from error
    return int(state["step"]), [float(loss) for loss in state.get("losses", ())]


def _drop_metrics_after(path: Path, step: int) -> None:
    """Remove the lines that an interrupted run wrote after its last checkpoint; they will be written again."""
    if not path.is_file():
        return
    durable.write_text(path, "".join(json.dumps(line) + "\n" for line in lines_before(path, step + 1)))
