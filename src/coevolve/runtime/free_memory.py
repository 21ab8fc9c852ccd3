"""The memory that is free now: of a GPU, or of the machine or container that this process runs in."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

_CONTAINER = Path("/sys/fs/cgroup")
"""Where a container (cgroup v2) has its limit (``memory.max``), what of it is used (``memory.current``), and what of
that the system would give back: files that nobody has read lately (``inactive_file`` of ``memory.stat``)."""


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that are free on a device of this machine; None if it does not say, as a GPU that is full or
    whose one user is another process.

    On a CPU these are what the system could give without swapping, or what is left of the container's limit if that is
    less."""
    if device.type == "cuda":
        try:
            return int(torch.cuda.mem_get_info(device)[0])
        except RuntimeError:
            return None
    if device.type != "cpu":
        return None
    available = int(psutil.virtual_memory().available)
    left = _left_to_container()
    return available if left is None else min(available, left)


def _left_to_container() -> int | None:
    """Return the bytes that this container may still use; None without a container, or for one without a limit."""
    try:
        limit, used = (int((_CONTAINER / name).read_text("ascii")) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (_CONTAINER / "memory.stat").read_text("ascii").splitlines())
        return max(0, limit - used + int(stat["inactive_file"]))
    except (OSError, ValueError, KeyError):  # no such files, or no limit: "max"
        return None
