"""The trainer, unchanged, sampling from a real vLLM for CPUs: weights arrive, keys decide, deaths are told."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from policy_cases import make_says, ragged
from server_cases import MODEL, check_steps, training

from coevolve import cli
from coevolve.engines import arrival, server
from coevolve.engines.local import LocalEngine
from coevolve.engines.server import ServerEngine
from coevolve.faults import ShortageError
from coevolve.interfaces import Published
from coevolve.models.load import load_causal_lm, load_tokenizer
from coevolve.models.spec import PolicySpec
from coevolve.runs.evaluated import evaluate_recipe
from coevolve.runs.folder import read_lines
from coevolve.types import Sampling
from gloo import Gloo

SMALL = {"max-model-len": 256, "max-num-seqs": 32, "enforce-eager": True, "devices": ""}
"""Of the machine; nothing that decides numbers."""


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.environ["COEVOLVE_VLLM"], prepend=os.pathsep)
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        yield


@pytest.fixture(scope="module")
def engine() -> Iterator[ServerEngine]:
    made, begun = ServerEngine(start=SMALL), time.perf_counter()
    trainer = training(made, "ann", "bob")
    print(f"\n{made.about}: {time.perf_counter() - begun:.1f} s with the learners")
    yield made
    trainer.close()


def test_two_adapters_learn_and_the_numbers_are_theirs(engine: ServerEngine) -> None:
    trainer = training(engine, "ann", "bob")
    check_steps(trainer, range(4), 1e-5)


def test_a_key_decides_a_turn_alone_and_among_others(engine: ServerEngine) -> None:
    says = make_says(ragged(16, seed=1), Sampling(24), policy="ann")
    together = engine.generate({"ann": says})["ann"]
    alone = [engine.generate({"ann": [say]})["ann"][0] for say in says]
    assert [turn.action_ids for turn in alone] == [turn.action_ids for turn in together]
    cold = make_says(ragged(16, seed=1), Sampling(24, temperature=0.7), policy="ann")
    assert [turn.action_ids for turn in engine.generate({"ann": cold})["ann"]] != [t.action_ids for t in together]


def test_greedy_turns_are_those_of_the_local_engine(engine: ServerEngine) -> None:
    """Drawn ones are not: a server has random numbers of its own."""
    says, local = make_says(ragged(16, seed=1), Sampling(24, temperature=0), policy="ann"), LocalEngine()
    for one in (local, engine):
        training(one, "ann")  # which publishes fresh adapters
    here, there = (one.generate({"ann": says})["ann"] for one in (local, engine))
    assert [turn.action_ids for turn in there] == [turn.action_ids for turn in here]


def test_two_runs_of_a_seed_are_alike(engine: ServerEngine) -> None:
    rewards = []
    for _ in range(2):
        trainer = training(engine, "ann", "bob")
        trainer.step(0)
        rewards.append([turn.action_ids for episode in trainer.episodes for turn in episode.turns])
    assert rewards[0] == rewards[1]


def test_a_publish_that_does_not_arrive_stops_the_run(engine: ServerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = training(engine, "ann", "bob")

    async def nothing(news: Sequence[Published], scores: Any) -> None:
        """Versions are noted, and the server keeps what it has."""

    monkeypatch.setattr(engine, "_take", nothing)
    trainer.step(0)
    with pytest.raises(ValueError, match="step 1: its turns were not sampled by the weights that learn") as told:
        trainer.step(1)
    print(told.value)


def test_a_step_that_is_sampled_ahead_is_of_the_version_before(engine: ServerEngine) -> None:
    """By the same server, which other weights come to before each rollout."""
    assert engine.url is not None
    ahead = ServerEngine(url=engine.url, staleness=1)
    trainer = training(ahead, "ann", "bob", mismatch="tis")
    try:
        for i in range(4):
            line = trainer.step(i)
            drift, kl = (
                max(line[f"agents/{name}/{key}"] for name in ("ann", "bob")) for key in ("drift", "mismatch/kl")
            )
            print(i, f"drift {drift:.1e}, kl {kl:.1e}", f"{line['time/generate']:.2f} s")
            versions = {turn.version for episode in trainer.episodes for turn in episode.turns}
            assert versions == {max(0, i - 1)}
            assert (drift < 1e-5) is (i == 0) is (abs(kl) < 1e-8)
    finally:
        trainer.close()


def workers(group: int) -> list[int]:
    """The server's engine processes."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            same = int((entry / "stat").read_text().rpartition(")")[2].split()[2]) == group
            if same and "EngineCore" in (entry / "cmdline").read_text():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_a_killed_worker_is_told_and_the_server_started_again(engine: ServerEngine) -> None:
    training(engine, "ann", "bob")  # whose weights the server has, whatever a test before has left
    says = {"ann": make_says(ragged(16, seed=1), Sampling(24), policy="ann")}
    well = [turn.action_ids for turn in engine.generate(says)["ann"]]
    assert engine.child is not None
    guest = ServerEngine(url=engine.url, seconds=60.0)
    guest.publish([engine.published["ann"]])
    [worker] = workers(engine.child.process.pid)
    os.kill(worker, signal.SIGKILL)
    begun = time.perf_counter()
    with pytest.raises(ShortageError, match="failed twice") as told:  # not by the deadline
        guest.generate(says)
    took = time.perf_counter() - begun
    print(f"told after {took:.1f} s: {told.value}")
    assert took < 5
    begun = time.perf_counter()
    assert [turn.action_ids for turn in engine.generate(says)["ann"]] == well
    print(f"started again and answered after {time.perf_counter() - begun:.1f} s")


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The small model, with an output layer of its own."""
    folder, model = tmp_path_factory.mktemp("untied"), load_causal_lm(MODEL)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.save_pretrained(folder)
    load_tokenizer(MODEL).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("transfer", ["disk", "nccl"])
def test_whole_weights_arrive(transfer: Any, untied: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the disk; and by vLLM's own transfer, where gloo stands for NCCL (``over_gloo``)."""
    monkeypatch.setattr(server, "Nccl", Gloo)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "over_gloo"))
    made = ServerEngine(start=SMALL, transfer=transfer)
    trainer = training(made, "ann", spec=PolicySpec(untied, learning_rate=1e-3))
    try:
        check_steps(trainer, range(4), 1e-5)
    finally:
        trainer.close()


