"""What a training does where nobody says: the defaults that ``Trainer`` and a recipe share, written here alone."""

from __future__ import annotations

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
"""Steps from one checkpoint to the next."""
KEEP_LAST = 2
"""How many checkpoints are kept, the newest."""
SAMPLES = 4
"""Problems whose episodes are written down."""

MAX_TOKENS = 1 << 16
"""Positions that the local engine decodes at a time."""
SERVER_SECONDS = 600.0
"""That a server has to start, to take weights over, and to answer one call."""
