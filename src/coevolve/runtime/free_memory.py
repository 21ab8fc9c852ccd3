"""The memory that is free now: of a GPU, or of the machine or container that this process runs in."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

_CONTAINER = Path("/sys/fs/cgroup")
"""Where a container (cgroup v2) has its limit, ``memory.max``, and what of it is used, ``memory.current``."""


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that are free on a device of this machine; None if it is of a kind that does not say.

    On a CPU these are what the system could give without swapping, or what is left of the container's limit if that is
    less, where files that the system keeps in memory count as used, although it would drop them."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    available = int(psutil.virtual_memory().available)
    try:
        limit, used = (int((_CONTAINER / name).read_text("ascii")) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no container, or one without a limit: "max"
        return available
    return min(available, max(0, limit - used))
