"""Models in one GGUF file, llama.cpp's format: transformers reads config, tokenizer and weights from it.

Weights in blocks of 4 or 6 bits cannot be trained and are slow to compute with here, so each is dequantised when the
file is loaded; in memory, and as it is saved, the model is one like any other.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from coevolve.models.names import is_gguf

_NEEDED = ("gguf", "accelerate")


def source(where: Path | str) -> tuple[Path | str, dict[str, Any]]:
    """What transformers' ``from_pretrained`` is given for a model that is there: a place, and keywords.

    Raises ValueError for a GGUF file where a package is missing that reads it.
    """
    if not isinstance(where, Path) or not is_gguf(where.name) or where.is_dir():
        return where, {}
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise ValueError(f"model {str(where)!r} needs the package {' and '.join(missing)}; install coevolve[gguf]")
    return where.parent, {"gguf_file": where.name}


def dequantised() -> dict[str, Any]:
    """The keyword by which no weight stays in blocks."""
    try:
        from transformers import GgufConfig
    except ImportError:  # older ones have no blocks in memory
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}
