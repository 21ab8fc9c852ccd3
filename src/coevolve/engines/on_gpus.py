"""What the local engine lacks on GPUs, in words; told by a dry run, and again when a model is loaded."""

from __future__ import annotations

from collections.abc import Iterable

from coevolve.types import PolicyName


def slow_on_gpus(names: Iterable[PolicyName]) -> str:
    """Return what the local engine lacks where it samples these policies on GPUs; empty if there are none."""
    told = ", ".join(names)
    return f"{told} on a GPU without CUDA graphs and continuous batching, which vllm has" if told else ""
