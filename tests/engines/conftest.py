"""A program in place of vLLM."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """program(text): a program called vllm is on the PATH, beside the system's."""

    def one(text: str) -> None:
        (tmp_path / "vllm").write_text(text)
        (tmp_path / "vllm").chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.defpath}")
    return one
