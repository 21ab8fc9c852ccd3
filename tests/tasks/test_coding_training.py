"""Two steps of learning on HumanEval in each play, with the packaged model: everything fits together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from coding_cases import squares

from coevolve import PolicySpec, Sampling, Trainer, fixed
from coevolve.algorithms import ALGORITHMS
from coevolve.components import component
from coevolve.protocols import PLAYS

PAIR = {"aux": "ann", "main": "bob"}


@pytest.mark.parametrize(
    ("play", "roles"),
    [
        ({"name": "rounds", "n": 2, "feedback": True}, PAIR),
        ({"name": "rounds", "n": 2, "feedback": True}, {"coder": "ann"}),
        ({"name": "chain"}, PAIR),
        ({"name": "discussion"}, PAIR),
        ({"name": "tree", "n": 2, "k": 2, "feedback": True}, PAIR),
        ({"name": "best_of", "n": 2, "k": 2, "feedback": True}, PAIR),
    ],
    ids=lambda value: value["name"] if "name" in value else "-".join(value),
)
def test_two_steps(play: dict[str, Any], roles: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(
        task=squares(monkeypatch),
        play=component(play, PLAYS, "play"),
        cast=fixed(dict(roles)),
        policies=dict.fromkeys(roles.values(), PolicySpec("coevolve-tiny")),
        algorithm=component("magrpo", ALGORITHMS, "algorithm"),
        sampling=Sampling(8),
        steps=2,
        batch_size=1,
        members=2,
    )
    for step in range(2):
        metrics = trainer.step(step)
        assert 0 <= metrics["parts/return"] <= 1
        assert metrics["parts/solved"] == 0.0  # eight tokens of a model that has seen no code
        assert metrics["reward"] >= 0
