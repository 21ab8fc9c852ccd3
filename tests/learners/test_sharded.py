"""Learning on two ranks is learning in one process: to the bit where the order of sums is the same."""

from __future__ import annotations

import copy
import math
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from policy_cases import make_batch, make_targets, weighted_loss
from safetensors.torch import load_file

from coevolve.faults import RanksLostError
from coevolve.learners import fsdp, shard
from coevolve.learners.build import build_policies
from coevolve.learners.local import LocalLearner
from coevolve.learners.shard import evenly
from coevolve.learners.sharded import ShardedLearner
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.runtime import ranks as running
from coevolve.runtime.pool import JobError
from coevolve.types import Batch, Metrics, Objective, Outputs, Targets

pytestmark = pytest.mark.slow

HOW: dict[str, Any] = {"reference": True, "critic": True, "steps": 10, "seed": 0}
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "full, gathered as on GPUs": {},
    "lora": {"weights": "lora", "lora": LoraSpec(rank=2), "max_grad_norm": 0.5},
}
CLIPPED = {"full, clipped": {"max_grad_norm": 1e-6}}
Twins = tuple[LocalLearner, ShardedLearner]
State = dict[str, torch.Tensor]


def even(batch: Batch) -> torch.Tensor:
    return batch.mask_BT / batch.mask_BT.sum()


def second_fails(out: Outputs, batch: Batch, targets: Targets, weight_BT: torch.Tensor) -> Any:
    if torch.distributed.get_rank() == 1:
        raise ValueError("this loss does not like it")
    return weighted_loss(out, batch, targets, weight_BT)


def both_fail(out: Outputs, batch: Batch, targets: Targets, weight_BT: torch.Tensor) -> Any:
    raise ValueError("this loss likes nothing")


def torn_below(out: Outputs, batch: Batch, targets: Targets, weight_BT: torch.Tensor) -> Any:
    """Its backward fails in the model, behind all layers: at the embedding."""
    loss, metrics = weighted_loss(out, batch, targets, weight_BT)
    assert out.logp_BT.grad_fn is not None

    def torn(*_: Any) -> None:
        raise ValueError("this model has no backward")

    found, seen = [out.logp_BT.grad_fn], set[Any]()
    while found:
        node = found.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found += [before for before, _ in node.next_functions]
            if "Embedding" in type(node).__name__:
                node.register_prehook(torn)
    return loss, metrics


GATHERS: list[int] = []
"""How many gathers a rank has begun since its first loss; made there."""


def counted(gather: Any, *given: Any, **more: Any) -> Any:
    GATHERS[0] += 1
    return gather(*given, **more)


def counts_gathers(out: Outputs, batch: Batch, targets: Targets, weight_BT: torch.Tensor) -> Any:
    loss, metrics = weighted_loss(out, batch, targets, weight_BT)
    if not GATHERS:
        GATHERS.append(0)
        for name in ("all_gather_single", "all_gather_into_tensor"):  # FSDP2's, by the version of PyTorch
            if hasattr(torch.distributed, name):
                setattr(torch.distributed, name, partial(counted, getattr(torch.distributed, name)))
    return loss, {**metrics, "gathers/max": torch.tensor(float(GATHERS[0]))}


def build_as_on_gpus(*given: Any) -> Any:
    """In a rank: gather weights for every forward and backward."""
    shard.gathers_once = lambda device_type: False
    return shard.build(*given)


def second_is_killed(out: Outputs, batch: Batch, targets: Targets, weight_BT: torch.Tensor) -> Any:
    if torch.distributed.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return weighted_loss(out, batch, targets, weight_BT)


def second_sleeps(out: Outputs, batch: Batch, targets: Targets, weight_BT: torch.Tensor) -> Any:
    time.sleep(60 * torch.distributed.get_rank())
    return weighted_loss(out, batch, targets, weight_BT)


def first_has_a_critic(out: Outputs, batch: Batch, targets: Targets, weight_BT: torch.Tensor) -> Any:
    assert out.value_BT is not None
    loss = (out.logp_BT * weight_BT).sum()
    return loss if torch.distributed.get_rank() else loss + (out.value_BT * weight_BT).sum(), {}


def policy_alone(out: Outputs, batch: Batch, targets: Targets, weight_BT: torch.Tensor) -> Any:
    """Nothing of the critic, which then has no gradient."""
    return weighted_loss(Outputs(out.logp_BT, None, out.entropy_BT), batch, targets, weight_BT)


