"""describe and update against naive loops: one row, one token at a time, no batching, no padding."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from policy_cases import (
    Build,
    handed_over,
    make_batch,
    make_family,
    make_rule,
    make_says,
    make_targets,
    plain,
    ragged,
    shaken,
    turns_to_batch,
)

from coevolve.algorithms import grpo, ppo
from coevolve.compute import logprobs as head
from coevolve.engines.local import LocalEngine
from coevolve.learners.local import LocalLearner
from coevolve.learners.optim import adamw
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.types import Batch, Outputs, Sampling, Targets

pytestmark = pytest.mark.usefixtures("each_way")


def naive_row(model: Any, batch: Batch, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities [t, V] at the row's temperature, and hidden states [t, D], where its actions are predicted."""
    start, end = int(batch.start_B[b]), int(batch.length_B[b])
    found = model(input_ids=batch.ids_BS[b : b + 1, :end], output_hidden_states=True)
    logits = found.logits[0, start - 1 : end - 1] / batch.temperature_B[b]
    return logits.log_softmax(-1), found.hidden_states[-1][0, start - 1 : end - 1]


def some_batch(kind: str, seed: int) -> Batch:
    return make_family(2, seed) if kind == "family" else make_batch(7, seed)


@pytest.mark.parametrize("micro_tokens", [1, 40, 4096])
@pytest.mark.parametrize("weights", ["full", "lora"])
@pytest.mark.parametrize("kind", ["family", "strangers", "unshared"])
@pytest.mark.parametrize("family", ["micro_model", "micro_gpt2"])
def test_descriptions_are_those_of_a_plain_forward(
    family: str, kind: str, weights: str, micro_tokens: int, build_policy: Build, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(family)
    start = build_policy(model=model).weights.base.causal
    policy = shaken(build_policy(model=model, reference=True, critic=True, weights=weights, micro_tokens=micro_tokens))
    plain(policy, kind != "unshared")
    batch = some_batch(kind, seed=1)
    seen = policy.describe(batch)
    assert seen.kl_BT is not None and seen.logp_ref_BT is not None and seen.value_BT is not None
    with torch.no_grad(), policy.active() as causal:
        for b in range(len(batch)):
            logp, hidden = naive_row(causal, batch, b)
            ref, _ = naive_row(start, batch, b)
            n = len(logp)
            actions = batch.action_BT[b, :n]
            expected = {
                "kl_BT": (logp.exp() * (logp - ref)).sum(-1),
                "logp_ref_BT": ref[torch.arange(n), actions],
                "value_BT": hidden @ policy.value_head.weight[0] + policy.value_head.bias,
            }
            for name, value in expected.items():
                torch.testing.assert_close(getattr(seen, name)[b, :n], value, rtol=1e-5, atol=1e-5)
                assert (getattr(seen, name)[b, n:] == 0).all()
    assert seen.kl_BT.sum() > 0.1


def test_the_start_policy_is_its_own_reference(build_policy: Build) -> None:
    for weights in ("full", "lora"):
        seen = build_policy(reference=True, critic=True, weights=weights).describe(make_batch(5, seed=2))
        assert seen.kl_BT.abs().max() == 0 and seen.value_BT.abs().max() == 0


def test_describe_adds_only_what_was_asked(build_policy: Build) -> None:
    seen = build_policy().describe(make_batch(3, seed=2))
    assert seen.kl_BT is seen.logp_ref_BT is seen.value_BT is None
    assert build_policy(critic=True).describe(make_batch(3, seed=2)).value_BT is not None


def test_pieces_of_the_vocabulary_head_change_nothing(build_policy: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, policy = make_batch(6, seed=3), shaken(build_policy(reference=True, critic=True))
    whole = policy.describe(batch)
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", 200)  # three tokens at a time
    monkeypatch.setattr(head, "LEAST_ROWS", 1)
    pieces = policy.describe(batch)
    for name in ("kl_BT", "logp_ref_BT"):
        torch.testing.assert_close(getattr(pieces, name), getattr(whole, name))


def naive_gradient(policy: LocalLearner, batch: Batch, targets: Targets) -> dict[int, torch.Tensor]:
    """The gradient of test loss summed token by token and row by row, on unpadded rows."""
    tokens = int(batch.mask_BT.sum())
    for parameter in policy.parameters:
        parameter.grad = None
    with policy.active() as causal:
        for b in range(len(batch)):
            logp, hidden = naive_row(causal, batch, b)
            loss = torch.zeros(())
            for t in range(len(logp)):
                ratio = (logp[t, batch.action_BT[b, t]] - batch.logp_BT[b, t]).exp()
                loss = loss - ratio * targets.adv_BT[b, t] / tokens
                if policy.value_head is not None:
                    value = policy.value_head(hidden[t])[0]
                    loss = loss + 0.5 * (value - targets.return_BT[b, t]) ** 2 / tokens
            loss.backward()
    return {i: p.grad.clone() for i, p in enumerate(policy.parameters) if p.grad is not None}


def update_gradient(policy: LocalLearner, batch: Batch, targets: Targets) -> dict[int, torch.Tensor]:
    """The gradient that update hands to the optimiser."""
    caught = handed_over(policy, lambda: policy.update(batch, targets, make_rule(), 0))
    return {i: caught[p] for i, p in enumerate(policy.parameters) if p in caught}


@pytest.mark.parametrize("micro_tokens", [1, 50, 4096])
@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("kind", ["family", "strangers", "unshared"])
@pytest.mark.parametrize(
    ("family", "weights", "critic"),
    [
        ("micro_model", "full", True),
        ("micro_gpt2", "full", True),
        ("micro_model", "lora", True),
        ("micro_gpt2", "full", False),
    ],
)
def test_the_gradient_is_that_of_a_naive_loop(
    family: str, weights: str, critic: bool, kind: str, pieces: bool, micro_tokens: int, build_policy: Build,
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    policy = build_policy(
        model=request.getfixturevalue(family), weights=weights, critic=critic, micro_tokens=micro_tokens
    )
    shaken(plain(policy, kind != "unshared"))
    batch = some_batch(kind, seed=micro_tokens)
    targets = make_targets(batch, seed=5)
    expected = naive_gradient(policy, batch, targets)
    if pieces:
        monkeypatch.setattr(head, "LOGITS_AT_ONCE", 400)
        monkeypatch.setattr(head, "LEAST_ROWS", 1)
        monkeypatch.setattr(head, "LOGITS_KEPT", 4000 if kind == "family" else 0)
    found = update_gradient(policy, batch, targets)
    assert found.keys() == expected.keys() and found
    scale = max(float(g.abs().max()) for g in expected.values())
    for i, gradient in expected.items():
        torch.testing.assert_close(found[i], gradient, rtol=1e-5, atol=1e-5 * scale)


def test_adapters_on_the_output_layer_learn_and_count(build_policy: Build) -> None:
    """The output layer is then more than its weight, and the reference is the same layer without them."""
    settings = {"weights": "lora", "lora": LoraSpec(rank=2, targets=["q_proj", "lm_head"])}
    policy = shaken(build_policy(reference=True, **settings))
    batch = make_family(2, seed=3)
    targets = make_targets(batch, seed=5)
    expected = naive_gradient(policy, batch, targets)
    found = update_gradient(policy, batch, targets)
    assert len(found) == len(policy.parameters) and found.keys() == expected.keys()
    for i, gradient in expected.items():
        torch.testing.assert_close(found[i], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))
    seen = policy.describe(batch)
    with torch.no_grad():
        with policy.active() as causal:
            logp, _ = naive_row(causal, batch, 0)
        with policy.reference.active() as causal:
            ref, _ = naive_row(causal, batch, 0)
    torch.testing.assert_close(seen.kl_BT[0, : len(logp)], (logp.exp() * (logp - ref)).sum(-1), rtol=1e-4, atol=1e-4)
    assert seen.kl_BT.sum() > 0.1


def test_entropy_is_that_of_the_first_epoch_whatever_the_mini_batches(build_policy: Build) -> None:
    batch = make_batch(10, seed=7)
    entropies = []
    for epochs, minibatch in ((1, None), (3, None), (1, 4)):
        policy = build_policy(learning_rate=1e-12)
        rule = make_rule(epochs=epochs, minibatch=minibatch)
        entropies.append(policy.update(batch, make_targets(batch, 8), rule, 0)["entropy"])
    with torch.no_grad():
        rows = [naive_row(policy.weights.base.causal, batch, b)[0] for b in range(len(batch))]
    naive = torch.cat([-(logp.exp() * logp).sum(-1) for logp in rows]).mean()
    assert entropies == pytest.approx([float(naive)] * 3, rel=1e-5)
    loud = build_policy(learning_rate=0.03)
    again = loud.update(batch, make_targets(batch, 8), make_rule(epochs=4), 0)["entropy"]
    assert again == pytest.approx(float(naive), rel=1e-5)


def test_entropy_is_that_of_the_first_epoch_where_others_have_more_mini_batches(build_policy: Build) -> None:
    batch = make_batch(6, seed=7).replace(peers_B=torch.tensor([0, 0, 1, 1, 2, 3]))
    wanted = build_policy().update(batch, make_targets(batch, 8), make_rule(), 0)["entropy"]
    rule, found, updates = make_rule(epochs=2, minibatch=3, together="peers"), [], set()
    for step in range(12):  # which decides how the groups are shuffled
        metrics = build_policy(learning_rate=1e-12).update(batch, make_targets(batch, 8), rule, step)
        found.append(metrics["entropy"])
        updates.add(metrics["updates"])
    assert 5 in updates  # 3 mini-batches in one epoch and 2 in the other
    assert found == pytest.approx([wanted] * 12, rel=1e-5)


def test_entropy_is_of_tokens_that_were_sampled(build_policy: Build) -> None:
    batch = make_batch(6, seed=7)
    rows_B, rule = torch.tensor([0, 2, 5]), make_rule()
    said = batch.select(rows_B)
    wanted = build_policy().update(said, make_targets(said, 8), rule, 0)["entropy"]
    added = batch.replace(extra_B=torch.ones(6, dtype=torch.bool).index_fill(0, rows_B, False))
    assert build_policy().update(added, make_targets(batch, 8), rule, 0)["entropy"] == pytest.approx(wanted, rel=1e-5)
    read = batch.replace(extra_B=torch.ones(6, dtype=torch.bool))
    assert "entropy" not in build_policy().update(read, make_targets(batch, 8), rule, 0)


def test_epochs_and_minibatches_are_optimiser_steps(build_policy: Build) -> None:
    policy, batch = build_policy(critic=True), make_batch(10, seed=7)
    sizes: list[int] = []

    def counting(out: Outputs, mini: Batch, targets: Targets, weight_BT: torch.Tensor) -> Any:
        sizes.append(len(mini))
        return (out.logp_BT * targets.adv_BT * weight_BT).sum(), {"rows": torch.tensor(float(len(mini)))}

    rule = make_rule(loss=counting, epochs=3, minibatch=4)
    metrics = policy.update(batch, make_targets(batch, 8), rule, 0)
    assert sizes == [4, 4, 2] * 3
    assert metrics["rows"] == pytest.approx(10 / 3)
    assert policy.optimizer.state_dict()["state"][0]["step"] == 9
    assert metrics["grad_norm"] > 0 and metrics["lr"] == policy.spec.learning_rate


def test_the_value_loss_reaches_the_trunk(build_policy: Build) -> None:
    policy = shaken(build_policy(critic=True))
    batch = make_batch(4, seed=9)
    targets = dataclasses.replace(make_targets(batch, 10), adv_BT=torch.zeros(batch.mask_BT.shape))
    assert float(update_gradient(policy, batch, targets)[0].abs().sum()) > 0


def test_the_gradient_is_clipped_to_its_norm(build_policy: Build) -> None:
    batch = make_batch(4, seed=11)
    targets = make_targets(batch, 12)
    free = update_gradient(build_policy(), batch, targets)
    norm = math.sqrt(sum(float(g.square().sum()) for g in free.values()))
    policy = build_policy(max_grad_norm=norm / 4)
    clipped = update_gradient(policy, batch, targets)
    torch.testing.assert_close(clipped[0], free[0] / 4, rtol=1e-4, atol=1e-7)
    assert build_policy(max_grad_norm=norm / 4).update(batch, targets, make_rule(), 0)["grad_norm"] == pytest.approx(
        norm
    )


def test_what_is_not_finite_never_reaches_the_weights(build_policy: Build) -> None:
    policy = build_policy(critic=True)
    batch = make_batch(4, seed=13)
    before = [p.detach().clone() for p in policy.parameters]
    bad = make_targets(batch, 14)
    bad.adv_BT[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"policy 'a', step 7: the loss is nan"):
        policy.update(batch, bad, make_rule(), 7)
    assert all(torch.equal(p, q) for p, q in zip(before, policy.parameters, strict=True))

    def steep(out: Outputs, *_: Any) -> Any:
        """0, whose gradient is 0 * inf."""
        return (out.logp_BT - out.logp_BT.detach()).abs().sqrt().sum(), {}

    with pytest.raises(ValueError, match=r"step 8: the loss is 0\.0 and its gradient's norm nan"):
        policy.update(batch, make_targets(batch, 14), make_rule(loss=steep), 8)
    assert all(torch.equal(p, q) for p, q in zip(before, policy.parameters, strict=True))
    policy.update(batch, make_targets(batch, 14), make_rule(), 9)


def test_weights_decay_and_moments_fade_as_the_spec_says() -> None:
    """Of moments that fade at once a step is the learning rate, whatever the gradient; before it a weight loses a
    twentieth."""
    weight, seen = torch.nn.Parameter(torch.ones(1)), []
    optimizer = adamw([weight], PolicySpec("m", learning_rate=0.1, weight_decay=0.5, betas=(0.0, 0.0)))
    for slope in (0.0, 2.0, -1.0):
        weight.grad = torch.tensor([slope])
        optimizer.step()
        seen.append(float(weight.detach()))
    assert seen == pytest.approx([0.95, 0.95 * 0.95 - 0.1, 0.8025 * 0.95 + 0.1], rel=1e-5)


def test_the_same_update_twice_gives_the_same_bits(build_policy: Build) -> None:
    batch = make_batch(8, seed=15)
    ends = []
    for _ in range(2):
        policy = build_policy(critic=True, reference=True, learning_rate=1e-2)
        for step in range(3):
            policy.update(policy.describe(batch), make_targets(batch, step), make_rule(epochs=2, minibatch=3), step)
        ends.append(copy.deepcopy([p.detach() for p in policy.parameters]))
    assert all(torch.equal(p, q) for p, q in zip(*ends, strict=True))


def test_bfloat16_trains_float32_weights(build_policy: Build) -> None:
    policy, batch = (
        build_policy(dtype="bfloat16", critic=True, reference=True, learning_rate=1e-3),
        make_batch(6, seed=16),
    )
    seen = policy.describe(batch)
    assert seen.kl_BT.abs().max() == 0 and seen.kl_BT.dtype == torch.float32
    found = update_gradient(policy, seen, make_targets(batch, 17))
    assert len(found) == len(policy.parameters)
    assert all(x.dtype == torch.float32 and x.isfinite().all() for x in (*policy.parameters, *found.values()))


def test_gradients_take_memory_only_while_a_policy_learns(build_policy: Build) -> None:
    policy, batch = build_policy(critic=True), make_batch(6, seed=16)
    policy.update(batch, make_targets(batch, 17), make_rule(epochs=2), 0)
    assert all(p.grad is None for p in policy.parameters)


def test_a_bfloat16_gradient_is_float32s_but_for_rounding(build_policy: Build) -> None:
    batch = make_batch(12, seed=20)
    targets = make_targets(batch, 21)
    exact = update_gradient(build_policy(), batch, targets)
    rounded = update_gradient(build_policy(dtype="bfloat16"), batch, targets)
    for name, wanted in exact.items():
        assert 0 < (rounded[name] - wanted).norm() < 0.03 * wanted.norm(), name


def test_dropout_stays_off(build_policy: Build, micro_gpt2: str) -> None:
    policy = build_policy(model=micro_gpt2)
    assert policy.weights.base.causal.config.resid_pdrop > 0
    batch = make_batch(4, seed=18)
    assert torch.equal(policy.outputs(batch).logp_BT, policy.outputs(batch).logp_BT)


def test_frozen_policies_are_not_updated(build_policy: Build) -> None:
    policy, batch = build_policy(weights="frozen", reference=True, critic=True), make_batch(2, seed=19)
    assert not policy.trainable and policy.optimizer is None and policy.value_head is None
    assert not any(p.requires_grad for p in policy.weights.base.causal.parameters())
    with pytest.raises(AssertionError, match="frozen"):
        policy.update(batch, make_targets(batch, 0), make_rule(), 0)
    assert policy.describe(batch) is batch


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_drift_is_what_scoring_rounds_otherwise_than_sampling(dtype: str, most: float, build_policy: Build) -> None:
    """A constant added to all logits changes no probability, but bfloat16 logits of -100 would be half a nat apart."""
    policy = build_policy(dtype=dtype)
    layer = policy.weights.base.causal.get_output_embeddings()
    layer.bias = torch.nn.Parameter(torch.full((layer.out_features,), -100.0))
    turns = LocalEngine({"a": policy}).generate({"a": make_says(ragged(9, seed=3) * 3, Sampling(12))})["a"]
    batch = turns_to_batch(turns)
    shifted = batch.replace(logp_BT=batch.logp_BT - 0.25 * batch.mask_BT, version_B=None)  # which the gate lets pass
    before = copy.deepcopy(policy.weights.base.causal.state_dict())
    assert policy.update(batch, make_targets(batch, 1), make_rule(), 0)["drift"] < most
    policy.weights.base.causal.load_state_dict(before)
    assert policy.update(shifted, make_targets(batch, 1), make_rule(), 0)["drift"] == pytest.approx(0.25, abs=most)


def test_micro_batches_never_split_groups_that_stay_together(build_policy: Build) -> None:
    batch = make_batch(12, seed=4).replace(peers_B=torch.tensor([0, 1, 2] * 4))
    seen: list[list[int]] = []

    def watching(out: Any, micro: Batch, targets: Any, weight_BT: torch.Tensor) -> Any:
        seen.append(sorted(micro.peers_B.tolist()))
        loss = -(out.logp_BT * weight_BT).sum()
        return loss, {"loss/policy": loss.detach()}

    policy = build_policy(micro_tokens=60)
    objective = dataclasses.replace(make_rule(), loss=watching)
    policy.update(batch, make_targets(batch, 0), objective, 0)
    assert any(group.count(peers) < 4 for group in seen for peers in group)
    seen.clear()
    policy.update(batch, make_targets(batch, 0), dataclasses.replace(objective, together="peers"), 0)
    assert sorted(peers for group in seen for peers in group) == sorted([0, 1, 2] * 4)
    assert all(group.count(peers) == 4 for group in seen for peers in group)


def test_a_value_head_has_a_learning_rate_of_its_own(build_policy: Build) -> None:
    batch = make_batch(4, seed=5)
    moved = {}
    for rate in (None, 1e-3, 0.1):
        policy = build_policy(critic=True, learning_rate=1e-3, value_learning_rate=rate)
        given = policy.describe(batch)
        aims = Targets(torch.zeros(batch.mask_BT.shape), torch.ones(batch.mask_BT.shape))
        before = [p.detach().clone() for p in policy.weights.parameters()]
        line = policy.update(given, aims, ppo(eta=0.0, value_clip=9.0, epochs=1).objective, 0)
        assert policy.value_head is not None
        trunk = max(float((p - b).detach().abs().max()) for p, b in zip(policy.parameters, before, strict=False))
        moved[rate] = (float(policy.value_head.weight.detach().abs().max()), trunk, line["lr"])
    # Adam's first step is the learning rate, whatever the gradient
    assert moved[None] == moved[1e-3]
    assert moved[1e-3][0] == pytest.approx(1e-3, rel=1e-3)
    assert moved[0.1][0] == pytest.approx(0.1, rel=1e-3)
    assert moved[0.1][1:] == moved[None][1:]


def test_rows_too_long_for_the_model_are_told(build_policy: Build) -> None:
    for needs in ({"critic": True}, {"critic": False, "reference": False}):
        policy = build_policy(**needs)
        policy.context = 6
        with pytest.raises(ValueError, match=r"would read \d+ tokens, and its model has 6 positions"):
            policy.describe(make_batch(8, seed=1))
    policy = build_policy(critic=True)
    whole = make_batch(8, seed=1)
    policy.context = int(whole.length_B.max()) - 1  # the last token is not read
    assert policy.describe(whole).value_BT is not None


def test_turns_that_count_for_nothing_have_numbers_all_the_same(build_policy: Build) -> None:
    batch = make_batch(4, seed=5).replace(weight_B=torch.zeros(4))
    policy = build_policy(learning_rate=1e-2)
    before = [parameter.clone() for parameter in policy.parameters]
    aims = Targets(torch.ones(batch.mask_BT.shape), None)
    metrics = policy.update(batch, aims, grpo(beta=0.0, epochs=2).objective, 0)
    assert all(math.isfinite(float(value)) for value in metrics.values())
    assert metrics["loss"] == metrics["grad_norm"] == 0
    assert all(map(torch.equal, before, policy.parameters))
