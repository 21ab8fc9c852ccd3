"""Default settings of a training, shared by ``Trainer`` and recipes."""

from __future__ import annotations

from typing import Literal

from coevolve.settings import Workers
from coevolve.types import Sampling

SAMPLING = Sampling(max_new_tokens=(4, 16))
STEPS = 100
BATCH_SIZE = 64
MEMBERS = 1
SEED = 0
RESET_EVERY: int | None = None
WORKERS: Workers = "auto"

SAVE_EVERY = 20
"""Steps between checkpoints."""
KEEP_LAST = 2
"""Number of newest checkpoints that are kept."""
SAMPLES = 4
"""Problems per step whose episodes are written to the run, and held-out ones played at the start and at checkpoints."""

MAX_TOKENS = 1 << 16
"""Positions (prompts, padding and new tokens) that the local engine decodes at a time."""
TRANSFER: Literal["disk"] = "disk"
"""How full weights are sent to a server."""
SERVER_SECONDS = 600.0
"""Seconds within which a server must start, load weights, or answer one call."""