def policy_with_kl(out: Outputs, batch: Batch, targets: Targets, weight_BT: torch.Tensor) -> Any:
    """And a metric that is not added up."""
    assert out.kl_BT is not None
    loss, metrics = weighted_loss(out, batch, targets, weight_BT)
    return loss + 0.3 * (out.kl_BT * weight_BT).sum(), {**metrics, "kl/max": out.kl_BT.detach().max()}


def spec_of(model: str, **changes: Any) -> PolicySpec:
    settings: dict[str, Any] = {"learning_rate": 1e-2, "weight_decay": 0.1, "micro_tokens": 40}
    return PolicySpec(model, device="cpu", compute="torch", **(settings | changes))


def on_ranks(spec: PolicySpec) -> ShardedLearner:
    found = fsdp("a", spec, **HOW, ranks=2, deadline=120.0)
    assert isinstance(found, ShardedLearner)
    return found


@pytest.fixture(scope="module", params=KINDS)
def twins(request: pytest.FixtureRequest, micro_model: str) -> Iterator[Twins]:
    """The same policy in this process and on two ranks, with critic and reference."""
    spec = spec_of(micro_model, **{**KINDS, **CLIPPED}[request.param])
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "full, gathered as on GPUs":
            patch.setattr("coevolve.learners.sharded.shard.build", build_as_on_gpus)
        two = on_ranks(spec)
        learn(two, make_batch(4, seed=4), 0)  # away from the reference
        yield build_policies({"a": spec}, **HOW)["a"], two
        two.close()


@pytest.fixture
def synchronous(twins: Twins, tmp_path: Path) -> Twins:
    """Both as the one on ranks is."""
    one, two = twins
    two.save(tmp_path / "same")
    one.load(tmp_path / "same", two.training_state())
    return twins


def saved(learner: Any, folder: Path) -> State:
    """All weights as a checkpoint has them."""
    learner.save(folder)
    return {f"{file.name} {key}": x for file in folder.glob("*.safetensors") for key, x in load_file(file).items()}


def learn(learner: Any, batch: Batch, step: int, **rule: Any) -> Metrics:
    objective = Objective(**({"loss": weighted_loss, "loss_aggregation": even} | rule))
    metrics: Metrics = learner.update(learner.describe(batch), make_targets(batch, step), objective, step)
    return metrics


def rows_of(one: LocalLearner, micro_batches: int) -> Batch:
    """Some that make so many micro-batches."""
    found = (make_batch(rows, seed=rows) for rows in range(1, 40))
    return next(batch for batch in found if len(one.micro_batches(batch)) == micro_batches)


def check_that_they_learn_alike(pair: Twins, batch: Batch, folder: Path) -> None:
    """Two updates of both, to the bit."""
    for step in range(2):
        for learner in pair:
            learn(learner, batch, step)
    assert distance(saved(pair[0], folder / "a"), saved(pair[1], folder / "b")) == 0


def distance(a: State, b: State) -> float:
    assert a.keys() == b.keys()
    return math.sqrt(sum(float((a[key] - b[key]).square().sum()) for key in a))


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_one_or_two_micro_batches_are_learnt_to_the_bit(synchronous: Twins, micro_batches: int, tmp_path: Path) -> None:
    one, two = synchronous
    batch, before = rows_of(one, micro_batches), saved(two, tmp_path / "before")
    metrics = [learn(learner, batch, 1) for learner in (one, two)]
    assert metrics[0].keys() == metrics[1].keys()
    for key, value in metrics[0].items():  # a norm of parts adds up in another order
        assert metrics[1][key] == pytest.approx(value, rel=1e-6 if key == "grad_norm" else 0, abs=0)
    after = [saved(learner, tmp_path / name) for learner, name in zip((one, two), "ab", strict=True)]
    assert distance(*after) == 0 < distance(before, after[0])


