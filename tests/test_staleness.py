"""Turns of weights one update older: sampled while their elders are learnt from, and corrected by the mismatch."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from policy_cases import make_batch
from toy import toy, without_times

from coevolve import magrpo
from coevolve.algorithms import marlhf
from coevolve.checks import check_corrected
from coevolve.engines.local import LocalEngine
from coevolve.engines.routed import RoutedEngine
from coevolve.faults import ShortageError
from coevolve.learners.gate import Gap, check_versions
from coevolve.measure import Clock
from coevolve.runs.folder import read_lines
from coevolve.trainer import Trainer
from coevolve.types import Batch

pytestmark = pytest.mark.slow


def batch_of_two(version: int) -> Batch:
    """Two rows of two tokens and one, log-probabilities -1 each, sampled by version 3 and by this one."""
    mask_BT = torch.tensor([[True, True], [True, False]])
    return make_batch(2, seed=0).replace(mask_BT=mask_BT, logp_BT=-1.0 * mask_BT, version_B=torch.tensor([3, version]))


class Behind(LocalEngine):
    """Samples copies, one turn at a time, as a server does; threads: which sampled."""

    def __init__(self, staleness: int = 1) -> None:
        super().__init__()
        self.staleness, self.threads = staleness, list[str]()

    def publish(self, news: Any) -> None:
        super().publish([dataclasses.replace(new, policy=None) for new in news])

    @contextmanager
    def overlapped(self, inbox: Any) -> Iterator[Any]:
        def ask(say: Any, then: Any) -> None:
            self.threads.append(threading.current_thread().name)
            [turn] = self.generate({say.policy: [say]})[say.policy]
            inbox.put(lambda: then(turn))

        yield ask


def team(model: str, engine: Any, **settings: Any) -> Trainer:
    settings = {"algorithm": magrpo(mismatch="tis"), "members": 2, "learning_rate": 1e-2} | settings
    return toy(model, engine=engine, workers=False, **settings)


def versions(trainer: Trainer) -> set[int]:
    return {turn.version for episode in trainer.episodes for turn in episode.turns}


def test_every_step_but_the_first_learns_from_the_version_before(micro_model: str) -> None:
    engine = Behind()
    trainer = team(micro_model, engine, steps=4)
    lines, found, threads = [], [], []
    for i in range(4):
        lines.append(trainer.step(i))
        found.append(versions(trainer))
        threads.append({name.removeprefix("plays of ").split("_")[0] for name in engine.threads})
        engine.threads.clear()
    assert found == [{0}, {0}, {1}, {2}]
    assert threads == [{"MainThread", "ahead"}, {"ahead"}, {"ahead"}, set()]  # nothing is sampled behind the last one
    for policy in ("ann", "bob"):
        kl = [line[f"agents/{policy}/mismatch/kl"] for line in lines]
        drift = [line[f"agents/{policy}/drift"] for line in lines]
        assert abs(kl[0]) < 1e-8 and min(kl[1:]) > 1e-6
        assert drift[0] < 1e-5 and min(drift[1:]) > 1e-3  # an update, no rounding
    assert all(line["time/generate"] > 0 for line in lines)


def test_turns_are_what_the_version_before_says(micro_model: str) -> None:
    """Of the step's own problems, with its own random numbers."""
    trainer, start = (team(micro_model, Behind(), steps=3) for _ in range(2))
    for i in range(2):
        trainer.step(i)
    fresh = start.sampled(1, Clock())  # by version 0
    turns = [[turn for episode in episodes for turn in episode.turns] for episodes in (trainer.episodes, fresh)]
    assert [turn.action_ids for turn in turns[0]] == [turn.action_ids for turn in turns[1]]
    assert [turn.logps for turn in turns[0]] == [turn.logps for turn in turns[1]]


def test_a_step_that_was_not_sampled_ahead_is_sampled_when_it_is_asked_for(micro_model: str) -> None:
    """Behind step 0 lies step 1; who asks for step 2 gets the problems and random numbers of step 2."""
    trainer, start = (team(micro_model, Behind(), steps=4) for _ in range(2))
    trainer.step(0)
    assert [e.problem.id for e in start.sampled(1, Clock())] != [e.problem.id for e in start.sampled(2, Clock())]
    trainer.step(2)
    assert [e.problem.id for e in trainer.episodes] == [e.problem.id for e in start.sampled(2, Clock())]
    assert versions(trainer) == {1}


