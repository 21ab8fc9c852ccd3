"""The gate: an update of turns that other weights sampled stops before any weight changes, and says who and by what."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from policy_cases import Build, make_batch, make_rule, make_says, make_targets, ragged, turns_to_batch
from toy import toy

from coevolve.engines.local import LocalEngine
from coevolve.interfaces import Published
from coevolve.learners.gate import BOUNDS, Gap, check_versions, sampled_first
from coevolve.maths.minibatches import mini_batches
from coevolve.models.spec import PolicySpec
from coevolve.types import Batch, Sampling


def batch_of_two(version: int = 3) -> Batch:
    """Two rows of two tokens and one, log-probabilities -1 each."""
    mask_BT = torch.tensor([[True, True], [True, False]])
    return make_batch(2, seed=0).replace(mask_BT=mask_BT, logp_BT=-1.0 * mask_BT, version_B=torch.tensor([3, version]))


def checked(batch: Batch, logp_BT: torch.Tensor, dtype: str = "float32") -> None:
    """The gate on one mini-batch of one micro-batch."""
    check_versions("policy 'ann', step 7", 3, batch)
    gap = Gap()
    gap.add(batch, logp_BT)
    gap.check("policy 'ann', step 7", dtype, batch)


def test_rounding_passes_and_more_does_not() -> None:
    batch = batch_of_two()
    checked(batch, batch.logp_BT + 0.9 * BOUNDS["float32"])
    # one token of three, four bounds away: 4/3 of the bound in the mean
    far_BT = torch.tensor([[4 * BOUNDS["float32"], 0.0], [0.0, 99.0]])
    checked(batch, batch.logp_BT + far_BT, "bfloat16")
    with pytest.raises(ValueError, match=r"^policy 'ann', step 7: .*, version 3: .* -1\.0000 by the sampler") as e:
        checked(batch, batch.logp_BT + far_BT)
    assert "0.00013 apart in the mean and 0.0001 at most in float32" in str(e.value)
    assert "\n" not in str(e.value)
    with pytest.raises(ValueError, match="nan apart"):
        checked(batch, batch.logp_BT * math.nan)
    checked(batch, batch.logp_BT + 0.04, "bfloat16")
    with pytest.raises(ValueError, match=r"0\.06 apart in the mean and 0\.05 at most in bfloat16"):
        checked(batch, batch.logp_BT + 0.06, "bfloat16")


def test_a_low_temperature_makes_rounding_larger_and_the_bound_with_it() -> None:
    batch, apart = batch_of_two(), 1.5 * BOUNDS["float32"]
    cold = batch.replace(temperature_B=torch.full((2,), 0.5))
    checked(cold, batch.logp_BT + apart)
    for temperature in (1.0, 2.0):
        with pytest.raises(ValueError, match="apart in the mean"):
            checked(batch.replace(temperature_B=torch.full((2,), temperature)), batch.logp_BT + apart)


def test_a_vllm_that_scores_what_it_did_not_sample_is_thought_of() -> None:
    """Without that flag its log-probabilities are those at temperature 1."""
    batch, flag = batch_of_two(), "--logprobs-mode processed_logprobs"
    for temperature in (1.0, 0.5):
        with pytest.raises(ValueError, match="apart in the mean") as told:
            checked(batch.replace(temperature_B=torch.full((2,), temperature)), batch.logp_BT + 9)
        assert (flag in str(told.value)) == (temperature != 1)


def test_turns_of_another_version_are_told() -> None:
    with pytest.raises(ValueError, match="step 7: version 3 of the weights would learn from 1 turns of version 2"):
        checked(batch_of_two(version=2), batch_of_two().logp_BT)


def test_rows_that_nobody_sampled_are_not_compared() -> None:
    batch, away_BT = batch_of_two(version=0), torch.tensor([[0.0, 0.0], [5.0, 0.0]])
    checked(batch.replace(extra_B=torch.tensor([False, True])), batch.logp_BT + away_BT)
    checked(batch.replace(extra_B=torch.tensor([True, True])), batch.logp_BT + 9)
    checked(batch.replace(version_B=None), batch.logp_BT + 9)
    behind = batch_of_two().replace(extra_B=torch.tensor([True, False]))  # whichever comes first
    with pytest.raises(ValueError, match="5 apart"):
        checked(behind, batch.logp_BT + away_BT)


@pytest.mark.parametrize("weights", ["full", "lora"])
def test_no_weight_changes_behind_the_gate(weights: str, build_policy: Build) -> None:
    policy = build_policy(weights=weights, learning_rate=0.1)
    batch = turns_to_batch(LocalEngine({"a": policy}).generate({"a": make_says(ragged(9, 3), Sampling(5))})["a"])
    before = [parameter.clone() for parameter in policy.parameters]
    with pytest.raises(ValueError, match="policy 'a', step 0: its turns were not sampled by the weights that learn"):
        policy.update(batch.replace(logp_BT=batch.logp_BT - 0.2), make_targets(batch, 1), make_rule(), 0)
    assert all(map(torch.equal, before, policy.parameters))
    policy.update(batch, make_targets(batch, 1), make_rule(epochs=2, minibatch=4), 0)  # later steps are off-policy
    assert not all(map(torch.equal, before, policy.parameters))


def elsewhere(news: Sequence[Published], **changes: Any) -> list[Published]:
    """As of policies whose weights are in another process."""
    return [Published(**(vars(new) | {"policy": None} | changes)) for new in news]


class Forgetful(LocalEngine):
    """Takes over the first weights only."""

    def publish(self, news: Sequence[Published]) -> None:
        if all(new.version == 0 for new in news):
            super().publish(elsewhere(news))


class HalfArrived(LocalEngine):
    """Notes every new version and keeps the first weights."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def publish(self, news: Sequence[Published]) -> None:
        for new in news:
            first = self.folder / new.name
            if not first.exists():
                new.save(first)
            super().publish(elsewhere([new], save=partial(shutil.copytree, first, dirs_exist_ok=True)))