@pytest.mark.parametrize("twins", CLIPPED, indirect=True)
@pytest.mark.parametrize("micro_batches", [1, 2, 5])
def test_a_bounded_norm_of_weights_in_parts_is_that_of_all(
    synchronous: Twins, micro_batches: int, tmp_path: Path
) -> None:
    """But for the order in which its squares add up. At so low a bound gradients are as small as Adam's epsilon, and
    steps as long as the gradients are: with the norm of its own part, a rank's would be off by half or more."""
    one, two = synchronous
    batch, before = rows_of(one, micro_batches), saved(two, tmp_path / "before")
    metrics = [learn(learner, batch, 1) for learner in synchronous]
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-4 if micro_batches > 2 else 1e-6)
    assert metrics[0]["grad_norm"] > 2 * CLIPPED["full, clipped"]["max_grad_norm"]
    after = [saved(learner, tmp_path / name) for learner, name in zip(synchronous, "ab", strict=True)]
    assert distance(*after) <= (1e-4 if micro_batches > 2 else 1e-5) * distance(before, after[0])


@pytest.mark.parametrize(
    "rule",
    [{}, {"epochs": 2, "minibatch": 8}, {"loss": policy_alone}, {"loss": policy_with_kl, "kl": True}],
    ids=["whole", "mini", "policy", "kl"],
)
def test_more_are_learnt_but_for_the_order_of_sums(synchronous: Twins, rule: Any, tmp_path: Path) -> None:
    one, two = synchronous
    batch, before = rows_of(one, 5), saved(two, tmp_path / "before")
    metrics = [learn(learner, batch, 1, **rule) for learner in (one, two)]
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-4, abs=1e-6)
    after = [saved(learner, tmp_path / name) for learner, name in zip((one, two), "ab", strict=True)]
    # A gradient near Adam's epsilon has steps that follow its last digits.
    assert distance(*after) <= 1e-4 * distance(before, after[0])


def loud(out: Outputs, batch: Batch, targets: Targets, weight_BT: torch.Tensor) -> Any:
    """A loss whose gradients are far above Adam's epsilon."""
    loss, metrics = weighted_loss(out, batch, targets, weight_BT)
    return 1e4 * loss, metrics


def test_the_order_of_sums_is_within_a_hundred_thousandth_of_the_step(synchronous: Twins, tmp_path: Path) -> None:
    one, two = synchronous
    if one.spec.max_grad_norm is not None:
        pytest.skip("a bounded norm undoes the factor")
    batch, before = rows_of(one, 5), saved(two, tmp_path / "before")
    for learner in (one, two):
        learner.reset_optimizer()  # moments of the tests before, 1e4 times smaller, would let last digits count
        learn(learner, batch, 1, loss=loud)
    after = [saved(learner, tmp_path / name) for learner, name in zip((one, two), "ab", strict=True)]
    assert distance(*after) <= 1e-5 * distance(before, after[0])


@pytest.mark.parametrize("micro_batches", [1, 2, 4, 5])
def test_descriptions_are_the_same(synchronous: Twins, micro_batches: int) -> None:
    """To the bit, but for rows that stand in other micro-batches."""
    one, two = synchronous
    batch, off = rows_of(one, micro_batches), 0.0 if micro_batches <= 2 else 1e-6
    a, b = (learner.describe(batch) for learner in (one, two))
    for key in ("kl_BT", "logp_ref_BT", "value_BT"):
        assert torch.allclose(getattr(a, key), getattr(b, key), rtol=off, atol=off)
    assert a.kl_BT.abs().max() > 0
    assert torch.allclose(one.logps(batch), two.logps(batch), rtol=off, atol=off)


def test_a_resume_goes_on_with_any_number_of_ranks(synchronous: Twins, tmp_path: Path) -> None:
    """Two ranks, one process, two ranks: every update to the bit."""
    one, two = synchronous
    batches = [rows_of(one, 2), rows_of(one, 1), rows_of(one, 2)]
    for step in range(2):
        learn(two, batches[step], step)
    two.save(tmp_path / "two")
    kept = two.training_state()
    learn(two, batches[2], 2)
    one.load(tmp_path / "two", copy.deepcopy(kept))  # whose optimiser goes on with the tensors that it is given
    learn(one, batches[2], 2)
    a, b = saved(one, tmp_path / "one"), saved(two, tmp_path / "b")
    assert distance(a, b) == 0 < distance(a, saved_in(tmp_path / "two"))
    two.load(tmp_path / "two", kept)
    learn(two, batches[2], 2)
    assert distance(b, saved(two, tmp_path / "again")) == 0
    two.load(tmp_path / "one", one.training_state())
    for learner in (one, two):
        learn(learner, batches[1], 3)
    assert distance(saved(one, tmp_path / "c"), saved(two, tmp_path / "d")) == 0


