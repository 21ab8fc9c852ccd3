"""Loading of the models that a recipe names (``names``): packaged, local, pre-trained by Coevolve, or the hub's.

Loading never runs a model's code: no Python of its own (``trust_remote_code``), no kernel that it names, no pickled
weights. Weights are loaded exactly as the files have them, or a ValueError is raised (see ``exact``).
"""

import string
import warnings
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.constants import HF_HUB_OFFLINE
from huggingface_hub.errors import HFValidationError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import GENERATION_CONFIG_NAME as _GENERATION
from transformers.utils import logging

from coevolve.faults import ShortageError, lacking, one_line
from coevolve.files import read_json, shown
from coevolve.models.exact import check_files, check_finite, check_loaded, weight_files
from coevolve.models.names import PACKAGED, is_gguf, resolve
from coevolve.names import did_you_mean

_HUB_SECONDS = 10.0
_WEIGHTS = (AutoModelForCausalLM, AutoModelForSequenceClassification)
_COPY = "copy the tokenizer's files (tokenizer.json, ...) into the folder"
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
_TOKENIZERS = ("tokenizer_config.json", *_VOCABULARIES)
_TEMPLATE = "chat_template.jinja"
_FOR_GGUF = ("gguf", "accelerate")  # packages with which transformers reads such a file
_TRIED = 256  # the number of ids whose texts ``_speaks`` tokenises


def load_config(name: str) -> Any:
    """Return a model's configuration. Raises ValueError if it cannot be loaded, or names code of the hub."""
    config = _load(AutoConfig, name)
    _check_kernels(name, config)
    return config


def load_generation(name: str, config: Any) -> GenerationConfig:
    """Return a model's generation config, or one made from its configuration if it has none. Raises ValueError for a
    broken file."""
    _check_generation(name)
    where = resolve(name)
    try:
        found: GenerationConfig = GenerationConfig.from_pretrained(str(where), **_asking(where, GenerationConfig))
    except OSError:  # it has none, or has just downloaded a broken one
        _check_generation(name)
        found = GenerationConfig.from_model_config(config)
    except (AttributeError, TypeError, ValueError) as error:  # a value that it does not know
        why = f"{_GENERATION} cannot be read ({one_line(error)[:240]}); mend that file, or copy it again"
        raise ValueError(f"model {name!r}: {why}") from error
    return found


def _check_generation(name: str) -> None:
    """Raise ValueError for a broken generation config in a folder or the hub's cache: transformers takes a file that it
    cannot read for none, without a word."""
    folder = where if isinstance(where := resolve(name), Path) else snapshot(where)
    if folder is None or not (file := folder / _GENERATION).is_file():
        return
    try:
        ends = read_json(file).get("eos_token_id")
        if file.read_bytes().startswith(BOM_UTF8):  # transformers does not skip it
            raise ValueError(f"{file} begins with a byte order mark; save it as UTF-8 without one")
        if not all(type(end) is int for end in (ends if isinstance(ends, list) else [ends]) if end is not None):
            raise ValueError(f"{file}: eos_token_id is {shown(ends)}; want a token's id or a list of ids")
    except ValueError as error:
        raise ValueError(f"model {name!r}: {error}; mend that file, or copy it again") from error


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Return a model's tokenizer. Raises ValueError if it cannot be loaded, or makes no tokens of any text."""
    where = resolve(name)
    try:
        found: PreTrainedTokenizerBase = _load(AutoTokenizer, name)
    except ValueError as error:
        if isinstance(where, Path) and where.is_dir() and not any((where / file).is_file() for file in _VOCABULARIES):
            raise ValueError(f"model {name!r}: the folder holds no tokenizer; {_COPY}") from error
        raise
    if not _speaks(found):  # some families make an empty tokenizer if there are no files
        raise ValueError(f"model {name!r}: its tokenizer makes no tokens of any text; {_COPY}")
    return found


def load_causal_lm(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> PreTrainedModel:
    """Return a language model with weights of `dtype`. options: of `from_pretrained`. Raises ValueError if it cannot be
    loaded."""
    return _load_weights(AutoModelForCausalLM, name, dtype=dtype, **options)


def load_classifier(name: str) -> PreTrainedModel:
    """Return a sequence classifier with float32 weights. Raises ValueError if it cannot be loaded."""
    return _load_weights(AutoModelForSequenceClassification, name, dtype=torch.float32)


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, model: Any, name: str) -> None:
    """Raise ValueError if the tokenizer has ids beyond the model's embedding."""
    rows, largest = model.get_input_embeddings().weight.shape[0], max(tokenizer.get_vocab().values())
    if largest >= rows:
        raise ValueError(
            f"model {name!r}: its tokenizer has ids up to {largest} ({tokenizer.convert_ids_to_tokens(largest)!r}), "
            f"its embedding has {rows} rows; it is the tokenizer of another model, or tokens were added to it alone"
        )


