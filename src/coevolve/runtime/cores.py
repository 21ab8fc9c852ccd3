"""The number of cores that this process may use: in a container, fewer than the machine has."""

from __future__ import annotations

import os


def cores() -> int:
    """Return the number of cores that this process may use, at least one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