def saved_in(folder: Path) -> State:
    return {f"{file.name} {key}": x for file in folder.glob("*.safetensors") for key, x in load_file(file).items()}


def test_a_fresh_optimiser_behind_a_description_learns_all_weights(synchronous: Twins, tmp_path: Path) -> None:
    """What was whole for the description is in parts again, or the optimiser would hold what nobody reads."""
    one, two = synchronous
    batch = rows_of(one, 2)
    for learner in (one, two):
        learner.describe(batch)
        learner.reset_optimizer()
    check_that_they_learn_alike(synchronous, batch, tmp_path)


def test_nobody_steps_where_one_rank_has_a_nan(synchronous: Twins, tmp_path: Path) -> None:
    one, two = synchronous
    batch, before = rows_of(one, 2), saved(two, tmp_path / "before")
    targets = make_targets(batch, 1)
    second = one.micro_batches(batch)[1]
    targets.adv_BT[second[0]] = math.nan
    for learner in (one, two):
        with pytest.raises(ValueError, match="policy 'a', step 4: the loss is nan") as told:
            learner.update(batch, targets, Objective(weighted_loss, even), 4)
        assert str(told.value).startswith("policy 'a', step 4: the loss is nan")
    assert distance(before, saved(two, tmp_path / "after")) == 0
    learn(two, batch, 4)


