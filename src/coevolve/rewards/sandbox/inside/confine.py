"""What a case's process gives up before it runs anything: descriptors, privileges, files, system calls."""

from __future__ import annotations

import os
import resource
import sys
from typing import Any


def confine(settings: dict[str, Any], keep: int) -> None:
    """Confine this process for good. keep: the only descriptor besides 0, 1 and 2 that stays open, as 3.

    settings: temp (folder), memory_mb, cpu_seconds.
    """
    os.dup2(keep, 3)
    os.closerange(4, 256)
    os.chdir(settings["temp"])
    memory = settings["memory_mb"] << 20
    for name, value in (("AS", memory), ("CPU", settings["cpu_seconds"]), ("CORE", 0), ("FSIZE", 1 << 24), ("NOFILE", 64)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