HALF = {"dtype": "bfloat16", "learning_rate": 1e-6}
"""An update of it moves log-probabilities by less than they differ between vLLM and the learner."""


@pytest.mark.parametrize("transfer", ["disk", "nccl"])
def test_half_precision_weights_arrive(transfer: Any, untied: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's turn of the fixed prompt is another one after every publish, and the same for the same weights."""
    monkeypatch.setattr(server, "Nccl", Gloo)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "over_gloo"))
    made = ServerEngine(start=SMALL, transfer=transfer)
    trainer = training(made, "ann", spec=PolicySpec(untied, **HALF))
    try:
        answers = [made._answers["ann"]]
        for i in range(4):
            print(i, f"drift {trainer.step(i)['agents/ann/drift']:.1e}")
            answers.append(made._answers["ann"])
        for before, now in pairwise(answers):
            apart = [a != b for a, b in zip(before.sample.logps, now.sample.logps, strict=True)]
            far = arrival.moved(before.kept, now.kept)
            print(f"{sum(apart)} of {len(apart)} of the server's numbers are new, weights moved by {far:.1e}")
            assert before.sample != now.sample and far > 1e-7
        trainer.publish(["ann"], 4)
        assert made._answers["ann"] is answers[-1]
    finally:
        trainer.close()


