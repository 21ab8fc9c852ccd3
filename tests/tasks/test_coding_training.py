"""Two steps of learning on HumanEval in the plays that no recipe of it has, with the packaged model."""

from __future__ import annotations

from typing import Any

import pytest
from coding_cases import squares

from coevolve import PolicySpec, Sampling, Trainer, fixed
from coevolve.algorithms import ALGORITHMS
from coevolve.plays import PLAYS
from coevolve.recipe.components import component

PAIR = {"aux": "ann", "main": "bob"}


@pytest.mark.parametrize(
    "play",
    [
        {"name": "tree", "n": 2, "k": 2, "feedback": True},
        {"name": "best_of", "n": 2, "k": 2, "feedback": True},
    ],
    ids=lambda play: play["name"],
)
def test_two_steps(play: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(
        task=squares(monkeypatch),
        play=component(play, PLAYS, "play"),
        cast=fixed(PAIR),
        policies=dict.fromkeys(PAIR.values(), PolicySpec("coevolve-tiny")),
        algorithm=component("magrpo", ALGORITHMS, "algorithm"),
        sampling=Sampling(8),
        steps=2,
        batch_size=1,
    )
    for step in range(2):
        metrics = trainer.step(step)
        assert 0 <= metrics["parts/return"] <= 1
        assert metrics["parts/solved"] == 0.0  # eight tokens of a model that has seen no code
        assert metrics["reward"] >= 0
