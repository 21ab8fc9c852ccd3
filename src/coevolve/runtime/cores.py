"""How many cores this process may use, which in a container are fewer than the machine has."""

from __future__ import annotations

import os


def cores() -> int:
    """At least one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
