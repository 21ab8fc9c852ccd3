"""An algorithm's own loss and loss aggregation: what they raise or return instead is one line that says what is wanted;
metrics that not every mini-batch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from policy_cases import Build, make_batch, make_rule, make_targets, weighted_loss

from coevolve.faults import ShortageError
from coevolve.learners.local import LocalLearner
from coevolve.types import Batch, Metrics, Outputs, Targets


def learnt(policy: LocalLearner, **rule: Any) -> Metrics:
    """From a batch of four rows."""
    batch = make_batch(4, seed=0)
    return policy.update(batch, make_targets(batch, 1), make_rule(**rule), 3)


def with_metrics(metrics: Any) -> Callable[..., Any]:
    """The tests' loss, with these metrics."""
    return lambda out, *given: (weighted_loss(out, *given)[0], metrics)


def column(out: Outputs, batch: Batch, targets: Targets, weight_BT: torch.Tensor) -> Any:
    return (out.logp_BT * targets.columns["mine_BT"] * weight_BT).sum(), {}


LOSSES: dict[str, tuple[Callable[..., Any], str]] = {
    "no scalar": (
        lambda out, batch, *_: (out.logp_BT, {}),
        r"it returned a tensor of the shape \[4, \d\]; want a scalar, the weighted sum over the tokens$",
    ),
    "no tensor": (lambda *_: (0.5, {}), r"it returned 0\.5; want a scalar"),
    "no metrics": (
        lambda out, *_: out.logp_BT.sum(),
        r"it returned a tensor of the shape \[\]; want a scalar and the metrics",
    ),
    "nothing": (lambda *_: None, "it returned None; want a scalar and the metrics, such as `return loss, {}`"),
    "no gradient": (lambda out, *_: (out.logp_BT.detach().sum(), {}), "its scalar has no gradient; want one made of"),
    "metrics that are none": (with_metrics(None), "its metrics are None; want a mapping from names to scalars"),
    "a metric of text": (with_metrics({"said": "much"}), "its metric 'said' is 'much'; want a scalar"),
    "a metric of many": (with_metrics({"all": torch.zeros(2)}), r"its metric 'all' is a tensor of the shape \[2\]"),
    "a metric that is the learner's": (
        with_metrics({"entropy": torch.ones(())}),
        "its metric 'entropy' has the name of one of the learner's; want another, 'loss/entropy' for a term of",
    ),
    "the loss once more": (with_metrics({"loss": 1.0}), "its metric 'loss' has the name of one of the learner's"),
    "an error": (column, r"raised KeyError: 'mine_BT' \(.*test_own_loss\.py, line \d+\)"),
}


@pytest.mark.parametrize(("loss", "said"), LOSSES.values(), ids=list(LOSSES))
def test_a_loss_that_is_none_is_one_line(loss: Callable[..., Any], said: str, build_policy: Build) -> None:
    with pytest.raises(ValueError, match=rf"^the loss, policy 'a', step 3: {said}") as told:
        learnt(build_policy(), loss=loss)
    assert "\n" not in str(told.value)


AGGREGATIONS: dict[str, tuple[Callable[[Batch], Any], str]] = {
    "another shape": (
        lambda batch: batch.mask_BT[:, :1] / 4,
        r"it returned a tensor of the shape \[4, 1\]; want a tensor of the shape \[4, \d\], a weight for each token",
    ),
    "nothing": (lambda batch: None, "it returned None; want a tensor of the shape"),
    "an error": (lambda batch: batch.nowhere_BT, r"raised AttributeError: .*test_own_loss\.py, line \d+\)"),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize(("weigh", "said"), AGGREGATIONS.values(), ids=list(AGGREGATIONS))
def test_a_loss_aggregation_that_is_none_is_one_line(
    weigh: Callable[[Batch], Any], said: str, build_policy: Build
) -> None:
    with pytest.raises(ValueError, match=rf"^the loss aggregation, policy 'a', step 3: {said}") as told:
        learnt(build_policy(), loss_aggregation=weigh)
    assert "\n" not in str(told.value)


def test_memory_that_a_loss_lacks_is_no_fault_of_its_author(build_policy: Build) -> None:
    def greedy(*given: Any) -> Any:
        return torch.empty(1 << 60)

    with pytest.raises(ShortageError, match=r"^the loss, policy 'a', step 3: out of memory"):
        learnt(build_policy(), loss=greedy)


def test_a_metric_is_averaged_over_the_mini_batches_that_have_it(build_policy: Build) -> None:
    calls = []

    def sometimes(out: Outputs, batch: Batch, targets: Targets, weight_BT: torch.Tensor) -> Any:
        calls.append(weight_BT.sum())
        number = float(len(calls))
        metrics = {"always": number * calls[-1]}
        if len(calls) > 1:
            metrics |= {"later": number * calls[-1], "later/max": torch.tensor(number)}
        return weighted_loss(out, batch, targets, weight_BT)[0], metrics

    found = learnt(build_policy(), loss=sometimes, minibatch=1)
    assert [found[key] for key in ("always", "later", "later/max")] == pytest.approx([2.5, 3.0, 4.0])


def test_numbers_do_for_metrics(build_policy: Build) -> None:
    found = learnt(build_policy(micro_tokens=1), loss=with_metrics({"one/max": 2.0}))
    assert found["one/max"] == 2.0
