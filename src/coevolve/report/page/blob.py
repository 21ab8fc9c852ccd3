"""Data as a page carries it: gzip in base64, which no text in it can break out of, and every browser unpacks."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping
from typing import Any

_DIGITS = 5  # significant ones


def blob(value: Any) -> str:
    """JSON, packed. Raises ValueError for NaN and infinities, which JSON does not know."""
    return pack(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def pack(text: str) -> str:
    """Text, packed: the same text gives the same blob."""
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), mtime=0)).decode("ascii")


def rounded(value: Any) -> Any:
    """The same with numbers of five significant digits, NaN and infinities as None: more than a page shows."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value