def test_half_precision_weights_that_do_not_arrive_stop_the_run(untied: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first publish; the gate would let them pass."""
    made = ServerEngine(start=SMALL)
    trainer = training(made, "ann", spec=PolicySpec(untied, **HALF))

    async def nothing(calls: Any, whose: str, seconds: float | None = None) -> None:
        """The server keeps what it has."""

    monkeypatch.setattr(made, "_posted", nothing)
    try:
        with pytest.raises(ValueError, match=r"version 1: vLLM .* took these weights and did not load them") as told:
            trainer.step(0)
        print(told.value)
    finally:
        trainer.close()


@pytest.mark.parametrize("transfer", ["disk", "nccl"])
def test_whole_weights_with_a_tied_head_are_stopped_by_the_gate(transfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On processors vLLM keeps the output layer of before; it says that all went well."""
    monkeypatch.setattr(server, "Nccl", Gloo)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "over_gloo"))
    made = ServerEngine(start=SMALL, transfer=transfer)
    trainer = training(made, "ann", spec=PolicySpec(MODEL, learning_rate=1e-3))
    try:
        print(trainer.step(0)["agents/ann/drift"])
        with pytest.raises(ValueError, match="its turns were not sampled by the weights that learn") as told:
            trainer.step(1)
        print(told.value)
    finally:
        trainer.close()


RECIPE = """
task: sentiment
play: chain
roles: {pioneer: ann}
cast: fixed
policies: {ann: {learning_rate: 1.0e-3}}
algorithm: {name: ppo, eta: 0.1}
sampling: {max_new_tokens: 12}
batch_size: 8
workers: false
"""


SERVED = f"engine={json.dumps({'name': 'vllm', 'start': SMALL})}"
PAIR = ["roles={pioneer: ann, observer: bob}", "policies.bob={learning_rate: 1.0e-3}", "policies.*.weights=lora"]


def recipe(folder: Path) -> str:
    (folder / "team.yaml").write_text(RECIPE)
    return str(folder / "team.yaml")


def test_start_weights_earn_the_same_greedy_rewards_on_a_server(tmp_path: Path) -> None:
    """``coevolve eval`` of one recipe with either engine; drawn turns differ by the random numbers."""
    file, found = recipe(tmp_path), []
    for engine in ("engine=local", SERVED):
        words = [engine, *PAIR, f"policies.*.model={MODEL}"]
        rows = evaluate_recipe(Path(file), words, problems=32, trust_code=True)["rows"]
        found.append([(row["role"], row["policy"], row["reward"]) for row in rows if row["decoding"] == "greedy"])
    print(found[1])
    assert len(found[0]) >= 2 and len({reward for *_, reward in found[0]}) > 1
    assert [one[:2] for one in found[1]] == [one[:2] for one in found[0]]
    assert [one[2] for one in found[1]] == pytest.approx([one[2] for one in found[0]], abs=1e-6)


@pytest.mark.parametrize("team", ["one", "a pair", "a pair of adapters"])
def test_ranks_that_ray_places_learn_what_servers_sample(team: str, untied: str, tmp_path: Path) -> None:
    """Corrected as in the packaged recipes. Full weights have a server for each policy, adapters one for both."""
    pytest.importorskip("ray", reason="placing ranks needs the package ray (coevolve[cluster])")
    more = {
        "one": [SERVED],
        "a pair": [*PAIR[:2], *(f"policies.{name}.{SERVED}" for name in ("ann", "bob"))],
        "a pair of adapters": [SERVED, *PAIR],
    }[team]
    count = 2 if team == "one" else 1  # for each policy, on two cores
    ranks = f"learner={{name: fsdp, ranks: {count}, cluster: ray, deadline: 600}}"
    corrected = ["algorithm.mismatch=tis", f"policies.*.model={untied}", "steps=3", f"output_dir={tmp_path / 'run'}"]
    words = [ranks, *more, *corrected]
    assert cli.main(["train", recipe(tmp_path), *words]) == 0
    found = read_lines(tmp_path / "run" / "metrics.jsonl")
    for line in found:
        print(
            {
                key: line[key]
                for key in line
                if key.endswith(("drift", "mismatch/max", "grad_norm", "time/publish", "time/step"))
            }
        )
        assert all(line[key] < 1e-5 for key in line if key.endswith("/drift"))
        assert all(line[key] > 0 for key in line if key.endswith("/grad_norm"))
        assert line["agents/ann/mismatch/max"] == pytest.approx(1, abs=1e-3)
    assert len(found) == 3 and ("agents/bob/drift" in found[0]) is (team != "one")