def test_without_staleness_every_step_is_of_the_weights_that_learn(micro_model: str) -> None:
    trainer, here = team(micro_model, Behind(0), steps=3), team(micro_model, None, steps=3)
    for i in range(3):
        line, wanted = (without_times(one.step(i)) for one in (trainer, here))
        assert versions(trainer) == {i}
        assert line == pytest.approx(wanted, rel=1e-3, abs=1e-5)


def test_a_resumed_run_is_the_same(micro_model: str, tmp_path: Path) -> None:
    """Behind a checkpoint nothing was sampled ahead, in either run."""
    team(micro_model, Behind(), steps=6).run(tmp_path / "whole", save_every=2, listeners=[])

    def stop(line: Any) -> None:
        if line["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        team(micro_model, Behind(), steps=6).run(tmp_path / "two", save_every=2, listeners=[stop])
    team(micro_model, Behind(), steps=6).run(tmp_path / "two", save_every=2, listeners=[], resume=True)
    whole, two = (
        [without_times(x) for x in read_lines(tmp_path / name / "metrics.jsonl")] for name in ("whole", "two")
    )
    assert whole == two and len(whole) == 6
    kls = [line["agents/ann/mismatch/kl"] for line in whole]
    assert [kl > 1e-6 for kl in kls] == [False, True] * 3


def test_it_wants_an_algorithm_that_corrects_it_and_an_engine_with_weights_of_its_own(micro_model: str) -> None:
    engine = Behind()
    with pytest.raises(ValueError, match=r"the engine's staleness is 1, so turns .* set algorithm\.mismatch"):
        team(micro_model, engine, algorithm=magrpo())
    assert not engine.published  # a server would have been started
    with pytest.raises(ValueError, match=r"set algorithm\.agents\.mismatch \(tis"):
        check_corrected(1, marlhf(judge="judge"))
    check_corrected(1, marlhf(judge="judge", agents={"name": "magrpo", "mismatch": "tis"}))
    with pytest.raises(ValueError, match="staleness is 1, and some policy is sampled in this process"):
        team(micro_model, RoutedEngine({"ann": Behind()}, LocalEngine()))


def test_whoever_plays_the_team_itself_changes_nothing(micro_model: str) -> None:
    """An engine of a callback's own publishes the versions of now once more."""
    lines = []
    for plays in (False, True):
        trainer = team(micro_model, Behind(), steps=4)
        lines.append([])
        for i in range(4):
            lines[-1].append(without_times(trainer.step(i)))
            if plays:
                LocalEngine(trainer.policies)  # type: ignore[arg-type]
    assert lines[0] == lines[1]


def test_a_failure_ahead_is_told_of_its_step(micro_model: str) -> None:
    trainer = team(micro_model, Behind(), steps=3)
    honest = trainer.task.reward

    def reward(cases: Any) -> Any:
        if threading.current_thread().name.startswith("ahead"):
            raise ValueError("no more rewards")
        return honest(cases)

    trainer.task.reward = reward  # type: ignore[method-assign]
    trainer.step(0)
    with pytest.raises(ValueError, match=r"step 1: .*no more rewards"):
        trainer.step(1)


def test_a_want_ahead_is_told_of_its_step_once(micro_model: str) -> None:
    class Lost(Behind):
        def generate(self, says: Any) -> Any:
            if threading.current_thread().name.startswith("plays of ahead"):
                raise ShortageError("the server died")
            return super().generate(says)

    trainer = team(micro_model, Lost(), steps=3)
    trainer.step(0)
    with pytest.raises(ShortageError, match=r"^step 1: the server died$"):
        trainer.step(1)


def test_one_update_is_let_through_and_two_are_not() -> None:
    check_versions("policy 'ann', step 7", 3, batch_of_two(version=2), before=2)
    with pytest.raises(ValueError, match="version 3 of the weights would learn from 1 turns of version 1"):
        check_versions("policy 'ann', step 7", 3, batch_of_two(version=1), before=2)


def test_older_turns_are_not_compared_and_the_others_are() -> None:
    """The first row is of version 3, the second of version 2."""
    batch = batch_of_two(version=2)
    for apart_BT, told in ((torch.tensor([[0.0, 0.0], [5.0, 0.0]]), None), (torch.tensor([[5.0, 0], [0, 0]]), "2.5")):
        gap = Gap(3)
        gap.add(batch, batch.logp_BT + apart_BT)
        if told is None:
            gap.check("policy 'ann', step 7", "float32", batch)
            continue
        with pytest.raises(ValueError, match=f"{told} apart in the mean"):
            gap.check("policy 'ann', step 7", "float32", batch)
