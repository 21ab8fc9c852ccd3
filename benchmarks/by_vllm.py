"""A real vLLM server for the benchmarks that compare with one; COEVOLVE_VLLM names the folder that has the program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from coevolve.engines.server import ServerEngine


def program() -> Path | None:
    """The folder of the program; None if no vLLM is to be compared with."""
    named = os.environ.get("COEVOLVE_VLLM")
    return Path(named) if named else None


def server(bin: Path, device: str, share: float, **flags: Any) -> ServerEngine:
    """An engine that starts this vLLM at its first publish. share: of a GPU's memory, which contenders divide."""
    os.environ |= {"PATH": f"{bin.absolute()}{os.pathsep}{os.environ['PATH']}"}
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    own: dict[str, Any] = {"gpu-memory-utilization": share}
    if device == "cpu":
        own = {"enforce-eager": True, "devices": ""}
    return ServerEngine(start={**flags, **own})
