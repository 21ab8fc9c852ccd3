"""Full weights sent to a server without the disk: what arrives, in which order, and what is said if it does not."""

from __future__ import annotations

import base64
import dataclasses
import pickle
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_server import FakeServer
from policy_cases import Build, make_says
from safetensors.torch import load_file
from server_cases import MODEL, check_steps, training
from toy import toy
from transformers import MixtralConfig, MixtralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from coevolve import cli
from coevolve.engines import server, started, transfer
from coevolve.engines.server import ServerEngine
from coevolve.engines.transfer import END, FINISH, INIT, SIZE, START, UPDATE
from coevolve.faults import RanksLostError, ShortageError
from coevolve.learners.sharded import ShardedLearner, starter
from coevolve.models.spec import PolicySpec
from coevolve.models.weights import checkpoint_tensors
from coevolve.runs.folder import read_lines
from coevolve.types import Sampling
from gloo import Gloo

pytestmark = pytest.mark.slow

FULL = {"learning_rate": 1e-2, "compute": "torch"}
BY_NCCL = [SIZE, INIT, START, UPDATE, FINISH, END, "/reset_prefix_cache"]
BY_IPC = [INIT, START, UPDATE, FINISH, END, "/reset_prefix_cache"]


@pytest.fixture
def fake(micro_model: str) -> Iterator[FakeServer]:
    found = FakeServer(micro_model)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of NCCL; and in place of the handles of CUDA, the tensors themselves."""
    monkeypatch.setattr(server, "Nccl", Gloo)

    def handles(tensors: Any) -> str:
        return base64.b64encode(pickle.dumps(list(tensors))).decode()

    monkeypatch.setattr(transfer, "_handles", handles)


@pytest.mark.parametrize(("way", "routes"), [("nccl", BY_NCCL), ("ipc", BY_IPC)])
def test_a_training_whose_weights_are_sent_passes_the_gate(
    way: Any, routes: list[str], fake: FakeServer, micro_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "PIECE", 1 << 14)
    engine = ServerEngine(url=fake.url, seconds=20.0, transfer=way)
    policies = {"ann": PolicySpec(micro_model, **FULL)}
    trainer = toy(micro_model, roles=("pioneer",), policies=policies, engine=engine, workers=False)
    for i in range(3):
        line = trainer.step(i)
        assert line["agents/ann/drift"] < 1e-5
        assert line["agents/ann/grad_norm"] > 0
    asked = [route for route, _ in fake.asked if route in {*BY_NCCL, "/collective_rpc"}]
    once = [route for i, route in enumerate(asked) if i == 0 or route != asked[i - 1]]
    assert once == routes * 4  # at the start, and after each step
    pieces = asked.count(UPDATE) // 4
    assert (pieces > 1) is (way == "ipc")
    trainer.close()


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("bfloat16", 0.02)])
@pytest.mark.parametrize("way", ["nccl", "ipc"])
def test_what_is_left_for_gpus_runs_against_the_mock_server(way: Any, dtype: Any, bound: float) -> None:
    """The body of ``server/test_vllm_gpu.py``; and weights that do not arrive are far outside its bounds."""
    fake = FakeServer(MODEL)
    engine = ServerEngine(url=fake.url, seconds=60.0, transfer=way)
    engine.sleeps = way == "ipc"
    trainer = training(engine, "ann", spec=PolicySpec(MODEL, device="cpu", dtype=dtype, learning_rate=1e-3))
    try:
        check_steps(trainer, range(2), bound)
        engine.rest()
        assert fake.sleeps is engine.sleeps
        check_steps(trainer, [2], bound)
        fake.forgets = True
        if dtype == "float32":
            trainer.step(3)
            words, step = "its turns were not sampled by the weights that learn", 4
        else:
            words, step = "took these weights and did not load them", 3  # at the publish
        with pytest.raises(ValueError, match=words) as told:
            trainer.step(step)
        print(told.value)
    finally:
        trainer.close()
        fake.close()


def test_pieces_are_all_weights_in_order_of_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PIECE", 40)
    weights = {name: torch.zeros(size) for name, size in {"a": 5, "b": 5, "c": 1, "d": 30, "e": 9}.items()}
    assert [[name for name, _ in piece] for piece in transfer._pieces(weights)] == [["a", "b"], ["c"], ["d"], ["e"]]


def test_weights_arrive_in_the_dtype_of_the_server(
    fake: FakeServer, build_policy: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, came, received = build_policy(**FULL, dtype="bfloat16"), list[dict[str, Any]](), fake.received

    def noted(info: Any) -> dict[str, Any]:
        came.append(received(info))
        return came[0]

    monkeypatch.setattr(fake, "received", noted)
    engine = ServerEngine(url=fake.url, seconds=20.0, transfer="nccl")
    engine.publish([policy.published(0)])
    state = checkpoint_tensors(policy.weights.base.causal)
    assert list(came[0]) == list(state) and len(state) > 10
    assert all(came[0][name].dtype == torch.bfloat16 for name in state)
    assert all(torch.equal(came[0][name], x.bfloat16()) for name, x in state.items())
    engine.close()


@pytest.mark.parametrize("tied", [True, False])
def test_names_are_those_of_a_checkpoint_each_tensor_once(tied: bool, tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "vocab_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, tie_word_embeddings=tied))
    model.save_pretrained(tmp_path)
    found, written = checkpoint_tensors(model), load_file(tmp_path / "model.safetensors")
    assert found.keys() == written.keys()
    assert all(torch.equal(found[name], x) for name, x in written.items())
    assert ("lm_head.weight" in found) is not tied


def test_a_model_whose_checkpoints_have_other_tensors_is_refused() -> None:
    """Its experts are one tensor in memory, and one each in files."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2}
    with pytest.raises(ValueError, match="MixtralForCausalLM has other tensors in memory than in a checkpoint"):
        checkpoint_tensors(MixtralForCausalLM(MixtralConfig(**sizes, **heads)))


