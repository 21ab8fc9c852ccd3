"""The blobs of a page's data: gzip in base64, so that no text can break out of its tag; every browser unpacks it."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping
from typing import Any

_DIGITS = 5  # significant digits


def blob(value: Any) -> str:
    """Pack a value as JSON. Raises ValueError for NaN and infinities, which JSON does not have."""
    return pack(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def pack(text: str) -> str:
    """Pack a text; equal texts give equal blobs."""
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), mtime=0)).decode("ascii")


def rounded(value: Any) -> Any:
    """Return the value with floats of five significant digits, which is more than a page shows; NaN and infinities
    become None."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value
