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
    ("play", "turns"),
    [
        ({"name": "tree", "n": 2, "k": 2, "feedback": True}, 12),  # 2 pairs of answers, then 2 behind each
        ({"name": "best_of", "n": 2, "k": 2, "feedback": True}, 8),  # or behind one of them
    ],
    ids=["tree", "best_of"],
)
def test_two_steps(play: dict[str, Any], turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert metrics["turns"] == turns
        paid = [metrics[name] for name in ("reward", "parts/return", "parts/solved")]
        assert paid == [0.0, 0.0, 0.0]  # eight tokens of a model that has seen no code
