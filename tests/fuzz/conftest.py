"""Fuzz tests need no network, and say how many inputs they tried."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import pytest
from fuzzing import CASES, RECIPES

from coevolve.cli import main
from coevolve.tasks.data import FOLDER


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No hub, no data set, and an empty folder to be in."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "data").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv(FOLDER, str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two steps and the team that was exported from it. Nobody changes it."""
    folder = tmp_path_factory.mktemp("made")
    run = folder / "run"
    train = ["train", str(RECIPES / "posg-chicken-joint.yaml"), "steps=2", "save_every=1", f"output_dir={run}"]
    assert main(train) == 0
    assert main(["eval", str(run), "--problems", "1"]) == 0
    assert main(["diagnose", str(run), "--problems", "1"]) == 0
    assert main(["export", str(run), str(folder / "team")]) == 0
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tried = {kind: count for kind, count in CASES.items() if not kind.endswith(", refused")}
    if tried:
        each = ", ".join(f"{kind} {count} ({CASES[f'{kind}, refused']} refused)" for kind, count in tried.items())
        terminalreporter.write_line(f"fuzzing: {sum(tried.values())} inputs: {each}")
