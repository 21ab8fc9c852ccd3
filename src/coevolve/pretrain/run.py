"""One pre-training run from recipe to model folder."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from coevolve.console import say
from coevolve.files import check_folder
from coevolve.pretrain import causal, classifier
from coevolve.pretrain.build import build_model, build_tokenizer
from coevolve.pretrain.recipe import CHECKPOINT, HELD_OUT, CausalLMRecipe, Recipe, folder_of, load
from coevolve.pretrain.training import train
from coevolve.recipe.inputs import dump, load_yaml
from coevolve.runs import durable
from coevolve.runs.lock import LOCK, alone, sweep_up
from coevolve.runtime.placement import set_threads


def main(recipe: Path, overrides: list[str], resume: bool) -> Path:
    """Train the recipe's model and return its folder, `model/` in the output folder.

    With `resume`, a killed run continues from its last checkpoint and ends in the same weights as one never
    interrupted, a finished run is returned as it is, and a run that another process trains is waited for. Raises
    ValueError for mistakes in the recipe, and for a folder that cannot be used.
    """
    resolved = load(recipe, overrides)
    folder = folder_of(recipe, resolved)
    _check(folder)
    with alone(folder, wait=resume):  # several runs that start at the same time may all need this model
        sweep_up(folder)
        _claim(folder, resolved, resume)
        if not (folder / "model").is_dir():
            with _threads(resolved.threads):
                _run(resolved, folder)
    return folder / "model"


def check_resume(recipe: Path, overrides: list[str]) -> None:
    """Raise ValueError if the recipe's folder holds no run to continue."""
    folder = folder_of(recipe, load(recipe, overrides))
    if not (folder / "recipe.yaml").is_file():
        raise ValueError(f"{folder} holds no run to go on with; to start one there leave --resume out")


def _check(folder: Path) -> None:
    """Raise ValueError for a folder that cannot be written, or holds other than pre-training. Changes nothing."""
    if not (folder / "model").is_dir():  # a finished one is only read
        check_folder(folder, "output_dir")
    recipe = folder / "recipe.yaml"
    if recipe.is_file() and "kind" not in load_yaml(recipe):
        raise ValueError(f"{folder} holds a run of coevolve train; choose another output_dir")
    found = sorted(file.name for file in folder.iterdir()) if folder.exists() else []
    names = [name for name in found if name != LOCK and not durable.is_left_over(name)]
    if names and not recipe.is_file():
        raise ValueError(f"output_dir: {folder} holds {names[0]!r} and no run; choose an empty or a new folder")


def _claim(folder: Path, recipe: Recipe, resume: bool) -> None:
    """Write the resolved recipe into the folder. Raises ValueError for a folder with a checkpoint or a model, unless
    `resume` continues it with the same recipe."""
    mine = recipe.model_dump(mode="json", exclude={"output_dir"})
    path = folder / "recipe.yaml"
    if (folder / CHECKPOINT).exists() or (folder / "model").exists():
        # Coevolve 0.2 wrote a key that there is no more, for a model to start from.
        if not path.is_file() or load_yaml(path) not in (mine, mine | {"start": None}):
            raise ValueError(f"{folder} holds a run of another recipe; choose another output_dir or delete it")
        if not resume:
            raise ValueError(f"{folder} already holds a run; pass --resume to continue it, or delete it")
        return
    durable.remove(folder / "tokenizer")  # left by a run that ended before its first checkpoint
    durable.write_text(path, dump(mine))


def _run(recipe: Recipe, folder: Path) -> None:
    tokenizer = build_tokenizer(recipe, folder)
    model = build_model(recipe, tokenizer)
    say(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer):,} tokens")
    if isinstance(recipe, CausalLMRecipe):
        train(model, causal.objective(model, tokenizer, recipe), recipe, folder)
        names = [source.name for source in recipe.sources]
        held_out = causal.perplexities(model, tokenizer, names, recipe.sequence_length)
    else:
        train(model, classifier.objective(model, tokenizer, recipe), recipe, folder)
        held_out = classifier.accuracies(model, tokenizer, recipe)
    durable.write_text(folder / HELD_OUT, json.dumps(held_out, indent=1) + "\n")
    for name, value in held_out.items():
        say(f"held out  {name}  {value:.3f}")
    _save(model, tokenizer, recipe, folder)


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, recipe: Recipe, folder: Path) -> None:
    """Write `model/` under another name and rename it, so that its presence means that the run is finished."""
    beside = folder / "model.new"
    shutil.rmtree(beside, ignore_errors=True)
    nn.Module.to(model, dtype=getattr(torch, recipe.save_dtype))
    model.save_pretrained(beside)
    tokenizer.save_pretrained(beside)
    durable.publish(beside, folder / "model")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    set_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