def test_a_server_that_fails_is_told_and_has_to_be_started_again(fake: FakeServer, build_policy: Build) -> None:
    """Not at the deadline, though the group waits for a worker that never comes; vLLM would count what had arrived to
    the next transfer."""
    policy, engine = build_policy(**FULL), ServerEngine(url=fake.url, seconds=30.0, transfer="nccl")
    fake.mishaps, begun = ["broken"], time.monotonic()
    with pytest.raises(ShortageError, match=r"policy 'a', version 0: vLLM .* failed: /update_weights answers 500, "):
        engine.publish([policy.published(0)])
    assert time.monotonic() - begun < 20
    with pytest.raises(ShortageError, match=r"may have half of the weights of a transfer that failed; start it again"):
        engine.publish([policy.published(0)])


def test_a_server_of_ours_that_fails_is_started_again(
    fake: FakeServer, build_policy: Build, micro_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it answers."""
    other, closed = FakeServer(micro_model), list[bool]()
    urls = iter([fake.url, other.url])

    def serve(*given: Any) -> Any:
        return SimpleNamespace(ended=None, close=closed.append), next(urls)

    monkeypatch.setattr(server, "serve", serve)
    fake.mishaps = ["broken"]
    engine = ServerEngine(start={}, seconds=30.0, transfer="nccl")
    engine.publish([build_policy(**FULL).published(0)])
    assert closed == [True] and engine.url == other.url  # with its log kept
    assert len(engine.generate({"a": make_says([[5, 6]], Sampling(5))})["a"]) == 1
    assert FINISH not in {route for route, _ in fake.asked} and FINISH in {route for route, _ in other.asked}
    engine.close()
    other.close()


def test_ranks_that_are_lost_in_a_transfer_are_no_fault_of_the_server(
    fake: FakeServer, build_policy: Build, micro_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training goes back to a checkpoint, whose publish starts a server of ours again: it may have half of the
    weights."""
    other, closed = FakeServer(micro_model), list[bool]()
    urls = iter([fake.url, other.url])

    def serve(*given: Any) -> Any:
        return SimpleNamespace(ended=None, close=closed.append), next(urls)

    def lost(send: Any) -> None:
        raise RanksLostError("rank 1 is lost")

    monkeypatch.setattr(server, "serve", serve)
    engine, published = ServerEngine(start={}, seconds=30.0, transfer="nccl"), build_policy(**FULL).published(0)
    with pytest.raises(RanksLostError, match="rank 1 is lost"):
        engine.publish([dataclasses.replace(published, send=lost)])
    assert not closed
    engine.publish([published])
    assert closed == [True] and FINISH in {route for route, _ in other.asked}
    engine.close()
    other.close()


def test_a_server_that_leaves_tensors_is_told(
    fake: FakeServer, build_policy: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, engine = build_policy(**FULL), ServerEngine(url=fake.url, seconds=2.0, transfer="nccl")
    monkeypatch.setattr("over_gloo.WAIT", timedelta(seconds=2))  # else the server's thread outlives this test
    monkeypatch.setattr(Gloo, "broadcast", lambda self, x: time.sleep(5))
    closed = list[Gloo]()
    monkeypatch.setattr(Gloo, "close", lambda self: closed.append(self))
    with pytest.raises(
        ShortageError, match=r"policy 'a', version 0: .* failed: (it did not take all|/update_weights:)"
    ):
        engine.publish([policy.published(0)])
    assert len(closed) == 1


def test_a_server_that_does_not_join_is_told(
    fake: FakeServer, build_policy: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, engine = build_policy(**FULL), ServerEngine(url=fake.url, seconds=3.0, transfer="nccl")
    monkeypatch.setattr("over_gloo.WAIT", timedelta(seconds=2))
    monkeypatch.setattr(Gloo, "open", lambda self, world, device: time.sleep(5))
    with pytest.raises(ShortageError, match=rf"policy 'a', version 0: .* failed: (it did not join within 3 s|{INIT}:)"):
        engine.publish([policy.published(0)])


def test_what_cannot_be_sent_is_refused(fake: FakeServer, build_policy: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build_policy(**FULL)
    with pytest.raises(ValueError, match=r"policy 'a': engine\.transfer is nccl, and its learner cannot send weights"):
        ServerEngine(url=fake.url, transfer="nccl").publish([dataclasses.replace(policy.published(0), send=None)])
    routes, fake.routes = fake.routes, tuple(route for route in fake.routes if route != INIT)
    with pytest.raises(
        ValueError, match=rf"has no route {INIT}: start it with VLLM_SERVER_DEV_MODE=1 \(and with --wei"
    ):
        ServerEngine(url=fake.url, transfer="nccl").publish([policy.published(0)])
    fake.routes = routes
    monkeypatch.setattr(Gloo, "device", "cuda")
    for way in ("nccl", "ipc"):
        engine = ServerEngine(url=fake.url, seconds=5.0, transfer=way)  # type: ignore[arg-type]
        with pytest.raises(
            ValueError, match=rf"policy 'a', .*: engine\.transfer is {way}, which sends from GPU to GPU"
        ):
            engine.publish([policy.published(0)])
    assert {route for route, _ in fake.asked} <= {"/version"}


def test_without_its_package_nccl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nccl.core", None)
    with pytest.raises(
        ValueError, match=r"needs the package nccl4py \(.*\); pip install 'coevolve\[nccl\]', or say transfer"
    ):
        transfer.Nccl()


@pytest.mark.parametrize(("way", "unpickles"), [("disk", False), ("nccl", False), ("ipc", True)])
def test_a_server_is_started_for_it(
    way: Any, unpickles: bool, build_policy: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[tuple[list[str], dict[str, str]]]()
    monkeypatch.setattr(started, "Child", lambda *given: calls.append(given))
    monkeypatch.setattr(started, "answers", lambda child, url: True)
    started.serve([build_policy(**FULL).published(0)], {}, 1.0, way)
    [(command, around)] = calls
    flag = f'--weight-transfer-config={{"backend": "{way}"}}'
    assert (flag in command) is (way != "disk")
    assert ("VLLM_ALLOW_INSECURE_SERIALIZATION" in around) is unpickles


def test_a_server_sleeps_while_learners_work(fake: FakeServer, build_policy: Build) -> None:
    policy, engine = build_policy(**FULL), ServerEngine(url=fake.url, seconds=20.0)
    engine.sleeps = True
    says = {"a": make_says([[5, 6]], Sampling(5))}
    engine.publish([policy.published(0)])
    for version in (1, 2):
        engine.generate(says)
        engine.rest()
        engine.rest()
        assert fake.sleeps
        engine.publish([policy.published(version)])
        assert not fake.sleeps
    engine.rest()
    assert len(engine.generate(says)["a"]) == 1  # in an evaluation nothing is published before
    routes = [route for route, _ in fake.asked if route in ("/sleep", "/wake_up")]
    assert routes == ["/sleep", "/wake_up"] * 3
    engine.close()


def test_who_sleeps_is_told_by_a_flag_and_does_not_sample_ahead(build_policy: Build) -> None:
    assert ServerEngine(start={"enable-sleep-mode": True}).sleeps
    assert not ServerEngine(start={}).sleeps and not ServerEngine(url="http://x").sleeps
    engine = ServerEngine(start={"enable_sleep_mode": True}, staleness=1)
    with pytest.raises(ValueError, match=r"with staleness servers sample while the learners work, and start\.enable"):
        engine.publish([build_policy(**FULL).published(0)])


def test_a_server_that_died_does_not_end_the_run_by_not_sleeping(
    fake: FakeServer, build_policy: Build, caplog: pytest.LogCaptureFixture
) -> None:
    """The next publish starts it again."""
    policy, engines = build_policy(**FULL), [ServerEngine(url=fake.url, seconds=5.0) for _ in range(2)]
    for engine in engines:
        engine.sleeps = True
        engine.publish([policy.published(0)])
    fake.routes = tuple(route for route in fake.routes if route != "/sleep")
    with pytest.raises(ValueError, match=r"/sleep\?level=1 is refused with 404"):  # a mistake is told
        engines[0].rest()
    fake.close()
    engines[1].rest()
    assert "it may be awake" in caplog.text


RECIPE = """
task: {toy}:Lucky
play: chain
roles: {{pioneer: ann}}
policies:
  ann: {{model: {model}, learning_rate: 1.0e-2, compute: torch, engine: {{name: vllm, url: "{url}", transfer: nccl}}}}
algorithm: magrpo
members: 4
sampling: {{max_new_tokens: 5}}
steps: 3
batch_size: 4
samples: 1
output_dir: {out}
learner: {{name: fsdp, ranks: 2, deadline: 240}}
"""


def test_ranks_send_what_a_server_samples(fake: FakeServer, micro_model: str, tmp_path: Path) -> None:
    """The first of two, each of which has a half of every tensor."""
    file, toy_file = tmp_path / "team.yaml", Path(__file__).parents[1] / "toy.py"
    file.write_text(RECIPE.format(toy=toy_file, model=micro_model, url=fake.url, out=tmp_path / "run"))
    assert cli.main(["train", str(file)]) == 0
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert len(lines) == 3 and all(line["agents/ann/drift"] < 1e-5 for line in lines)
    assert all(line["agents/ann/grad_norm"] > 0 for line in lines)
    asked = [route for route, _ in fake.asked]
    assert asked.count(FINISH) == 4 and "/collective_rpc" not in asked


def test_what_ranks_send_in_half_precision_has_to_arrive(
    fake: FakeServer, micro_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first of two tells what it sent."""
    file, toy_file = tmp_path / "team.yaml", Path(__file__).parents[1] / "toy.py"
    file.write_text(RECIPE.format(toy=toy_file, model=micro_model, url=fake.url, out=tmp_path / "run"))
    fake.forgets = True
    assert cli.main(["train", str(file), "policies.ann.dtype=bfloat16", "policies.ann.learning_rate=1e-5"]) == 2
    assert "policy 'ann', version 1: vLLM" in (said := capsys.readouterr().err)
    assert "took these weights and did not load them" in said


def test_ranks_whose_server_fails_stay(fake: FakeServer, micro_model: str) -> None:
    """The first one tells the others, who gather with it what is left; so the weights can be sent to another server."""
    other, spec = FakeServer(micro_model), PolicySpec(micro_model, **FULL)
    how = {"reference": False, "critic": False, "steps": 4, "seed": 0}
    learner = ShardedLearner("a", spec, starter("cpu", 2, None, False, 60.0), **how)
    fake.mishaps = ["broken"]
    try:
        with pytest.raises(ShortageError, match=r"policy 'a', version 0: vLLM .* failed: /update_weights answers 500"):
            ServerEngine(url=fake.url, seconds=20.0, transfer="nccl").publish([learner.published(0)])
        assert learner.ranks is not None
        engine = ServerEngine(url=other.url, seconds=20.0, transfer="nccl")
        engine.publish([learner.published(0)])
        assert len(engine.generate({"a": make_says([[5, 6]], Sampling(5))})["a"]) == 1
    finally:
        learner.close()
        other.close()
