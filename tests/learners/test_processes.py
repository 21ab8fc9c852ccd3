"""Learning in processes gives what learning here gives, and errors leave everything usable."""

from __future__ import annotations

import operator
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from policy_cases import batch_of, make_batch, make_family, make_rule, make_targets, shaken
from torch import Tensor

from coevolve.faults import ShortageError
from coevolve.learners import build as building
from coevolve.learners import processes
from coevolve.learners.build import build_policies
from coevolve.learners.local import LocalLearner
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.runtime.placement import side_by_side
from coevolve.runtime.pool import Buffers, Job, JobError, Pool, WorkerState
from coevolve.types import Batch, Metrics

Team = dict[str, LocalLearner]


@pytest.fixture(scope="module", autouse=True)
def two_cores() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "cores", lambda: 2)
        patch.setattr(processes, "_TOKENS", 8)
        yield


def build(specs: Mapping[str, PolicySpec], workers: bool = False) -> Team:
    return build_policies(specs, reference=True, critic=True, steps=10, seed=0, workers=workers)


def place(learner: LocalLearner) -> object:
    return learner.place


def twins(specs: Mapping[str, PolicySpec]) -> Iterator[tuple[Team, Team]]:
    """The same policies here, and with processes to learn in."""
    here, there = build(specs), build(specs, workers=True)
    yield here, there
    for learner in there.values():
        pool_of(learner).close()


@pytest.fixture(scope="module")
def one(micro_model: str) -> Iterator[tuple[Team, Team]]:
    """One policy, which has both processes."""
    yield from twins({"ann": PolicySpec(micro_model, learning_rate=1e-2, micro_tokens=40)})


@pytest.fixture(scope="module")
def three(micro_model: str, micro_gpt2: str) -> Iterator[tuple[Team, Team]]:
    """Three for two processes, two of them adapters on one base."""
    lora: Any = {"weights": "lora", "lora": LoraSpec(rank=2), "learning_rate": 1e-2}
    yield from twins(
        {
            "ann": PolicySpec(micro_gpt2, **lora),
            "bob": PolicySpec(micro_gpt2, **lora),
            "cid": PolicySpec(micro_model, learning_rate=1e-2, dtype="bfloat16"),
        }
    )


def pool_of(policy: LocalLearner) -> Pool:
    assert policy.pool is not None
    return policy.pool


