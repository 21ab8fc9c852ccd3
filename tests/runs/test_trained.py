"""The recipe of a run, to build and play its team again."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coevolve.diagnose.entrants import Entrant, verified
from coevolve.runs import checkpoint, evaluated
from coevolve.runs.evaluated import measure_run
from coevolve.runs.folder import RunDir
from coevolve.runs.trained import kept, recipe_of

RECIPE = """
task: {name: copying}
play: {name: chain}
roles: {main: ann}
cast: {name: fixed}
policies: {ann: {model: tiny}}
algorithm: {name: grpo}
steps: 2
output_dir: runs/old
"""
"""As a run writes it into its recipe.yaml."""


@pytest.mark.parametrize(
    ("learner", "cards", "here"),
    [
        ("{name: fsdp, ranks: 4, cluster: torchrun}", 0, {"name": "fsdp", "ranks": 4}),
        ("{name: fsdp, ranks: 4, cluster: ray, deadline: 60}", 0, {"name": "fsdp", "ranks": 4, "deadline": 60}),
        ("{name: fsdp, ranks: 4}", 4, {"name": "fsdp", "ranks": 4}),
        ("{name: fsdp, ranks: 16, cluster: '10.0.0.1:6379'}", 4, {"name": "fsdp", "ranks": 4}),
        ("{name: 'mine.py:Mine', cluster: torchrun, ranks: 4}", 1, {"cluster": "torchrun", "ranks": 4}),
    ],
)
def test_ranks_are_of_this_machine(
    learner: str, cards: int, here: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither torchrun nor the cluster of the training is there any more; another learner's settings stay."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    (tmp_path / "recipe.yaml").write_text(f"{RECIPE}learner: {learner}\n")
    found = recipe_of(RunDir(tmp_path), trust_code=True).learner
    assert found is not None
    assert {key: found[key] for key in found if key != "name" or found[key] == "fsdp"} == here


def test_a_checkpoint_that_is_deleted_before_it_is_kept_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoint-2"
    folder.mkdir()

    def deleted_meanwhile(*given: Any, **how: Any) -> None:
        folder.rmdir()
        raise shutil.Error([(str(folder), "", "No such file or directory")])

    monkeypatch.setattr(shutil, "copytree", deleted_meanwhile)
    said = "checkpoint-2 was deleted meanwhile by the training that goes on there; try again"
    with pytest.raises(ValueError, match=said), kept(folder):
        pass
    assert list(tmp_path.iterdir()) == []


def test_of_a_copy_the_checkpoint_itself_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-2"
    folder.mkdir()
    (folder / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="checkpoint-2 is torn") as told, kept(folder) as copy:
        checkpoint.verify(copy)
    assert ".reading" not in str(told.value)


def test_a_checkpoint_is_kept_before_it_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training beside deletes it while its files are read."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    folder = tmp_path / "checkpoint-2"

    def deleted_meanwhile(copy: Path) -> None:
        shutil.rmtree(folder)
        assert (copy / "manifest.json").exists()
        raise ValueError("verified")

    monkeypatch.setattr(checkpoint, "verify", deleted_meanwhile)
    recipe: Any = SimpleNamespace(filled_servers=set())
    monkeypatch.setattr(evaluated, "recipe_of", lambda *given: recipe)
    for verifies in (lambda: measure_run(tmp_path), lambda: verified(Entrant("one", recipe, folder)).__enter__()):
        folder.mkdir()
        (folder / "manifest.json").touch()
        with pytest.raises(ValueError, match="verified"):
            verifies()