@pytest.fixture(params=["full", "lora"])
def team(request: pytest.FixtureRequest, micro_model: str) -> dict[str, PolicySpec]:
    spec = PolicySpec(micro_model, weights=request.param, learning_rate=1e-2)
    return {"ann": spec, "bob": spec}


def test_a_forgotten_publish_stops_the_run(team: dict[str, PolicySpec], micro_model: str) -> None:
    trainer = toy(micro_model, policies=team, engine=Forgetful(), workers=False)
    trainer.step(0)
    with pytest.raises(
        ValueError, match="policy 'ann', step 1: version 1 of the weights would learn from 8 turns of version 0"
    ):
        trainer.step(1)


def test_a_publish_that_half_arrived_stops_the_run(
    team: dict[str, PolicySpec], micro_model: str, tmp_path: Path
) -> None:
    trainer = toy(micro_model, policies=team, engine=HalfArrived(tmp_path), workers=False)
    trainer.step(0)
    before = [parameter.clone() for parameter in trainer.policies["ann"].parameters]
    with pytest.raises(
        ValueError, match="policy 'ann', step 1: its turns were not sampled by the weights that learn, version 1"
    ):
        trainer.step(1)
    assert all(map(torch.equal, before, trainer.policies["ann"].parameters))


def test_rows_that_an_algorithm_added_do_not_open_the_gate(build_policy: Build) -> None:
    policy = build_policy(learning_rate=0.1)
    batch = turns_to_batch(LocalEngine({"a": policy}).generate({"a": make_says(ragged(6, 3), Sampling(5))})["a"])
    drawn_first, *_ = mini_batches(batch.peers_B, 2, "row", "minibatch", policy.seed, policy.name, 0, 0)
    extra_B = torch.zeros(6, dtype=torch.bool)
    extra_B[drawn_first] = True
    added, before = batch.replace(extra_B=extra_B), [parameter.clone() for parameter in policy.parameters]
    aims, rule = make_targets(batch, 1), make_rule(minibatch=2)
    with pytest.raises(ValueError, match="policy 'a', step 0: its turns were not sampled by the weights that learn"):
        policy.update(added.replace(logp_BT=batch.logp_BT - 0.2), aims, rule, 0)
    assert all(map(torch.equal, before, policy.parameters))
    far_BT = torch.where(extra_B[:, None], batch.logp_BT - 9.0, batch.logp_BT)  # nobody sampled these so
    assert 0 < policy.update(added.replace(logp_BT=far_BT), aims, rule, 0)["drift"] < 1e-4


def test_only_a_mini_batch_that_nobody_sampled_gives_way_to_the_first_that_somebody_did() -> None:
    rows = [torch.tensor([4, 1]), torch.tensor([0, 3]), torch.tensor([2, 5])]

    def order(*extra: int) -> list[list[int]]:
        extra_B = torch.zeros(6, dtype=torch.bool)
        extra_B[list(extra)] = True
        return [rows_B.tolist() for rows_B in sampled_first(iter(rows), extra_B)]

    as_drawn = [[4, 1], [0, 3], [2, 5]]
    assert order() == order(4) == order(0, 3, 1) == order(0, 1, 2, 3, 4, 5) == as_drawn
    assert order(1, 4) == order(1, 4, 0) == [[0, 3], [4, 1], [2, 5]]
    assert order(0, 1, 3, 4) == [[2, 5], [4, 1], [0, 3]]
