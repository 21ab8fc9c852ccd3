"""The recipe of a run, to build and play its team again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from coevolve.runs.folder import RunDir
from coevolve.runs.trained import recipe_of

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
