"""Data as a page carries it: gzip in base64, which no text in it can break out of, and every browser unpacks."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any


def blob(value: Any) -> str:
    """JSON, packed. Raises ValueError for NaN and infinities, which JSON does not know."""
    return pack(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def pack(text: str) -> str:
    """Text, packed: the same text gives the same blob."""
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), mtime=0)).decode("ascii")
