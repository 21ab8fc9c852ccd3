"""Fuzz tests need no network, and say how many inputs they tried."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import pytest
from fuzzing import CASES

from coevolve.data import FOLDER


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No hub, no data set, and an empty folder to be in."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "data").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv(FOLDER, str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path / "here")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tried = {kind: count for kind, count in CASES.items() if not kind.endswith(", refused")}
    if tried:
        each = ", ".join(f"{kind} {count} ({CASES[f'{kind}, refused']} refused)" for kind, count in tried.items())
        terminalreporter.write_line(f"fuzzing: {sum(tried.values())} inputs: {each}")