def test_what_one_rank_cannot_do_is_told_of_it(twins: Twins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others, which wait for it, are ended; a load starts all again."""
    monkeypatch.setattr(running, "_GRACE", 0.5)
    one, two = twins
    two.save(tmp_path / "two")
    state, batch, before = two.training_state(), rows_of(one, 2), saved_in(tmp_path / "two")
    where = r"policy 'a', rank 1 of 2, update of step 3, version \d+: the loss, policy 'a', step 3: "
    with pytest.raises(ValueError, match=rf"^{where}this loss does not like it \(.*test_sharded\.py, line \d+\)"):
        learn(two, batch, 3, loss=second_fails)
    with pytest.raises(ValueError, match="policy 'a': its ranks were ended, and with them its weights"):
        learn(two, batch, 3)
    two.load(tmp_path / "two", state)
    assert distance(before, saved(two, tmp_path / "again")) == 0


def test_a_loss_that_fails_on_all_ranks_changes_nothing(synchronous: Twins, tmp_path: Path) -> None:
    one, two = synchronous
    batch = rows_of(one, 2)
    with pytest.raises(ValueError, match="this loss likes nothing"):
        learn(two, batch, 1, loss=both_fail)
    two.reset_optimizer()
    one.reset_optimizer()
    check_that_they_learn_alike(synchronous, batch, tmp_path)


def test_ranks_that_an_error_has_torn_are_not_used_again(twins: Twins, tmp_path: Path) -> None:
    """After an error in the model's own backward FSDP would go on without gradients, and say nothing."""
    one, two = twins
    two.save(tmp_path / "two")
    state, batch, sharded = two.training_state(), rows_of(one, 2), two.spec.weights == "full"
    with pytest.raises(ValueError, match="this model has no backward"):
        learn(two, batch, 1, loss=torn_below)
    if sharded:
        with pytest.raises(ValueError, match="policy 'a': its ranks were ended, and with them its weights"):
            learn(two, batch, 1)
    two.load(tmp_path / "two", state)
    one.load(tmp_path / "two", state)
    for learner in (one, two):
        learn(learner, batch, 1)
    assert distance(saved(one, tmp_path / "a"), saved(two, tmp_path / "b")) == 0


@pytest.mark.parametrize("twins", ["full", "full, gathered as on GPUs"], indirect=True)
def test_weights_are_gathered_once_for_all_micro_batches_on_the_cpu(
    twins: Twins, request: pytest.FixtureRequest
) -> None:
    one, two = twins
    gathers = learn(two, rows_of(one, 4), 1, loss=counts_gathers)["gathers/max"]
    assert (gathers == 0) == ("GPUs" not in request.node.name)


def test_what_ranks_could_not_find_is_told_before_anything_is_sampled(twins: Twins) -> None:
    with pytest.raises(ValueError, match=r"its objective: .*<lambda> is inside a function, and ranks find only what"):
        twins[1].check_objective(Objective(loss=lambda *given: given, loss_aggregation=even))
    twins[1].check_objective(Objective(loss=weighted_loss, loss_aggregation=even))


def test_a_file_that_a_rank_does_not_see_is_told_as_that(synchronous: Twins, tmp_path: Path) -> None:
    _, two = synchronous
    state, gone = two.training_state(), tmp_path / "gone" / "state.pt"
    said = r"rank [01]: \S+gone\S* is not seen on this rank's machine; put TMPDIR on a disk that all machines share"
    with pytest.raises(ValueError, match=said):
        two._ask("of a checkpoint", "load_from", tmp_path, gone)
    two.load(tmp_path / "same", state)
    with pytest.raises(ValueError, match=said):
        two._saved("save_training_state", gone)
    two.load(tmp_path / "same", state)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_ranks_whose_losses_differ_in_what_they_use_learn_together(
    synchronous: Twins, micro_batches: int, tmp_path: Path
) -> None:
    """One rank's gradient of what the other leaves out is that of all; so where the other only keeps step."""
    _, two = synchronous
    before = saved(two, tmp_path / "before")
    found = learn(two, rows_of(synchronous[0], micro_batches), 1, loss=first_has_a_critic)
    assert found["grad_norm"] > 0
    after = saved(two, tmp_path / "after")
    head = next(key for key in after if "value" in key)
    assert not torch.equal(before[head], after[head])
    assert all(bool(x.isfinite().all()) for x in after.values())


def test_what_no_rank_uses_stays_as_it_is(synchronous: Twins, tmp_path: Path) -> None:
    """Its moments, and the decay of weights, are not followed, as in one process."""
    one, two = synchronous
    batch = rows_of(one, 2)
    for learner in synchronous:
        learn(learner, batch, 1)
    before = saved(two, tmp_path / "before")
    metrics = [learn(learner, batch, 2, loss=policy_alone) for learner in synchronous]
    assert metrics[0].keys() == metrics[1].keys()
    a, b = (saved(learner, tmp_path / name) for learner, name in zip(synchronous, "ab", strict=True))
    assert distance(a, b) == 0 < distance(before, a)
    heads = [key for key in before if "value" in key]
    assert heads and all(bool(before[key].any()) and torch.equal(before[key], b[key]) for key in heads)


def critic_of_some_rows(out: Outputs, batch: Batch, targets: Targets, weight_BT: torch.Tensor) -> Any:
    """The critic learns from the turns of one role; a micro-batch may have none."""
    assert out.value_BT is not None
    loss, metrics = policy_alone(out, batch, targets, weight_BT)
    rows_B = batch.role_B == 1
    return loss + ((out.value_BT - 1).square() * weight_BT)[rows_B].sum() if bool(rows_B.any()) else loss, metrics


def test_what_the_last_micro_batch_leaves_out_is_gathered_anew(synchronous: Twins, tmp_path: Path) -> None:
    """Its weights of before the step would be computed with from there on."""
    one, _ = synchronous
    batch = rows_of(one, 4)
    first = evenly(partial(one._fitting, batch, "row"), one.micro_tokens, 2)[:2]
    batch.role_B.index_fill_(0, torch.cat(first), 1)
    rule = {"loss": critic_of_some_rows, "epochs": 2}
    metrics = [learn(learner, batch, 1, **rule) for learner in synchronous]
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-4, abs=1e-6)
    values = [learner.describe(batch).value_BT for learner in synchronous]
    assert torch.allclose(*values, rtol=1e-4, atol=1e-5)
    a, b = (saved(learner, tmp_path / name) for learner, name in zip(synchronous, "ab", strict=True))
    assert distance(a, b) <= 1e-4 * distance(a, saved_in(tmp_path / "same"))


def test_a_killed_rank_is_told_and_not_waited_for(twins: Twins, tmp_path: Path) -> None:
    one, two = twins
    two.save(tmp_path / "two")
    state, batch = two.training_state(), rows_of(one, 2)
    processes = two.ranks.processes  # type: ignore[union-attr]
    with pytest.raises(
        RanksLostError,
        match=r"rank 1 of 2 of policy 'a' died \(process \d+, exit code -9, .*; update of step 3, version \d+",
    ):
        learn(two, batch, 3, loss=second_is_killed)
    assert not any(process.is_alive() for process in processes)
    two.load(tmp_path / "two", state)


