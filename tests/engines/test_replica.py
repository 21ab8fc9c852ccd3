"""Engines that copy weights: what they sample is what the policy itself samples, version after version."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch
from policy_cases import Build, make_batch, make_rule, make_says, make_targets, ragged
from toy import toy, without_times

from coevolve.engines.base import BaseEngine, Sample
from coevolve.engines.local import LocalEngine
from coevolve.models.spec import PolicySpec
from coevolve.types import Sampling


class Copying(LocalEngine):
    """Samples from copies, as where learners are in other processes."""

    def publish(self, news: Any) -> None:
        super().publish([dataclasses.replace(new, policy=None) for new in news])


@pytest.mark.parametrize("weights", ["full", "lora", "frozen"])
@pytest.mark.parametrize("family", ["micro_model", "micro_gpt2"])
def test_a_copy_says_what_the_policy_says(
    family: str, weights: str, build_policy: Build, request: pytest.FixtureRequest
) -> None:
    policy = build_policy(request.getfixturevalue(family), weights=weights, learning_rate=0.05)
    here, copied = LocalEngine({"a": policy}), Copying({"a": policy})
    asked = {"a": make_says(ragged(7, seed=3), Sampling(9))}
    assert copied.generate(asked) == here.generate(asked)
    if weights == "frozen":
        return
    start = here.generate(asked)["a"]
    batch = make_batch(8, seed=0)
    policy.update(batch, make_targets(batch, 1), make_rule(), 0)
    for engine in (here, copied):
        engine.publish([policy.published(5)])
    turns = here.generate(asked)["a"]
    assert [turn.logps for turn in turns] != [turn.logps for turn in start]
    assert {turn.version for turn in start} == {0} and {turn.version for turn in turns} == {5}
    assert copied.generate(asked)["a"] == turns


@pytest.mark.parametrize("weights", ["full", "lora", "frozen"])
def test_a_copy_holds_in_bfloat16_what_the_policy_does(weights: str, build_policy: Build) -> None:
    policy = build_policy(weights=weights, dtype="bfloat16", compute="torch")
    here, copied = LocalEngine({"a": policy}), Copying({"a": policy})
    ours, copies = ([p.dtype for p in found.weights.base.causal.parameters()] for found in (policy, copied.copies["a"]))
    assert ours == copies and (torch.bfloat16 in copies) == (weights != "full")
    asked = {"a": make_says(ragged(7, seed=3), Sampling(9))}
    assert copied.generate(asked) == here.generate(asked)


def test_a_training_from_copies_is_the_same(micro_model: str) -> None:
    spec = PolicySpec(micro_model, learning_rate=1e-2)
    teams = {"ann": spec, "bob": dataclasses.replace(spec, weights="lora")}
    found = []
    for engine in (LocalEngine(), Copying()):
        trainer = toy(micro_model, policies=teams, engine=engine, workers=False)
        found.append([without_times(trainer.step(i)) for i in range(3)])
    assert found[0] == found[1]


def test_versions_rise_with_updates_and_a_frozen_policys_stays(micro_model: str) -> None:
    spec = PolicySpec(micro_model, learning_rate=1e-2)
    trainer = toy(
        micro_model, policies={"ann": spec, "bob": dataclasses.replace(spec, weights="frozen")}, workers=False
    )
    seen = []
    for i in range(2):
        trainer.step(i)
        seen.append({turn.policy: turn.version for episode in trainer.episodes for turn in episode.turns})
    assert seen == [{"ann": 0, "bob": 0}, {"ann": 1, "bob": 0}]
    assert trainer.engine.published["ann"].version == 2


def test_an_engine_that_samples_too_little_nothing_or_something_else_is_told(build_policy: Build) -> None:
    class Short(BaseEngine):
        def sample(self, says: Any) -> Any:
            return {name: [Sample([5], [-1.0], False)] for name in says}

    policy, asked = build_policy(), {"a": make_says([[5], [6]], Sampling(1))}

    class Stray(BaseEngine):
        """Says that it ended, without the end."""

        def sample(self, says: Any) -> Any:
            return {name: [Sample([5], [-1.0], True)] * len(some) for name, some in says.items()}

    class Cut(BaseEngine):
        """Stops before the end, and before what was asked."""

        def sample(self, says: Any) -> Any:
            return {name: [Sample([5, 6], [-1.0] * 2, False)] * len(some) for name, some in says.items()}

    class Silent(Cut):
        """Gives no log-probabilities, so that nobody learns from it."""

        scores = False

    def returning(found: Any) -> BaseEngine:
        class Own(BaseEngine):
            def sample(self, says: Any) -> Any:
                return found

        return Own()

    of, ids = "role 'role', policy 'a', problem 'p0': Own.sample returned", np.array([5])
    logps, words = np.float32([-1.0]), ["-1"]
    told: list[tuple[Any, str]] = [
        (returning(None), "Own.sample returned None; want policy -> a list of Samples, for a"),
        (returning({}), "Own.sample returned {}; want policy -> a list of Samples, for a"),
        (returning({"a": None}), "Own.sample returned None for policy 'a'; want a list of Samples"),
        (returning({"a": [([5], [-1.0], False)] * 2}), f"{of} ([5], [-1.0], False); want Sample(action_ids, logps, fi"),
        (
            returning({"a": [Sample(ids, [-1.0], False)] * 2}),
            f"{of} a Sample whose action_ids is array([5]); want a li",
        ),
        (returning({"a": [Sample(list(ids), [-1.0], False)] * 2}), f"{of} a Sample whose action_ids is ["),
        (returning({"a": [Sample([5], logps, False)] * 2}), f"{of} a Sample whose logps is array([-1.]"),
        (returning({"a": [Sample([5], words, False)] * 2}), f"{of} a Sample whose logps is ['-1']; want a li"),
        (Cut(), "sampled 2 ids, finished: False, where 1 were asked for; want so many, or fewer up to the end"),
        (Stray(), "1 ids with 1 log-probabilities, finished: True"),
        (Short(), "Short was asked for 2 turns and sampled 1"),
        (BaseEngine(), "has no `sample`"),
    ]
    for engine, said in told:
        engine.publish([policy.published(0)])
        with pytest.raises((ValueError, NotImplementedError), match=re.escape(said)):
            engine.generate(asked)
    plain = returning({"a": [Sample([5], list(logps), False)] * 2})  # a float of numpy's is a float
    plain.publish([policy.published(0)])
    assert [turn.logps for turn in plain.generate(asked)["a"]] == [[-1.0]] * 2
    silent = Silent()
    silent.publish([policy.published(0)])
    assert [turn.action_ids for turn in silent.generate(asked)["a"]] == [[5, 6]] * 2


def test_a_trainer_takes_learners_and_engines_and_says_what_others_lack(micro_model: str) -> None:
    given = toy(micro_model, workers=False).policies
    trainer = toy(micro_model, policies={"ann": given["ann"], "bob": micro_model}, workers=False)
    assert trainer.policies["ann"] is given["ann"]
    trainer.step(0)
    with pytest.raises(
        ValueError, match=r"policies\.bob is 7; want a model name, a PolicySpec or a learner, which has"
    ):
        toy(micro_model, policies={"ann": micro_model, "bob": 7})
    with pytest.raises(ValueError, match="engine is 7, which has no "):
        toy(micro_model, engine=7)
