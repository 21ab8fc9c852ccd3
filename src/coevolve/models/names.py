"""Model names in recipes and the places that they stand for: packaged, local, pre-trained by Coevolve, or the hub."""

from __future__ import annotations

import os
import re
from importlib.resources import files
from pathlib import Path

from coevolve.files import read_json
from coevolve.pretrain.recipe import folder_of, load

PACKAGED = ("coevolve-tiny", "coevolve-coin", "coevolve-sums", "coevolve-coop", "coevolve-checks")
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
"""Names that a model of the Hugging Face hub may have."""


def resolve(name: str) -> Path | str:
    """Return the path or hub name by which transformers finds the model `name`.

    The models of `PACKAGED` are folders in the package; an existing path, a model's folder or a single file (`*.gguf`),
    stays as it is; the path of a pre-training recipe (`*.yaml`) stands for the model that it has trained (``coevolve
    train`` runs it first); anything else is a name on the Hugging Face hub.
    """
    if name in PACKAGED:
        return Path(str(files("coevolve"))) / "assets" / name
    path = Path(name := os.path.expanduser(name))
    if is_recipe(name) and not path.is_dir():
        if not path.is_file():
            raise ValueError(f"model {name!r}: no such recipe file; check the path (it is relative to where you are)")
        folder = _trained_by(path)
        if not folder.is_dir():
            raise ValueError(f"model {name!r} has not been pre-trained yet; run coevolve pretrain {name}")
        return folder
    if path.is_dir():
        if not (path / "config.json").is_file():
            if (path / "adapter_config.json").is_file():
                raise ValueError(f"model {name!r} is an adapter alone; merge it into its base (peft: merge_and_unload)")
            raise ValueError(f"model {name!r}: the folder holds no config.json, so no transformers model")
        read_json(path / "config.json")
        return path
    if is_gguf(name):
        if not path.is_file():
            raise ValueError(f"model {name!r}: no such file; check the path (it is relative to where you are)")
        return path
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ValueError(f"model {name!r}: no such folder; check the path, or give a hub name such as 'gpt2'")
    return name


def check_repo(name: str) -> None:
    """Raise ValueError unless the name has the hub's form OWNER/NAME."""
    if name.count("/") != 1 or not HUB_NAME.fullmatch(name):
        raise ValueError(f"{name[:120]!r} is no model of the hub; want OWNER/NAME")


def is_recipe(name: str) -> bool:
    """Return whether a model's name is the path of a pre-training recipe."""
    return name.endswith((".yaml", ".yml"))


def is_to_pretrain(name: str) -> bool:
    """Return whether a model's name is the path of a pre-training recipe that has not been run to its end here."""
    path = Path(os.path.expanduser(name))
    return is_recipe(name) and path.is_file() and not _trained_by(path).is_dir()


def is_gguf(name: str) -> bool:
    """Return whether a model's name is that of a GGUF file, llama.cpp's format."""
    return name.endswith(".gguf")


def _trained_by(recipe: Path) -> Path:
    """Return the folder of the model that a pre-training recipe trains."""
    return folder_of(recipe, load(recipe, [])) / "model"
