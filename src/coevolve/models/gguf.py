"""Models in a single GGUF file, llama.cpp's format: transformers reads config, tokenizer and weights from it.

Weights in blocks of 4 or 6 bits cannot be trained and are slow to compute with here, so they are dequantised when the
file is loaded; in memory and when saved, the model is like any other.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from coevolve.models.names import is_gguf

_NEEDED = ("gguf", "accelerate")


def source(where: Path | str) -> tuple[Path | str, dict[str, Any]]:
    """Return the path or name and the keywords for transformers' ``from_pretrained``.

    Raises ValueError for a GGUF file if a package that reads it is missing.
    """
    if not isinstance(where, Path) or not is_gguf(where.name) or where.is_dir():
        return where, {}
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise ValueError(f"model {str(where)!r} needs the package {' and '.join(missing)}; install coevolve[gguf]")
    return where.parent, {"gguf_file": where.name}


def dequantised() -> dict[str, Any]:
    """Return the keyword of ``from_pretrained`` that dequantises all weights."""
    try:
        from transformers import GgufConfig
    except ImportError:  # older versions always dequantise
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}
