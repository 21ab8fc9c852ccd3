"""A training whose turns a server samples, for tests of real servers and of the mock server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from toy import Lucky

from coevolve.algorithms import magrpo
from coevolve.cast import fixed
from coevolve.engines.server import ServerEngine
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.plays import chain
from coevolve.trainer import Trainer
from coevolve.types import Case, Sampling

MODEL = "coevolve-tiny"
LORA = PolicySpec(MODEL, weights="lora", lora=LoraSpec(8, 16), learning_rate=5e-3)


class Low(Lucky):
    """Reward: the share of a turn's tokens that are in the first quarter of the vocabulary, so that many are."""

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        return [[sum(i < 1024 for i in t.action_ids) / len(t.action_ids) for t in case.turns] for case in cases]


def training(engine: ServerEngine, *names: str, spec: PolicySpec = LORA, **settings: Any) -> Trainer:
    """Of agents that each are paid for their own texts, in groups of four."""
    return Trainer(
        task=Low(), play=chain(), cast=fixed({name: name for name in names}), policies=dict.fromkeys(names, spec),
        algorithm=magrpo(credit="own_return", **settings), sampling=Sampling(12), steps=8,
        batch_size=2, members=4, engine=engine, workers=False,
    )  # fmt: skip


def check_steps(trainer: Trainer, steps: Iterable[int], bound: float) -> None:
    """What the server samples is what learns, in each of these steps, and learns something, so that there are new
    weights to send."""
    for i in steps:
        line = trainer.step(i)
        drifts = [line[f"agents/{name}/drift"] for name in trainer.policies]
        times = {key: f"{line[key]:.3f} s" for key in ("time/generate", "time/publish")}
        print(i, [f"{drift:.1e}" for drift in drifts], times)
        assert max(drifts) < bound
        assert all(line[f"agents/{name}/grad_norm"] > 0 for name in trainer.policies)
