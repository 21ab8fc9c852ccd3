"""The number of cores that this process may use: in a container, often fewer than the machine has."""

from __future__ import annotations

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The processor time that a container may use (cgroup v2): "200000 100000", microseconds in every so many, or
"max 100000"."""


def cores() -> int:
    """Return the number of cores that this process may use, at least one.

    That is the least of those that it may run on (its affinity, as by ``docker --cpuset-cpus``) and of ``quota``.
    """
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(found, quota() or found)


def quota() -> int | None:
    """Return the number of cores whose time this process's container may use, rounded up (as by ``docker --cpus``,
    which the affinity does not show); None if it may use all."""
    try:
        time, period = map(int, _QUOTA.read_text("ascii").split())
    except (OSError, ValueError):  # no such file, or no limit: "max"
        return None
    return max(1, -(-time // period))