def gradients(policy: LocalLearner, batch: Batch, patch: pytest.MonkeyPatch, **rule: Any) -> list[Tensor | None]:
    """Of the loss, without a step."""
    found: list[Tensor | None] = []
    step = LocalLearner._step

    def kept(self: LocalLearner, total: Any, step: int) -> Metrics:
        found.extend(None if p.grad is None else p.grad.clone() for p in policy.parameters)
        return {"loss": float(total["loss"])}

    patch.setattr(LocalLearner, "_step", kept)
    policy.update(policy.describe(batch), make_targets(batch, 5), make_rule(**rule), 0)
    patch.setattr(LocalLearner, "_step", step)
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["family", "strangers"])
def test_gradients_of_one_policy_in_two_processes(
    kind: str, seed: int, one: tuple[Team, Team], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = (team["ann"] for team in one)
    assert pool_of(there).most == 2
    batch = make_family(3, seed) if kind == "family" else make_batch(11, seed)
    wanted, found = (gradients(policy, batch, monkeypatch) for policy in (here, there))
    for a, b in zip(wanted, found, strict=True):
        assert a is not None and b is not None
        assert float((a - b).norm()) <= 1e-5 * float(a.norm())


def test_what_has_no_gradient_here_has_none_there(one: tuple[Team, Team], monkeypatch: pytest.MonkeyPatch) -> None:
    def without_critic(out: Any, batch: Batch, targets: Any, weight_BT: Tensor) -> Any:
        loss = -(out.logp_BT * targets.adv_BT * weight_BT).sum()
        return loss, {"loss/policy": loss.detach()}

    for policy in (team["ann"] for team in one):
        gone = [g is None for g in gradients(policy, make_batch(5, 0), monkeypatch, loss=without_critic)]
        assert gone == [False] * (len(gone) - 2) + [True] * 2  # weight and bias of the value head


def test_annotations_and_updates_are_the_same(one: tuple[Team, Team]) -> None:
    """Two epochs of mini-batches, with a rule that no process could be sent."""
    rule = make_rule(epochs=2, minibatch=5)
    lines: list[Metrics] = []
    seen: list[Batch] = []
    for policy in (team["ann"] for team in one):
        for step in range(2):
            seen.append(policy.describe(make_family(3, step)))
            lines.append(policy.update(seen[-1], make_targets(seen[-1], step), rule, step))
    for a, b in ((0, 2), (1, 3)):
        assert lines[b] == pytest.approx(lines[a], rel=2e-3, abs=1e-6)
        for name, value in seen[a].tensors().items():
            assert torch.allclose(value, seen[b].tensors()[name], rtol=1e-3, atol=1e-4), name


def test_three_policies_share_two_processes_side_by_side(
    three: tuple[Team, Team], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, where no batch is split; two of them at once, on one base."""
    here, there = three
    monkeypatch.setattr(processes, "_TOKENS", 1 << 20)
    batches = {name: make_family(2, i) for i, name in enumerate(here)}

    def learn(team: Team, names: list[str]) -> dict[str, Metrics]:
        return {
            n: team[n].update(team[n].describe(batches[n]), make_targets(batches[n], 1), make_rule(epochs=2), 0)
            for n in names
        }

    wanted = learn(here, list(here))
    meet = threading.Barrier(2, timeout=20)  # passed only by two at once
    outputs = processes.ProcessLearner._outputs

    def meeting(self: processes.ProcessLearner, *args: Any) -> Any:
        if self.name in ("ann", "bob"):
            meet.wait()
        return outputs(self, *args)

    learn(here, list(here))
    learn(there, ["cid"])
    with monkeypatch.context() as patch:
        patch.setattr(processes.ProcessLearner, "_outputs", meeting)
        found = side_by_side(there, ["ann", "bob"], lambda names: learn(there, names), place)
    found |= side_by_side(there, ["cid", "bob", "ann"], lambda names: learn(there, names), place)
    assert list(found) == ["ann", "bob", "cid"]
    for name, policy in there.items():
        assert all(torch.equal(a, b) for a, b in zip(policy.parameters, here[name].parameters, strict=True)), name
    assert {name: set(metrics) for name, metrics in found.items()} == {n: set(m) for n, m in wanted.items()}


def test_a_loss_that_fails_is_told_and_harms_nobody(three: tuple[Team, Team]) -> None:
    _, there = three
    batch = make_batch(6, 0)

    def failing(*args: Any) -> Any:
        raise ValueError("not this time")

    before = [worker.process.pid for worker in pool_of(there["ann"])._running]
    ready = there["ann"].describe(batch)
    with pytest.raises(ValueError, match="not this time"):
        there["ann"].update(ready, make_targets(batch, 0), make_rule(loss=failing), 0)
    kept = pool_of(there["ann"])([Job(["ann"], operator.attrgetter("outputs"), ())] * 2)
    assert kept == [{}] * 2, "what nobody will learn from takes no memory"
    there["ann"].update(ready, make_targets(batch, 0), make_rule(), 0)
    assert [worker.process.pid for worker in pool_of(there["ann"])._running] == before


def test_failures_and_deaths_there_name_the_policy(one: tuple[Team, Team]) -> None:
    here, there = (team["ann"] for team in one)
    bad, good = batch_of([[1 << 20]] * 2, [[4] * 9] * 2, 0), make_batch(9, 3)
    with pytest.raises(JobError, match=r"the process that worked for ann failed: IndexError"):
        there.describe(bad)
    assert there.describe(good).kl_BT is not None
    process = pool_of(there)._running[0].process
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    with pytest.raises(ShortageError, match="for ann ended with exit code -9"):
        there.describe(good)
    kl_BT, wanted_BT = there.describe(good).kl_BT, here.describe(good).kl_BT
    assert kl_BT is not None and wanted_BT is not None
    assert torch.allclose(kl_BT, wanted_BT, rtol=1e-3, atol=1e-4)


def test_a_death_beside_others_is_told_as_the_cause(three: tuple[Team, Team]) -> None:
    _, there = three
    batch, rule = make_family(2, 0), make_rule(epochs=2)

    def learn(names: list[str]) -> dict[str, Metrics]:
        return {n: there[n].update(there[n].describe(batch), make_targets(batch, 1), rule, 0) for n in names}

    for victim in (0, 1):
        side_by_side(there, list(there), learn, place)
        process = pool_of(there["ann"])._running[victim].process
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        with pytest.raises(ShortageError, match=r"ended with exit code -9 \(killed, perhaps for want of memory\)"):
            side_by_side(there, list(there), learn, place)
    side_by_side(there, list(there), learn, place)


def test_adapters_on_the_output_layer_learn_there(micro_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed again in the backward has the adapter, too."""
    lora = LoraSpec(rank=2, targets=("q_proj", "lm_head"))
    for here, there in twins({"ann": PolicySpec(micro_model, weights="lora", lora=lora)}):
        wanted, found = (gradients(team["ann"], make_family(2, 0), monkeypatch) for team in (here, there))
        for a, b in zip(wanted, found, strict=True):
            assert a is not None and b is not None
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-7)


def test_nothing_is_left_of_a_backward_that_failed(micro_model: str) -> None:
    """In this process, with what a worker has."""
    policy, batch = build({"ann": PolicySpec(micro_model)})["ann"], make_batch(5, 0)
    own = torch.full((sum(p.numel() for p in policy.parameters),), 7.0)
    state = WorkerState({"ann": policy}, Buffers({"ann": own}, [[]]))
    policy.parameters[0].grad = torch.ones_like(policy.parameters[0])
    state.outputs["ann"] = "an older graph"
    logp_BT, value_BT, entropy_BT, kl_BT = processes.outputs(state, "ann", batch)
    assert all(p.grad is None for p in policy.parameters)
    assert logp_BT is not None and value_BT is not None and entropy_BT is not None and kl_BT is None
    grads = [torch.ones_like(logp_BT), None, None, None]
    numbers = processes.backward(state, "ann", 0, 0, set(), grads)
    assert state.outputs == {}
    assert numbers == set(range(len(policy.parameters) - 2))  # no gradient of the value head
    once = own.clone()
    processes.outputs(state, "ann", batch)
    processes.backward(state, "ann", 0, 0, numbers, grads)
    size = sum(p.numel() for p in policy.parameters[:-2])
    assert torch.allclose(own[:size], 2 * once[:size], rtol=1e-5, atol=1e-6)
    assert (own[size:] == 7.0).all()


def test_processes_and_gradients_cost_what_is_used_and_end_when_closed(
    micro_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_TOKENS", 40)
    ann = build({"ann": PolicySpec(micro_model)}, workers=True)["ann"]
    pool = pool_of(ann)
    assert ann.describe(make_batch(2, 0, longest_action=3)).kl_BT is not None
    (worker,) = pool._running
    assert ann.describe(make_batch(9, 0)).kl_BT is not None
    assert len(pool._running) == 2
    assert pool._memory is not None
    written = os.fstat(pool._memory.file.fileno()).st_blocks * 512
    assert written < 1.2 * sum(t.nbytes for t in pool._memory.tensors if not t.is_meta)
    pool.close()
    assert not worker.process.is_alive()
    assert ann.describe(make_batch(9, 0)).kl_BT is not None  # by new ones
    pool.close()


def test_an_entropy_in_the_loss_has_a_gradient_there_too(
    one: tuple[Team, Team], monkeypatch: pytest.MonkeyPatch
) -> None:
    def entropic(out: Any, batch: Batch, targets: Any, weight_BT: Tensor) -> Any:
        loss = -(out.entropy_BT * weight_BT).sum()
        return loss, {"loss/policy": loss.detach()}

    wanted, found = (gradients(team["ann"], make_family(3, 1), monkeypatch, loss=entropic) for team in one)
    for a, b in zip(wanted[:-2], found[:-2], strict=True):  # but for the value head's
        assert a is not None and b is not None and float(a.norm()) > 0
        assert float((a - b).norm()) <= 5e-3 * float(a.norm())  # the two have learnt in other tests, each rounding


def test_a_kl_in_the_loss_has_a_gradient_there_too(one: tuple[Team, Team], monkeypatch: pytest.MonkeyPatch) -> None:
    def held(out: Any, batch: Batch, targets: Any, weight_BT: Tensor) -> Any:
        loss = (out.kl_BT * weight_BT).sum()
        return loss, {"loss/kl": loss.detach()}

    here, there = (team["ann"] for team in one)
    shaken(here)
    with torch.no_grad():
        for ours, theirs in zip(here.parameters, there.parameters, strict=True):
            theirs.copy_(ours)
    wanted, found = (gradients(policy, make_family(3, 1), monkeypatch, loss=held, kl=True) for policy in (here, there))
    for a, b in zip(wanted[:-2], found[:-2], strict=True):  # but for the value head's
        assert a is not None and b is not None and float(a.norm()) > 0
        assert float((a - b).norm()) <= 1e-4 * float(a.norm())
    torch.testing.assert_close(there.logps(make_batch(9, 2)), here.logps(make_batch(9, 2)), rtol=1e-4, atol=1e-5)


def test_rows_are_split_by_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that begin alike side by side; nobody gets less than _TOKENS (8 here), if there are so many."""
    prompts = [[5] * 9, [4] * 9, [5] * 9, [4] * 9, [5] * 9]

    def parts(lengths: list[int], most: int) -> list[list[int]]:
        batch = batch_of(prompts, [[7, *[3] * (n - 1)] for n in lengths], 0)
        return [rows_B.tolist() for rows_B in processes.split_rows(batch, most)]

    assert parts([4, 6, 4, 6, 4], 2) == [[1, 3], [0, 2, 4]]
    assert parts([1, 20, 1, 1, 1], 2) == [[1, 3], [0, 2, 4]]
    assert parts([30, 1, 30, 1, 40], 2) == [[0, 1, 3], [2, 4]]  # of 159: 10 + 1 + 68, 30 + 50
    assert parts([4, 6, 4, 6, 4], 1) == [[0, 1, 2, 3, 4]]
    monkeypatch.setattr(processes, "_TOKENS", 24)
    assert parts([1, 1, 1, 1, 1], 2) == [[0, 1, 2, 3, 4]]  # 23: twice 9 of prompts, and 5 action tokens
    monkeypatch.setattr(processes, "_TOKENS", 8)
    assert len(parts([9, 9, 9, 9, 9], 9)) == 5