def test_an_error_of_all_ranks_is_told_although_they_end_of_it(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NCCL ends them, some time after an error of CUDA's."""
    _, two = twins
    ranks, asked = two.ranks, list[str]()
    assert ranks is not None

    def ask(when: str, what: str, *given: Any) -> list[Any]:
        asked.append(what)
        if what == "is_intact":
            raise RanksLostError("rank 1 of 2 of policy 'a' died")
        raise JobError("RuntimeError: CUDA error")

    monkeypatch.setattr(ranks, "ask", ask)
    with pytest.raises(JobError, match="CUDA error"):
        two._ask("of step 3", "update")
    assert asked == ["update", "is_intact"]


def test_a_deadline_names_who_did_not_answer(twins: Twins, tmp_path: Path) -> None:
    one, two = twins
    two.save(tmp_path / "two")
    state, batch = two.training_state(), rows_of(one, 2)
    two.ranks.seconds = 1.0  # type: ignore[union-attr]
    told = r"ranks 0, 1 of 2 of policy 'a' did not answer within 1 s \(update of step 3, version \d+\); its other ranks"
    with pytest.raises(RanksLostError, match=told):
        two.update(batch, make_targets(batch, 3), Objective(second_sleeps, even), 3)
    two.load(tmp_path / "two", state)


def test_parts_need_not_be_of_one_size(micro_model: str, tmp_path: Path) -> None:
    """Three ranks have unequal parts of most tensors, and a factor that is no power of two."""
    spec = spec_of(micro_model)
    three = fsdp("a", spec, **HOW, ranks=3, deadline=120.0)
    try:
        three.save(tmp_path / "same")
        before, one = saved_in(tmp_path / "same"), build_policies({"a": spec}, **HOW)["a"]
        one.load(tmp_path / "same", three.training_state())
        for step, micro_batches in enumerate((2, 5)):
            batch = rows_of(one, micro_batches)
            a, b = (learn(learner, batch, step, loss=loud) for learner in (one, three))
            assert b == pytest.approx(a, rel=1e-4, abs=1e-6)
            three.save(tmp_path / "three")
            three.load(tmp_path / "three", three.training_state())
        after = [saved(learner, tmp_path / name) for learner, name in zip((one, three), "ab", strict=True)]
        assert distance(*after) <= 1e-5 * distance(before, after[0])
    finally:
        three.close()


SMALLER: dict[str, dict[str, Any]] = {
    "full, layers again": {"gradient_checkpointing": True},
    "full in bfloat16, layers again": {"dtype": "bfloat16", "gradient_checkpointing": True},
    "lora in bfloat16, layers again": {**KINDS["lora"], "dtype": "bfloat16", "gradient_checkpointing": True},
    "lora on 4 bits": {**KINDS["lora"], "load_in_4bit": True},
    "lora, moments in 8 bits": {**KINDS["lora"], "optimizer": "adamw_8bit"},
}


@pytest.mark.parametrize("kind", SMALLER)
def test_what_takes_less_memory_takes_it_on_ranks_too(kind: str, micro_model: str, tmp_path: Path) -> None:
    """With a reference and a critic, one and two micro-batches: the same as in one process, to the bit. So it is behind
    a checkpoint."""
    if " bits" in kind:
        pytest.importorskip("bitsandbytes", reason="needs the package bitsandbytes (coevolve[quant])")
    spec = spec_of(micro_model, **SMALLER[kind])
    one, two = build_policies({"a": spec}, **HOW)["a"], on_ranks(spec)
    try:
        before = saved(one, tmp_path / "before")
        for step, micro_batches in enumerate((1, 2)):
            batch = rows_of(one, micro_batches)
            a, b = (learn(learner, batch, step) for learner in (one, two))
            norms = [metrics.pop("grad_norm") for metrics in (a, b)]
            assert a == b
            assert norms[1] == pytest.approx(norms[0], rel=1e-5)
            two.save(tmp_path / "two")
            two.load(tmp_path / "two", two.training_state())
        after = [saved(learner, tmp_path / name) for learner, name in zip((one, two), "ab", strict=True)]
        assert distance(*after) == 0 < distance(before, after[0])
    finally:
        two.close()
