"""The cores that a process may use: by its affinity and by its container's quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coevolve.runtime import cores


@pytest.mark.parametrize(
    ("quota", "count"),
    [
        ("200000 100000\n", 2),  # docker run --cpus 2
        ("150000 100000\n", 2),
        ("1000 100000\n", 1),
        ("9900000 100000\n", 64),
        ("max 100000\n", 64),
        ("", 64),
        (None, 64),
    ],
)
def test_a_containers_quota_counts(
    quota: str | None, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine of 64 cores, all of which the container may run on."""
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    monkeypatch.setattr(cores, "_QUOTA", tmp_path / "cpu.max")
    assert cores.cores() == count