@contextmanager
def without_bars() -> Iterator[None]:
    """Switch transformers' progress bars off inside the context: they would mix with Coevolve's own output."""
    noise: Any = logging
    if not noise.is_progress_bar_enabled():
        yield
        return
    noise.disable_progress_bar()
    try:
        yield
    finally:
        noise.enable_progress_bar()


def _load_weights(auto: Any, name: str, **options: Any) -> PreTrainedModel:
    config = load_config(name)
    if quantised := getattr(config, "quantization_config", None):
        method = dict(quantised).get("quant_method", "some method") if isinstance(quantised, dict) else quantised
        raise ValueError(
            f"model {name!r} is quantised already ({method}); name the model that it was made of, with load_in_4bit: "
            "true where memory is short"
        )
    if auto is AutoModelForCausalLM:
        _check_generation(name)
    options |= {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    one_file = is_gguf(name)
    if one_file:
        if "quantization_config" in options:
            raise ValueError(f"model {name!r} is a GGUF file, which is dequantised; name a folder for load_in_4bit")
        options |= _dequantised()
    model, info = _load(auto, name, **options)
    if auto is AutoModelForCausalLM:  # again, of a model that has just been downloaded
        _check_generation(name)
    try:
        check_loaded(info, model)
        if one_file:  # a folder's files are read by ``check_files``
            check_finite(name, model.state_dict())
    except ValueError as error:
        raise ValueError(f"model {name!r}: {error}; copy it again, or name another one") from error
    found: PreTrainedModel = model
    return found


def _check_kernels(name: str, config: Any) -> None:
    """Raise ValueError for an attention implementation that transformers would fetch from the hub."""
    asked = getattr(config, "_attn_implementation", None)
    if isinstance(asked, str) and "/" in asked:
        raise ValueError(
            f"model {name!r} asks for code of the hub (attn_implementation {asked!r}), which Coevolve never runs; "
            "remove that from its config.json"
        )
    if isinstance(asked, str) and "flash" in asked and find_spec("flash_attn") is None:  # fetched from the hub instead
        raise ValueError(
            f"model {name!r} asks for {asked!r}, and flash_attn is not installed here; remove attn_implementation from "
            "its config.json"
        )
    for key in getattr(config, "sub_configs", ()):
        _check_kernels(name, getattr(config, key, None))


def _load(auto: Any, name: str, **options: Any) -> Any:
    where = resolve(name)
    options |= (asking := _asking(where, auto))
    here = "local_files_only" in asking
    if not asking:
        _require_on_hub(str(where))
    place, more = _source(where)
    if here and auto in _WEIGHTS and not more:
        _check_folder(name, where)
    try:
        with without_bars() if here else nullcontext():  # a download may take minutes
            found = auto.from_pretrained(place, trust_remote_code=False, **options, **more)
    except Exception as error:  # a library may raise anything for broken files
        if line := lacking(error):
            raise ShortageError(f"model {name!r}: {line}") from error
        raise _unusable(name, error) from error
    if not here and auto in _WEIGHTS:
        _check_folder(name, where)
    return found


def _source(where: Path | str) -> tuple[Path | str, dict[str, Any]]:
    """Return the path or name and the keywords for transformers' ``from_pretrained``: of a GGUF file, its folder and
    its name there.

    Raises ValueError for a GGUF file if a package that reads it is missing.
    """
    if not isinstance(where, Path) or not is_gguf(where.name) or where.is_dir():
        return where, {}
    if missing := [name for name in _FOR_GGUF if find_spec(name) is None]:
        raise ValueError(f"model {str(where)!r} needs the package {' and '.join(missing)}; install coevolve[gguf]")
    return where.parent, {"gguf_file": where.name}


def _dequantised() -> dict[str, Any]:
    """Return the keyword of ``from_pretrained`` that dequantises a GGUF file's weights: those in blocks of 4 or 6 bits
    cannot be trained and are slow to compute with here."""
    try:
        from transformers import GgufConfig
    except ImportError:  # older versions always dequantise
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


def _check_folder(name: str, where: Path | str) -> None:
    folder = where if isinstance(where, Path) else snapshot(where)
    assert folder is not None, f"{name} was loaded and is not in the cache"
    if (folder / "adapter_config.json").exists():
        raise ValueError(f"model {name!r} is an adapter; merge it into its base, or name the base")
    try:
        check_files(folder)
    except ValueError as error:
        raise ValueError(f"model {name!r}: {error}") from error


def _speaks(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether some text has tokens other than special ones: all of ASCII, or the text of one of the first
    ids."""
    special = set(tokenizer.all_special_ids)
    own = [i for i in sorted(tokenizer.get_vocab().values())[:_TRIED] if i not in special]
    for text in (string.printable, *(str(tokenizer.decode([i])) for i in own)):
        try:
            if not special.issuperset(tokenizer(text, add_special_tokens=False)["input_ids"]):
                return True
        except Exception:  # noqa: BLE001  # tokenizers raises no narrower one for an unknown character
            continue
    return False


def _asking(where: Path | str, auto: Any) -> dict[str, Any]:
    """Return the keywords for transformers by which it asks the hub for what the cache lacks: nothing, if all that
    ``auto`` reads is there; what is left of the same revision, if a download was broken off; everything."""
    if isinstance(where, Path):
        return {"local_files_only": True}
    if not _is_cached(where, auto):
        return {}
    folder, file = snapshot(where), _unknown(where, auto)
    assert folder is not None
    return {"revision": folder.name} if file and _can_be_asked(where, file) else {"local_files_only": True}


@cache
def _can_be_asked(name: str, file: str) -> bool:
    """Return whether the hub can be asked for a file of the model. If it cannot be reached, a warning says so; whoever
    switches it off vouches for the cache."""
    if HF_HUB_OFFLINE:
        return False
    try:
        _require_on_hub(name)
    except ValueError as error:
        warnings.warn(
            f"the cache of the hub does not say whether the model {name!r} has a {file}, which a download that was "
            f"broken off leaves out, and the hub cannot be asked; what is there is used ({error})",
            stacklevel=2,
        )
        return False
    return True


def _unknown(name: str, auto: Any) -> str:
    """Return a file that the hub's model may have and the cache neither has nor knows to be missing; "" if there is
    none."""
    folder = snapshot(name)
    assert folder is not None, f"{name} is in the cache"
    if auto is AutoTokenizer:
        if not any((folder / file).is_file() for file in _VOCABULARIES):
            return _VOCABULARIES[0]
        config = folder / "tokenizer_config.json"
        if config.is_file() and b'"chat_template"' in config.read_bytes():
            return ""
    file = {AutoTokenizer: _TEMPLATE, AutoModelForCausalLM: _GENERATION, GenerationConfig: _GENERATION}.get(auto, "")
    return file if file and try_to_load_from_cache(name, file) is None else ""


def _is_cached(name: str, auto: Any) -> bool:
    """Return whether the files that ``auto`` needs are in the cache: perhaps only the configuration is."""
    folder = snapshot(name)
    if folder is None or auto in (AutoConfig, GenerationConfig):
        return folder is not None
    if auto is AutoTokenizer:
        return any((folder / file).is_file() for file in _TOKENIZERS)
    try:
        return all(file.is_file() for file in weight_files(folder))
    except ValueError:
        return False


def snapshot(name: str) -> Path | None:
    """Return the folder of a hub model in the hub's cache, None if it is not there or the hub has no such names."""
    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def _require_on_hub(name: str) -> None:
    """Raise ValueError unless the hub has the model; transformers would retry for a minute if it cannot be reached."""
    try:
        HfApi().model_info(name, timeout=_HUB_SECONDS)
    except Exception as error:  # the hub's, its HTTP library's, or the system's
        raise _unusable(name, error) from error


def _unusable(name: str, error: Exception) -> ValueError:
    reason = one_line(error) or type(error).__name__
    if isinstance(error, UnicodeDecodeError):
        reason = "one of its files is not UTF-8 text"
    if "trust_remote_code" in str(error):
        return ValueError(
            f"model {name!r} comes with Python of its own (auto_map), which Coevolve never runs; use a model of a "
            "family that transformers knows"
        )
    here = "" if Path(name).exists() else f"; there is no folder {name} here{did_you_mean(name, PACKAGED)}"
    return ValueError(
        f"model {name!r} cannot be loaded ({type(error).__name__}: {reason[:240]}){here}; use {PACKAGED[0]!r}, a model "
        "folder, a pre-training recipe, or a name of the Hugging Face hub while it can be reached"
    )


def device_of(name: str) -> torch.device:
    """Return the device that a recipe names. Raises ValueError if this machine does not have it."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    device = torch.device(name)
    if device.type == "mps":
        raise ValueError(f"device {name!r}: Apple's GPUs have no float64, which sampling sums in; use device: cpu")
    kind = torch.get_device_module(device)
    if not kind.is_available():
        raise ValueError(f"device {name!r}: there is no such GPU here that torch can use; use device: cpu or auto")
    if device.type != "cpu" and (device.index or 0) >= (count := kind.device_count()):
        there = f"{device.type}:0 to {device.type}:{count - 1}" if count > 1 else f"only {device.type}:0"
        raise ValueError(f"device {name!r}: torch finds {there} here; use one that is there, cpu or auto")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device
