"""The split of a generated problem, derived from its text alone, so that no list of problems has to be kept."""

from __future__ import annotations

import hashlib
from typing import Literal

Split = Literal["pretrain", "train", "test"]


def split_of_key(key: str) -> Split:
    """Return the split of a key: half of all keys are pre-training, three in ten training, the rest held out."""
    bucket = hashlib.sha256(key.encode()).digest()[0]  # not hash(): that differs from process to process
    return "pretrain" if bucket < 128 else "train" if bucket < 205 else "test"
