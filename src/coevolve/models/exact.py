"""Checks that weight files hold every tensor that a model needs, of the right shape, readable and finite.

transformers fills in missing tensors with random numbers and casts whatever it finds, with no more than a log message.
The checks here raise an error that names the tensor. Files have transformers' names: ``model.safetensors``, or the
shards that ``model.safetensors.index.json`` lists.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from coevolve.faults import one_line

_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_DTYPES = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})

_LEFT_OVER = re.compile(
    r"(^|\.)(attn|attention)\.(bias|masked_bias)$|(^|\.)rotary_emb\.inv_freq$|(^|\.)position_ids$"
    r"|(^|\.)pooler\.dense\.(weight|bias)$"
)
"""Names of tensors that may be left unused: buffers that older versions of transformers saved and newer ones compute,
and the pooler of encoders, which classifiers with their own head do not use. ``check_loaded`` matches only tensors that
the model does not use; ``check_file`` does not check tensors of these names for NaN, whether they are used or not."""

_SHOWN = 3  # names of tensors in a message


def check_files(folder: Path) -> None:
    """Read and check all weight files in a model's folder.

    Raises ValueError naming the file and the tensor for pickled weights, files that are missing, cut short or zeroed,
    tensors that are not floating-point, and NaN or infinite values.
    """
    for file in weight_files(folder):
        check_file(file)


def check_file(file: Path) -> None:
    """Check one weight file as ``check_files`` does; also for an adapter's file."""
    tensors = read(file)
    if tensors and not any(bool(tensor.any()) for tensor in tensors.values()):
        raise ValueError(f"{file}: every number in it is 0; it was not written to its end, copy it again")
    check_finite(file, {name: tensor for name, tensor in tensors.items() if not _LEFT_OVER.search(name)})


def read(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, which are read on use. Raises ValueError naming a broken file."""
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # no mapping
    except (SafetensorError, OSError) as error:
        why = "does not exist" if not file.is_file() else f"cannot be read ({one_line(error)})"
        raise ValueError(f"{file} {why}; it is missing, cut short or damaged: copy it again") from error


def beginning_unlike(file: Path, state: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield the names of tensors whose first row differs between a safetensors file and a state, among those that both
    have in the same shape; rows are compared in the smaller of the two dtypes."""
    with safe_open(file, framework="pt") as opened:
        for name in sorted(state.keys() & set(opened.keys())):
            there, here = opened.get_slice(name), state[name]
            if list(there.get_shape()) != list(here.shape) or not here.is_floating_point() or not here.ndim:
                continue
            one, other = there[:1], here[:1].cpu()
            short = min(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
            if not torch.equal(one.to(short), other.to(short)):
                yield name


def beginnings(state: Mapping[str, Tensor]) -> str:
    """Return a digest of the first rows of a model's tensors, by which to tell later whether it is still the same: of
    any dtype that rounds to the same bfloat16, and whatever the tensors are called. "" for a model in shards."""
    floating = [x for x in state.values() if x.is_floating_point() and x.ndim]
    if any(type(x) is not Tensor and hasattr(x, "full_tensor") for x in floating):
        return ""
    rows = {x[:1].to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes() for x in floating}
    return hashlib.sha256(b"".join(sorted(rows))).hexdigest()[:16]


def check_loaded(info: Mapping[str, Any], model: Any) -> None:
    """Raise ValueError naming tensors that were initialised at random, left unused, or of another shape.

    info: the loading info of transformers' ``from_pretrained``, with ``output_loading_info`` and
    ``ignore_mismatched_sizes``.
    """
    kind = f"{model.config.model_type}, {type(model).__name__}"
    if shapes := sorted(info["mismatched_keys"]):
        name, found, wanted = shapes[0]
        more = f" (and {len(shapes) - 1} more)" if len(shapes) > 1 else ""
        raise ValueError(f"the tensor {name} has the shape {_shape(found)}, its config.json ({kind}) wants "
                         f"{_shape(wanted)}{more}")  # fmt: skip
    missing = sorted(info["missing_keys"])
    unused = sorted(name for name in info["unexpected_keys"] if not _LEFT_OVER.search(name))
    if missing or unused:
        parts = [
            f"{what} {listed(names)}" for what, names in (("no tensor", missing), ("unknown to it", unused)) if names
        ]
        raise ValueError(f"its weights do not fit its config.json ({kind}): {'; '.join(parts)}")
    if wrong := [*info.get("error_msgs", ()), *dict(info.get("conversion_errors", {})).values()]:
        raise ValueError(one_line(wrong[0]))
    if not bool(model.get_input_embeddings().weight.any()):
        raise ValueError("every number of its input embedding is 0")


def check_same(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], file: Path) -> None:
    """Raise ValueError naming the file and a tensor unless both have the same names and shapes, all values finite."""
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or unknown:
        parts = [f"{what} {listed(names)}" for what, names in (("no tensor", missing), ("unknown", unknown)) if names]
        raise ValueError(
            f"{file} is not of this policy: {'; '.join(parts)}; it is of another model or of other LoRA settings"
        )
    for name, tensor in found.items():
        if tensor.shape != wanted[name].shape:
            raise ValueError(
                f"{file}: the tensor {name} has the shape {_shape(tensor.shape)}, this policy wants "
                f"{_shape(wanted[name].shape)}"
            )
        _check_tensor(file, name, tensor)


def check_finite(file: Path | str, tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError naming the file and a tensor that is not floating-point or not finite everywhere."""
    for name, tensor in tensors.items():
        _check_tensor(file, name, tensor)


def listed(names: Iterable[str]) -> str:
    """Return a text with the first names and the number of further ones."""
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model's folder. Raises ValueError if it has none, or an index that is wrong."""
    index = folder / _INDEX
    if (folder / _ONE).is_file():
        return [folder / _ONE]
    if not index.is_file():
        pickled = sorted(file.name for pattern in _PICKLED for file in folder.glob(pattern))
        why = f", only {listed(pickled)}; such files can run code when they are read: convert them" if pickled else ""
        raise ValueError(f"{folder} holds no weights: no {_ONE}{why}")
    try:
        named = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} is not an index of weights ({one_line(error)}); copy it again") from error
    for name in named:
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{index} names {name!r}, which is no file of its folder")
    return [folder / name for name in sorted(named)]


def _check_tensor(file: Path | str, name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _DTYPES:
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise ValueError(f"{file}: the tensor {name} is {dtype}, which is no weight that can be trained; name the "
                         "model that was not quantised")  # fmt: skip
    if tensor.numel():
        low, high = (float(end) for end in tensor.aminmax())
        most = torch.finfo(torch.float32).max
        if not (-most <= low and high <= most):
            raise ValueError(
                f"{file}: the tensor {name} holds NaN, infinite or too large numbers; take an earlier copy"
            )


def _shape(shape: Iterable[int]) -> str:
    return str(list(shape))
