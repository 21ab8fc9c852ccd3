"""Model names of a recipe turned into folders and loaded: packaged, local, pre-trained by us on demand, or the hub."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

PACKAGED = ("coevolve-tiny", "coevolve-coin", "coevolve-sums", "coevolve-coop")
_HUB_SECONDS = 10.0


def resolve(name: str) -> Path | str:
    """Where transformers finds the model `name`.

    Those of `PACKAGED` are folders in the package; an existing path is itself; the path of a
    pre-training recipe (`*.yaml`) is the model it trains, at first use; anything else is a name on the Hugging Face
    hub.
    """
    if name in PACKAGED:
        return Path(str(files("coevolve"))) / "assets" / name
    path = Path(name)
    if is_recipe(name):
        if not path.is_file():
            raise ValueError(f"model {name!r}: no such recipe file; check the path (it is relative to where you are)")
        from coevolve.pretrain import pretrain  # here: pre-training itself loads models

        return pretrain(path, [], resume=True)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"model {name!r}: the folder holds no config.json, so no transformers model")
        return path
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ValueError(f"model {name!r}: no such folder; check the path, or give a hub name such as 'gpt2'")
    return name


def is_recipe(name: str) -> bool:
    """Whether a model's name is the path of a pre-training recipe."""
    return name.endswith((".yaml", ".yml"))


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model; ValueError if it cannot be had."""
    found: PreTrainedTokenizerBase = _load(AutoTokenizer, name)
    return found


def load_causal_lm(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> PreTrainedModel:
    """A language model with weights of `dtype`; ValueError if it cannot be had. options: of `from_pretrained`."""
    found: PreTrainedModel = _load(AutoModelForCausalLM, name, dtype=dtype, **options)
    return found


def load_classifier(name: str) -> PreTrainedModel:
    """A sequence classifier with float32 weights; ValueError if it cannot be had."""
    found: PreTrainedModel = _load(AutoModelForSequenceClassification, name, dtype=torch.float32)
    return found


@contextmanager
def without_bars() -> Iterator[None]:
    """transformers draws no progress bars meanwhile, which would come between lines of ours."""
    noise: Any = logging
    if not noise.is_progress_bar_enabled():
        yield
        return
    noise.disable_progress_bar()
    try:
        yield
    finally:
        noise.enable_progress_bar()


def _load(auto: Any, name: str, **options: Any) -> Any:
    where = resolve(name)
    here = isinstance(where, Path) or _is_cached(where)
    if here:
        options["local_files_only"] = True
    else:
        _require_on_hub(str(where))
    try:
        with without_bars() if here else nullcontext():  # a download may take minutes
            return auto.from_pretrained(where, **options)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise _unusable(name, error) from error


def _is_cached(name: str) -> bool:
    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def _require_on_hub(name: str) -> None:
    """One short request, since transformers would retry for a minute when the hub cannot be reached."""
    try:
        HfApi().model_info(name, timeout=_HUB_SECONDS)
    except Exception as error:  # the hub's own, those of whichever HTTP library it uses, and the system's
        raise _unusable(name, error) from error


def _unusable(name: str, error: Exception) -> ValueError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ValueError(
        f"model {name!r} cannot be loaded ({type(error).__name__}: {reason[:160]}); use {PACKAGED[0]!r}, a model "
        "folder, a pre-training recipe, or a name of the Hugging Face hub while it can be reached"
    )
