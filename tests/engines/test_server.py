"""Sampling by a server: the turns are the local engine's, and whatever a server may do wrong is told in one line."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx2
import pytest
import torch
from fake_server import CANNED, FakeServer
from policy_cases import EOS, Build, make_batch, make_rule, make_says, make_targets, ragged
from safetensors.torch import save_file
from toy import toy, without_times

from coevolve import cli
from coevolve.algorithms import maac
from coevolve.engines import arrival, flight, server, started
from coevolve.engines.arrival import Answer
from coevolve.engines.base import Sample
from coevolve.engines.local import LocalEngine
from coevolve.engines.routed import RoutedEngine
from coevolve.engines.routes import OPENAI, SGLANG, VLLM, Routes
from coevolve.engines.server import ServerEngine
from coevolve.engines.started import check_started, flags_of, serve
from coevolve.faults import ShortageError
from coevolve.learners.local import LocalLearner
from coevolve.models.load import load_config
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.play import Roles, score
from coevolve.plays import rounds
from coevolve.rollout import Stage, rollout
from coevolve.runs.folder import read_lines
from coevolve.runtime.beside import Beside
from coevolve.runtime.child import Child
from coevolve.runtime.requests import FailedError, _failed, asked, is_well
from coevolve.types import Case, Problem, Sampling, Turn

pytestmark = pytest.mark.slow

GIB = 1 << 30
LORA = {"weights": "lora", "lora": LoraSpec(4, 4), "learning_rate": 1e-2, "compute": "torch"}
FULL = {"learning_rate": 1e-2, "compute": "torch"}
Serve = Callable[..., ServerEngine]


@pytest.fixture
def fake(micro_model: str) -> Iterator[FakeServer]:
    found = FakeServer(micro_model)
    yield found
    found.close()


@pytest.fixture
def served(fake: FakeServer) -> Iterator[Serve]:
    """served(routes, settings) -> an engine on the fake server."""
    made: list[ServerEngine] = []

    def one(routes: Routes = VLLM, **settings: Any) -> ServerEngine:
        made.append(ServerEngine(routes, url=fake.url, **{"seconds": 20.0, **settings}))
        return made[-1]

    yield one
    for engine in made:
        engine.close()


def test_turns_are_the_local_engines(served: Serve, fake: FakeServer, build_policy: Build) -> None:
    policy, engine = build_policy(**LORA), served()
    asked = {"a": make_says(ragged(7, seed=3), Sampling(9))}
    for version in range(2):
        engine.publish([policy.published(version)])
        here = LocalEngine({"a": policy}).generate(asked)["a"]
        there = engine.generate(asked)["a"]
        assert [(t.action_ids, t.finished, t.text, t.version) for t in there] == [
            (t.action_ids, t.finished, t.text, t.version) for t in here
        ]
        assert there[0].logps == pytest.approx(here[0].logps, abs=1e-5)
        batch = make_batch(8, seed=0)
        policy.update(batch, make_targets(batch, 1), make_rule(), 0)
    assert len(fake.adapters) == 1  # the one before was unloaded
    assert engine.about == f"vLLM 0.0-fake at {fake.url}"
    engine.close()
    assert fake.adapters == {}
    assert engine.generate(asked)["a"] != there  # the weights of now, under another name: closed engines come back


@pytest.mark.parametrize("routes", [VLLM, SGLANG])
def test_a_turn_ends_at_its_end_of_sequence(routes: Routes, served: Serve, build_policy: Build) -> None:
    policy, engine = build_policy(**LORA), served(routes)
    engine.publish([policy.published(0)])
    turns = engine.generate({"a": make_says(ragged(24, seed=3), Sampling(30))})["a"]
    assert {turn.finished for turn in turns} == {True, False}
    assert min(len(turn.action_ids) for turn in turns if turn.finished) < 30
    assert all(turn.finished or len(turn.action_ids) == 30 for turn in turns)


def team(model: str, **settings: Any) -> dict[str, PolicySpec]:
    return {"ann": PolicySpec(model, **settings), "bob": PolicySpec(model, **settings)}


def test_a_training_by_a_server_is_the_same(served: Serve, fake: FakeServer, micro_model: str) -> None:
    steps = []
    for engine in (LocalEngine(), served()):
        trainer = toy(micro_model, policies=team(micro_model, **LORA), engine=engine, workers=False)
        steps.append([without_times(trainer.step(i)) for i in range(3)])
    for here, there in zip(*steps, strict=True):
        drifts = {key for key in here if key.endswith("drift")}
        assert {k: v for k, v in here.items() if k not in drifts} == pytest.approx(
            {k: v for k, v in there.items() if k not in drifts}, rel=1e-3, abs=1e-4
        )
        assert drifts and all(there[key] < 1e-5 for key in drifts)
    names = [body["lora_name"] for route, body in fake.asked if route == VLLM.load]
    assert len(names) == len(set(names)) == 8  # two at the start, two a step
    assert len(fake.adapters) == 2


@pytest.mark.parametrize(("routes", "how"), [(VLLM, FULL), (SGLANG, FULL), (SGLANG, LORA)])
def test_other_servers_and_full_weights_pass_the_gate(
    routes: Routes, how: dict[str, Any], served: Serve, micro_model: str
) -> None:
    policies = {"ann": PolicySpec(micro_model, **how)}
    trainer = toy(micro_model, roles=("pioneer",), policies=policies, engine=served(routes), workers=False)
    for i in range(2):
        assert trainer.step(i)["agents/ann/drift"] < 1e-5


def test_a_cache_in_use_is_emptied_later_or_told(served: Serve, fake: FakeServer, build_policy: Build) -> None:
    """vLLM says 200 and success: false while a block of it is in use, and what it keeps is of the weights before."""
    policy, engine, fake.busy = build_policy(**FULL), served(), 2
    engine.publish([policy.published(0)])
    assert [route for route, _ in fake.asked].count("/reset_prefix_cache") == 3
    fake.busy, engine.seconds = 1000, 1.0
    with pytest.raises(ShortageError, match=r"policy 'a', version 1: vLLM .* did not take it within 1 s"):
        engine.publish([policy.published(1)])


@pytest.mark.parametrize(
    ("weights", "listed", "settings", "warned"),
    [
        ("frozen", "meta-llama/Llama-3.1-8B", {}, True),
        ("frozen", "/elsewhere/{name}", {}, False),
        ("frozen", None, {}, False),
        ("frozen", "meta-llama/Llama-3.1-8B", {"model": "base"}, False),  # who names it means it
        ("lora", "meta-llama/Llama-3.1-8B", {}, False),  # whose turns the gate judges
    ],
)
def test_a_server_that_has_another_model_than_a_frozen_policy_is_told(
    weights: str, listed: str | None, settings: dict[str, Any], warned: bool,
    served: Serve, fake: FakeServer, build_policy: Build, micro_model: str, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    root = listed and listed.replace("{name}", Path(micro_model).name.upper())
    fake.models = 200, {"data": [{"id": "base", "parent": None, "root": root}]}
    served(**settings).publish([build_policy(weights=weights, compute="torch").published(0)])
    assert ("of another tokenizer and turns mean nothing" in caplog.text) is warned
    assert ("policy 'a' is frozen" in caplog.text and f"serves {root}" in caplog.text) is warned


@pytest.mark.parametrize("how", [FULL, LORA])
def test_weights_that_did_not_arrive_stop_the_run(
    how: dict[str, Any], served: Serve, fake: FakeServer, micro_model: str
) -> None:
    fake.forgets = True
    policies = {"ann": PolicySpec(micro_model, **how)}
    trainer = toy(micro_model, roles=("pioneer",), policies=policies, engine=served(), workers=False)
    trainer.step(0)
    learner = trainer.policies["ann"]
    assert isinstance(learner, LocalLearner)
    before = [parameter.clone() for parameter in learner.parameters]
    with pytest.raises(ValueError, match="step 1: its turns were not sampled by the weights that learn, version 1"):
        trainer.step(1)
    assert all(map(torch.equal, before, learner.parameters))


HALF = {"dtype": "bfloat16", "compute": "torch"}


def in_half(served: Serve, model: str, rate: float) -> Any:
    policies = {"ann": PolicySpec(model, learning_rate=rate, **HALF)}
    return toy(model, roles=("pioneer",), policies=policies, engine=served(), workers=False)


@pytest.mark.parametrize("rate", [1e-2, 1e-5])
def test_half_precision_weights_that_did_not_arrive_stop_the_run_at_the_publish(
    rate: float, served: Serve, fake: FakeServer, micro_model: str
) -> None:
    """Also those that the gate does not see."""
    fake.forgets = True
    words = (
        r"policy 'ann', version 1: vLLM .* took these weights and did not load them: .* as with version 0, to the last"
    )
    with pytest.raises(ValueError, match=words):
        in_half(served, micro_model, rate).step(0)


def test_half_precision_weights_that_arrive_are_taken_in_every_step(served: Serve, micro_model: str) -> None:
    trainer = in_half(served, micro_model, 1e-3)
    for i in range(3):
        assert trainer.step(i)["agents/ann/grad_norm"] > 0


def test_weights_that_an_update_did_not_move_need_not_arrive(served: Serve, fake: FakeServer, micro_model: str) -> None:
    fake.forgets = True
    trainer = in_half(served, micro_model, 1e-30)
    for i in range(2):
        trainer.step(i)


def answer(version: int, weight: float = 1.0, logp: float = -1.0) -> Answer:
    return Answer(Sample([5, 6], [logp, -2.0], finished=False), {"q": torch.full((2, 2), weight)}, version)


def test_while_a_server_answers_alike_weights_may_move_by_a_millionth() -> None:
    first = answer(0)
    assert arrival.checked("here", None, first) is first
    assert arrival.checked("here", first, new := answer(1, 9.0, logp=-1.5)) is new
    assert arrival.checked("here", first, answer(1)) is first  # nothing has moved
    assert arrival.checked("here", first, answer(1, 1 + 2**-21)) is first  # about 4.8e-7
    with pytest.raises(ValueError, match=r"here took .* as with version 0, .* moved by 1.9e-06 of their size; start"):
        arrival.checked("here", first, answer(2, 1 + 2**-19))  # about 1.9e-6 since version 0
    unknown = answer(4, 9.0, logp=math.nan)  # which the server's turns are refused for
    assert arrival.checked("here", first, unknown) is unknown
    assert arrival.checked("here", unknown, unknown) is unknown


def test_how_far_weights_moved_is_that_of_the_middle_matrix() -> None:
    before = {name: torch.tensor([[3.0, 4.0]]) for name in "abc"} | {"zeros": torch.zeros(1, 2)}
    now = {"a": torch.tensor([[3.0, 4.5]]), "b": torch.tensor([[3.0, 9.0]]), "c": torch.tensor([[3.0, 4.0]])}
    assert arrival.moved(before, now) == pytest.approx(0.1)  # of .1, 1 and 0
    assert arrival.moved(before, {**now, "zeros": torch.ones(1, 2)}) == pytest.approx(0.1)
    assert arrival.moved(before, {}) == 0.0


def test_the_first_weights_of_each_matrix_are_kept_as_a_server_in_bfloat16_has_them(tmp_path: Path) -> None:
    wide = torch.arange(30_000).reshape(3, 10_000) + 0.3
    weights = {"wide": wide, "small": torch.tensor([[1 / 3]]), "bias": torch.ones(5), "one": torch.tensor(2.0)}
    found = arrival.kept(weights.items())
    assert {name: list(x.shape) for name, x in found.items()} == {"wide": [1 << 14], "small": [1]}
    assert torch.equal(found["wide"], wide.flatten()[: 1 << 14].bfloat16()) and found["small"].item() == 0.333984375
    save_file(weights, tmp_path / "model.safetensors")
    read = arrival.kept_of(tmp_path)
    assert read.keys() == found.keys() and all(torch.equal(read[name], found[name]) for name in read)
    assert arrival.kept_of(tmp_path / "nothing") == {}


def test_a_short_context_leaves_room_for_the_question(build_policy: Build) -> None:
    new = build_policy(**HALF).published(0)
    for context, prompt, most in ((1000, 8, 32), (20, 8, 12), (5, 4, 1)):
        asked, say = arrival.question(new, context)
        assert (len(say.prompt_ids), say.sampling.length_range[1], asked.eos) == (prompt, most, frozenset())


@pytest.mark.parametrize(
    ("how", "asks"), [(HALF, True), ({**HALF, "dtype": "float32"}, False), ({**LORA, "dtype": "bfloat16"}, False)]
)
def test_a_server_is_asked_only_where_the_gate_may_not_see_it(
    how: dict[str, Any], asks: bool, served: Serve, fake: FakeServer, build_policy: Build
) -> None:
    served().publish([build_policy(**how).published(0)])
    turns = [body for route, body in fake.asked if route == VLLM.generate]
    assert len(turns) == asks
    if asks:
        assert turns[0]["sampling_params"]["stop_token_ids"] == [] and len(turns[0]["token_ids"]) < 16


def test_who_waits_for_a_server_is_named(
    served: Serve,
    fake: FakeServer,
    build_policy: Build,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    team = [dataclasses.replace(build_policy(**LORA).published(0), name=name) for name in ("ann", "bob")]
    engine = served()
    engine.publish(team)
    engine.sleeps = True
    answer = fake.answer

    def broken(route: str, body: Any) -> tuple[int, Any]:
        return (500, "no") if route in ("/sleep", "/wake_up") else answer(route, body)

    monkeypatch.setattr(fake, "answer", broken)
    engine.rest()
    assert "policies 'ann', 'bob', sending their server to sleep: vLLM" in caplog.text
    with pytest.raises(ShortageError, match=r"^policies 'ann', 'bob', waking their server: vLLM .* failed"):
        engine.generate({"ann": make_says([[5, 6]], Sampling(5), policy="ann")})


def test_a_publish_that_was_forgotten_stops_the_run(served: Serve, micro_model: str) -> None:
    engine = served()
    trainer = toy(micro_model, policies=team(micro_model, **LORA), engine=engine, workers=False)
    engine.publish = lambda news: None  # type: ignore[method-assign]
    trainer.step(0)
    with pytest.raises(ValueError, match="version 1 of the weights would learn from 8 turns of version 0"):
        trainer.step(1)


LOGPS = {"content": [{"logprob": -1.0}] * 3}
GIVEN_UP, SHORT = (
    {"choices": [{"token_ids": [7, 8, 9], "logprobs": LOGPS, "finish_reason": reason}]}
    for reason in ("abort", "length")
)
ASKED_AGAIN = ["500", "reset", "half", "no json", '{"choices": []}', json.dumps(GIVEN_UP)]


@pytest.mark.parametrize("mishap", ASKED_AGAIN)
def test_a_request_that_fails_is_made_again_once(
    mishap: str, served: Serve, fake: FakeServer, build_policy: Build
) -> None:
    policy, engine, asked = build_policy(**LORA), served(), {"a": make_says([[5, 6]], Sampling(5))}
    engine.publish([policy.published(3)])
    well = engine.generate(asked)
    fake.mishaps = [mishap]
    assert engine.generate(asked) == well
    fake.mishaps = [mishap, mishap]
    with pytest.raises(ShortageError, match=r"^policy 'a', version 3, problem 'p0': vLLM .* failed twice: ") as told:
        engine.generate(asked)
    assert "\n" not in str(told.value) and fake.mishaps == []


@pytest.mark.parametrize("most", [40, 2])
def test_a_turn_that_is_not_as_long_as_was_asked_is_told(
    most: int, served: Serve, fake: FakeServer, build_policy: Build
) -> None:
    engine, inbox = served(), SimpleQueue[Callable[[], None]]()
    engine.publish([build_policy(**LORA).published(3)])
    [say] = make_says([[5, 6]], Sampling(most))
    said = rf"problem 'p0': the engine sampled 3 ids, finished: False, where {most} were asked for; want so many, or"
    fake.mishaps = [json.dumps(SHORT)] * 2
    with pytest.raises(ValueError, match=said):
        engine.generate({"a": [say]})
    with engine.overlapped(inbox) as ask:
        ask(say, lambda turn: None)
        with pytest.raises(ValueError, match=said):
            inbox.get()()


def test_what_comes_behind_an_end_of_sequence_is_told(served: Serve, fake: FakeServer, build_policy: Build) -> None:
    """Whatever a server was asked: the last id alone does not tell."""
    engine, [say] = served(), make_says([[5, 6]], Sampling(3))
    engine.publish([build_policy(**LORA).published(3)])
    for ids in ([7, EOS, 9], [7, EOS, EOS]):
        fake.mishaps = [json.dumps({"choices": [{"token_ids": ids, "logprobs": LOGPS, "finish_reason": "length"}]})]
        with pytest.raises(
            ValueError, match=r"problem 'p0': the engine sampled on behind an end of sequence, id 1; want"
        ):
            engine.generate({"a": [say]})


@pytest.mark.parametrize(
    ("routes", "answer"),
    [
        (VLLM, GIVEN_UP),
        (SGLANG, {"meta_info": {"output_token_logprobs": [[-1.0, 7, None]], "finish_reason": {"type": "abort"}}}),
        (OPENAI, {"choices": [{"text": "a b", "finish_reason": "abort"}]}),
    ],
)
def test_what_a_server_gave_up_is_no_turn(routes: Routes, answer: Any, build_policy: Build) -> None:
    with pytest.raises(FailedError, match=r"it gave the turn up \(finish_reason 'abort'\)"):
        routes.reads(answer, build_policy(**LORA).published(0))


@pytest.mark.parametrize("model", [None, "base"])
def test_what_is_too_long_for_the_server_is_told_before_it_is_asked(
    model: str | None, served: Serve, fake: FakeServer, build_policy: Build
) -> None:
    listed = [{"id": "a", "parent": "base", "max_model_len": 9}, {"id": "base", "parent": None, "max_model_len": 20}]
    fake.models = 200, {"data": listed}
    engine = served(model=model)
    engine.publish([build_policy(**LORA).published(3)])
    assert engine.context("a") == 20
    fits, too_long = make_says([[5] * 15, [5] * 16], Sampling(5))
    assert len(engine.generate({"a": [fits]})["a"]) == 1
    fake.asked.clear()
    with pytest.raises(ValueError, match=r"16 tokens and 5 new ones exceed the max_model_len of 20 of vLLM .* at http"):
        engine.generate({"a": [too_long]})
    assert fake.asked == []


def test_sglang_keeps_two_tokens_of_its_context(served: Serve, fake: FakeServer, build_policy: Build) -> None:
    fake.models = 200, {"data": [{"id": "base", "parent": None, "max_model_len": 20}]}
    engine = served(SGLANG)
    engine.publish([build_policy(**LORA).published(3)])
    assert engine.context("a") == 18


def test_a_log_probability_that_vllm_could_not_write_is_no_number(build_policy: Build) -> None:
    logps = {"content": [{"logprob": -1.5}, {"logprob": -9999.0}]}
    answer = {"choices": [{"token_ids": [5, 6], "logprobs": logps, "finish_reason": "length"}]}
    first, second = VLLM.reads(answer, build_policy(**LORA).published(0)).logps
    assert first == -1.5 and math.isnan(second)


def test_what_a_server_refuses_or_leaves_is_told(served: Serve, fake: FakeServer, build_policy: Build) -> None:
    policy, engine, asked = build_policy(**LORA), served(), {"a": make_says([[5, 6], [7]], Sampling(5))}
    engine.publish([policy.published(3)])
    fake.mishaps = ["400"]
    with pytest.raises(
        ValueError, match=r"^policy 'a', version 3, problem 'p\d': vLLM .* refused with 400, 'prompt too"
    ):
        engine.generate(asked)
    fake.mishaps, engine.seconds = ["hang", "hang"], 0.5
    with pytest.raises(
        ShortageError, match=r"^policy 'a', version 3, problem 'p[01]': .* left [12] of 2 turns .* 0.5 s$"
    ):
        engine.generate(asked)
    fake.adapters.clear()
    engine.seconds = 20.0
    lost = r"version 3, .* no longer has the adapter .* refused with 404, .*`a@\w+-0-3` does not exist.* with --resume$"
    with pytest.raises(ShortageError, match=lost):  # as of a server that its supervisor has started again
        engine.generate(asked)
    engine.publish([policy.published(3)])  # which removes what is not there
    assert len(engine.generate(asked)["a"]) == 2
    fake.close()
    with pytest.raises(ShortageError, match=r"version 3, .* failed twice: /inference/v1/generate: Connect"):
        engine.generate(asked)
    with pytest.raises(ShortageError, match=r"policy 'a', version 4: vLLM .* failed: /v1/load_lora_adapter: Connect"):
        engine.publish([policy.published(4)])


def test_a_server_that_does_not_end_its_connections_is_told(
    served: Serve, build_policy: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All turns are there by then."""
    engine = served()
    engine.publish([build_policy(**LORA).published(3)])

    async def late(client: httpx2.AsyncClient, *_: Any) -> None:
        await client.aclose()
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(httpx2.AsyncClient, "__aexit__", late)
        with pytest.raises(ShortageError, match=r"^vLLM .* answered, and did not end its connections within 20 s$"):
            engine.generate({"a": make_says([[5, 6]], Sampling(5))})


def test_prompts_do_not_go_through_the_environments_proxy(
    served: Serve, build_policy: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setenv("no_proxy", "")
    engine = served()
    engine.publish([build_policy(**LORA).published(0)])
    assert len(engine.generate({"a": make_says([[5, 6]], Sampling(5))})["a"]) == 1


def test_a_name_is_used_once_and_the_servers_refusal_is_told(
    served: Serve, fake: FakeServer, build_policy: Build, tmp_path: Path
) -> None:
    policy, engine = build_policy(**LORA), served(folder=tmp_path)
    engine.publish([policy.published(0)])
    [first] = fake.adapters
    engine.publish([policy.published(0)])
    assert first not in fake.adapters and [path.name for path in tmp_path.iterdir()] == list(fake.adapters)
    engine._attempts = iter([1])  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"^policy 'a', version 0: vLLM .* refused with 400, .*already been loaded"):
        engine.publish([policy.published(0)])
    assert not any(tmp_path.iterdir())  # nobody would take away what no server has


def test_an_adapter_that_was_replaced_is_forgotten_whatever_fails_meanwhile(
    served: Serve, fake: FakeServer, build_policy: Build
) -> None:
    ann, bob, engine = build_policy(**LORA), build_policy(**LORA), served()
    bob.name = "b"
    engine.publish([ann.published(0), bob.published(0)])

    def fails(folder: Path) -> None:
        raise OSError("no space left on device")

    def publish(save: Callable[[Path], None]) -> None:
        engine.publish([ann.published(1), dataclasses.replace(bob.published(1), save=save)])

    with pytest.raises(OSError, match="no space"):
        publish(fails)
    assert len(fake.adapters) == 3
    publish(bob.save_model)
    assert sorted(name[0] for name in fake.adapters) == ["a", "b"]
    with pytest.raises(OSError, match="no space"):
        publish(fails)
    engine.close()
    assert fake.adapters == {}


def test_a_publish_to_a_closed_engine_loads_all_again(served: Serve, fake: FakeServer, build_policy: Build) -> None:
    """Or who is not news would be sampled by the bare base, under its name."""
    ann, bob, engine = build_policy(**LORA), build_policy(**LORA), served()
    bob.name = "b"
    engine.publish([ann.published(0), bob.published(0)])
    engine.close()
    engine.publish([ann.published(1)])
    assert sorted(name[0] for name in fake.adapters) == ["a", "b"]


@pytest.mark.parametrize(
    ("missing", "how", "said"),
    [
        (VLLM.generate, LORA, "has no route /inference/v1/generate: start it with --enable-scale-out"),
        (VLLM.load, LORA, "has no route /v1/load_lora_adapter: start it with --enable-lora"),
        ("/collective_rpc", FULL, "has no route /collective_rpc: start it with VLLM_SERVER_DEV_MODE=1"),
    ],
)
def test_a_route_that_is_missing_is_named(
    missing: str, how: dict[str, Any], said: str, served: Serve, fake: FakeServer, build_policy: Build
) -> None:
    fake.routes = tuple(route for route in fake.routes if route != missing)
    with pytest.raises(ValueError, match=said):
        served().publish([build_policy(**how).published(0)])


@pytest.mark.parametrize("said", ["<html>no server</html>", [], {"data": None}, {"data": []}, {"data": [{}]}, "404"])
def test_a_server_that_lists_no_model_is_told(said: Any, served: Serve, fake: FakeServer, build_policy: Build) -> None:
    fake.models = (404, "Not Found") if said == "404" else (200, said)
    policy = build_policy(weights="frozen", compute="torch")
    with pytest.raises(ValueError, match=r"^the server at .* lists no model at /v1/models \(.*engine\.model") as told:
        served(OPENAI).publish([policy.published(0)])
    assert "\n" not in str(told.value)
    served(OPENAI, model="base").publish([policy.published(0)])  # who says it, needs no list


def test_a_plain_server_is_refused_as_another(served: Serve, fake: FakeServer, build_policy: Build) -> None:
    fake.schema = False
    with pytest.raises(ValueError, match=r"no route /inference/v1/generate: .* can be `engine: openai`, for frozen"):
        served().publish([build_policy(**LORA).published(0)])
    with pytest.raises(ValueError, match="no route /generate: it is another version of SGLang, or another server"):
        served(SGLANG).publish([build_policy(**LORA).published(0)])
    fake.answer = lambda route, body: (200, {"paths": None})  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="has no route /inference/v1/generate"):
        served().publish([build_policy(**LORA).published(0)])


def test_teams_and_settings_that_no_server_can_serve(served: Serve, build_policy: Build, micro_gpt2: str) -> None:
    lora, full, other = build_policy(**LORA), build_policy(**FULL), build_policy(micro_gpt2, **LORA)
    full.name, other.name = "b", "c"
    with pytest.raises(
        ValueError, match=r"one server has one base, and this team has .*micro_gpt2.*policies\.X\.engine"
    ):
        served().publish([lora.published(0), other.published(0)])
    with pytest.raises(ValueError, match="policy 'b' has full weights, of which a server holds one set; give each"):
        served().publish([lora.published(0), full.published(0)])
    with pytest.raises(ValueError, match="policy 'b': an OpenAI-compatible server gives no log-probabilities"):
        served(OPENAI).publish([full.published(1)])
    engine = served()
    engine.publish([lora.published(0)])
    with pytest.raises(ValueError, match="policy 'a': with top_k, top_p or repetition_penalty vLLM gives"):
        engine.generate({"a": make_says([[5]], Sampling(5, top_k=3))})
    with pytest.raises(ValueError, match=r"policy 'a': sampling\.temperature is 0\.001, and vLLM would sample at 0.01"):
        engine.generate({"a": make_says([[5]], Sampling(5, temperature=0.001))})
    for temperature in (0.0, 0.01):
        engine.generate({"a": make_says([[5]], Sampling(5, temperature=temperature))})
    for wrong, said in (
        ({"url": "here:80"}, "url is 'here:80'"),
        ({"url": "http://127.0.0.1:80800"}, "url is 'http://127.0.0.1:80800'; want one such as"),
        ({"url": "http://127.0.0.1:80o0"}, "url is 'http://127.0.0.1:80o0'; want one such as"),
        ({"url": "http://"}, "url is 'http://'; want one such as"),
        ({"url": "http://x", "start": {}}, "remove one"),
    ):
        with pytest.raises(ValueError, match=said):
            ServerEngine(**wrong)


@pytest.mark.parametrize(
    ("specs", "start", "said"),
    [
        (({}, {"dtype": "bfloat16"}), {}, "policy 'a' has float32 and policy 'b' bfloat16; say the same dtype"),
        (({"load_in_4bit": True},), {}, "policy 'a' has a base in 4 bits .* remove load_in_4bit"),
        (({"load_in_4bit": True, "dtype": "bfloat16"},), {"quantization": "bitsandbytes"}, None),
        (({},), {}, r"policy 'a': on GPUs vLLM computes adapters in bfloat16, .* policies\.a\.dtype: bfloat16"),
        (({"dtype": "bfloat16"},), {"devices": "1"}, None),
        (({},), {"devices": ""}, None),
        (({"weights": "full", "lora": LoraSpec()},), {}, None),
        (({"dtype": "bfloat16"}, {"weights": "frozen", "lora": LoraSpec(), "load_in_4bit": True}), {}, None),
    ],
)
def test_what_a_server_of_ours_would_sample_otherwise_is_refused(
    specs: Sequence[dict[str, Any]], start: dict[str, Any], said: str | None, build_policy: Build,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Where there is a GPU."""
    policy = build_policy(**LORA).published(0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    team = [
        dataclasses.replace(policy, name=name, spec=dataclasses.replace(policy.spec, **changes))
        for name, changes in zip("ab", specs, strict=False)
    ]
    with nullcontext() if said is None else pytest.raises(ValueError, match=said):
        check_started(team, start)


@pytest.mark.parametrize(
    ("how", "tied", "start", "gpus", "refused"),
    [
        (HALF, True, {}, False, True),
        (HALF, True, {"devices": ""}, True, True),
        (HALF, True, {}, True, False),
        (HALF, False, {}, False, False),
        (FULL, True, {}, False, False),  # the gate sees it
        ({**LORA, "dtype": "bfloat16"}, True, {}, False, False),
    ],
)
def test_half_precision_weights_that_a_vllm_of_cpus_would_half_load_are_refused(
    how: dict[str, Any], tied: bool, start: dict[str, Any], gpus: bool, refused: bool,
    build_policy: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    policy = build_policy(**how).published(0)
    config = load_config(policy.spec.model)
    config.tie_word_embeddings = tied
    config.save_pretrained(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)
    new = dataclasses.replace(policy, spec=dataclasses.replace(policy.spec, model=str(tmp_path)))
    words = r"policy 'a': its output layer is tied to its embedding, .* say policies\.a\.weights: lora, or sample with"
    with pytest.raises(ValueError, match=words) if refused else nullcontext():
        check_started([new], start)


@pytest.mark.parametrize("devices", ["0;1", "cuda:1", "1,", True, 0.5, -1])
def test_cards_that_are_none_are_told(devices: Any) -> None:
    with pytest.raises(ValueError, match=r"start\.devices is .*; want the cards .* such as \"4,5\""):
        ServerEngine(start={"devices": devices})


def test_each_policy_is_sampled_by_its_own_engine(served: Serve, fake: FakeServer, micro_model: str) -> None:
    policies = team(micro_model, **LORA)
    engine = RoutedEngine({"bob": served()}, LocalEngine())
    trainer = toy(micro_model, policies=policies, engine=engine, workers=False)
    plain = toy(micro_model, policies=policies, workers=False)
    for i in range(3):  # roles change at step 2
        here, there = without_times(plain.step(i)), without_times(trainer.step(i))
        assert here["reward"] == there["reward"]
    assert {name.split("@")[0] for name in fake.adapters} == {"bob"}
    assert trainer.computing()["engine"] == f"LocalEngine for the others; vLLM 0.0-fake at {fake.url} for bob"
    trainer.close()
    everybody = RoutedEngine(dict.fromkeys(policies, served()), LocalEngine())
    trainer = toy(micro_model, policies=policies, engine=everybody, workers=False)
    assert trainer.computing()["engine"] == f"vLLM 0.0-fake at {fake.url} for ann, bob"
    trainer.close()
    assert fake.adapters == {}


def test_who_never_speaks_is_not_loaded_by_a_server(served: Serve, fake: FakeServer, micro_model: str) -> None:
    """A critic with full weights beside adapters: as a speaker, one server could not hold it."""
    policies = {**team(micro_model, **LORA), "judge": PolicySpec(micro_model, **FULL)}
    settings: dict[str, Any] = {"play": rounds(), "roles": ("x", "y"), "policies": policies, "workers": False}
    trainer = toy(micro_model, algorithm=maac(critic="judge"), engine=served(), **settings)
    lines = [trainer.step(i) for i in range(2)]
    assert lines[1]["agents/judge/loss/value"] > 0
    assert {name.split("@")[0] for name in fake.adapters} == {"ann", "bob"}
    assert not {route for route, _ in fake.asked} & {*VLLM.reload}


def gone(process: int) -> bool:
    """Whether it ended, waited for a while."""
    for _ in range(200):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def test_a_server_is_started_and_started_again_and_ended(
    build_policy: Build, program: Callable[[str], None], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(started, "free_memory", lambda device: 8 * GIB)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    program(f"#!{sys.executable} -IS\n{CANNED}")
    policy, engine, asked = build_policy(**LORA), ServerEngine(seconds=60.0), {"a": make_says([[5, 6]], Sampling(5))}
    try:
        engine.publish([policy.published(0)])
        assert engine.about.endswith(" (started here, KV cache 2.0 GiB)")
        well, first = engine.generate(asked), engine.child
        assert first is not None
        os.kill(first.process.pid, signal.SIGKILL)
        assert engine.generate(asked) == well
        assert "failed twice" in caplog.text and "the server is started again" in caplog.text
        second = engine.child
        assert second is not None and second is not first
        os.kill(second.process.pid, signal.SIGKILL)
        with pytest.raises(ShortageError, match=r"policy 'a', version 0, .* failed twice"):  # once a step
            engine.generate(asked)
        engine.publish([policy.published(1)])  # the next step: it may be started again
        assert engine.child is not None and engine.child is not second
        os.kill(engine.child.process.pid, signal.SIGKILL)
        assert len(engine.generate(asked)) == len(well)  # and in the rollout that follows
        third = engine.child
        assert third is not None and third.ended is None
        log = third.log
    finally:
        engine.close()
    assert gone(third.process.pid) and not log.exists()
    assert first.log.exists()  # of one that ended by itself
    first.log.unlink()
    second.log.unlink()


def test_a_server_whose_weights_rest_is_started_again_in_another_step(
    build_policy: Build, program: Callable[[str], None]
) -> None:
    """Nothing is published to it between steps."""
    program(f"#!{sys.executable} -IS\n{CANNED}")
    policy, engine = build_policy(weights="frozen", compute="torch"), ServerEngine(seconds=60.0)
    logs = []
    try:
        engine.publish([policy.published(0)])
        for _ in range(2):
            assert engine.child is not None
            logs.append(engine.child.log)
            os.kill(engine.child.process.pid, signal.SIGKILL)
            engine.generate({"a": make_says([[5, 6]], Sampling(5))})
            engine.rest()
    finally:
        engine.close()
    for log in logs:
        log.unlink()


def test_a_port_that_another_server_has_is_told(
    fake: FakeServer, build_policy: Build, program: Callable[[str], None]
) -> None:
    """It answers, and its turns would be taken for those of the one that is started."""
    program(f"#!{sys.executable} -IS\nimport time; time.sleep(60)")
    engine = ServerEngine(start={"port": int(fake.url.rpartition(":")[2])}, seconds=5.0)
    with pytest.raises(ValueError, match=r"start\.port is \d+, at which another server listens already; remove it"):
        engine.publish([build_policy(**LORA).published(0)])
    assert engine.child is None and fake.asked == []


@pytest.mark.parametrize("port", ["abc", 0, 70000, True, 80.5])
def test_a_port_that_is_none_is_told(port: Any, build_policy: Build, program: Callable[[str], None]) -> None:
    program(f"#!{sys.executable} -IS\n{CANNED}")
    with pytest.raises(ValueError, match=r"start\.port is .*; want a number from 1 to 65535, or none for a free one"):
        ServerEngine(start={"port": port}, seconds=5.0).publish([build_policy(**LORA).published(0)])


def test_a_server_that_samples_ahead_is_not_started_again(build_policy: Build, program: Callable[[str], None]) -> None:
    """Its weights may be changing."""
    program(f"#!{sys.executable} -IS\n{CANNED}")
    policy, engine = build_policy(**LORA), ServerEngine(seconds=60.0, staleness=1)
    try:
        engine.publish([policy.published(0)])
        child = engine.child
        assert child is not None
        os.kill(child.process.pid, signal.SIGKILL)
        assert gone(child.process.pid)  # so that its log is kept
        with pytest.raises(ShortageError, match=r"policy 'a', version 0, .* failed twice"):
            engine.generate({"a": make_says([[5, 6]], Sampling(5))})
        assert engine.child is child
    finally:
        engine.close()
    child.log.unlink()


DYING = CANNED.replace(
    "        self.send_response(200)",
    """        if "/ROUTE" in self.path and GETS.pop("/health", None) is not None:
            print("ERROR core: torch.OutOfMemoryError: CUDA out of memory", flush=True)
        self.send_response(200 if "/health" in GETS else 500)""",
).replace("(GETS | POSTS)[self.path]", '(GETS | POSTS).get(self.path, "")')
"""A vLLM whose core has died: it goes on for a while, and answers 500."""


def played(engine: ServerEngine, policy: Any) -> None:
    engine.publish([policy.published(0)])
    engine.generate({"a": make_says([[5, 6]], Sampling(5))})


@pytest.mark.parametrize(("staleness", "route"), [(0, "generate"), (1, "generate"), (0, "load_lora")])
def test_what_a_dying_server_said_is_told_and_kept(
    build_policy: Build, program: Callable[[str], None], staleness: int, route: str, caplog: pytest.LogCaptureFixture
) -> None:
    program(f"#!{sys.executable} -IS\n{DYING.replace('ROUTE', route)}")
    engine = ServerEngine(seconds=60.0, staleness=staleness)
    said = r"failed.*: .* 500.*; it is not well and said 'OutOfMemoryError: CUDA out of memory'; all of its "
    try:
        with pytest.raises(ShortageError, match=f"{said}output is in (.*)") as told:
            played(engine, build_policy(**LORA))
    finally:
        engine.close()
    logs = re.findall(r"output is in (\S+\.log)", f"{caplog.text} {told.value}")
    assert len(logs) == len(set(logs)) == 2 - staleness  # it is started again, once
    for log in map(Path, logs):
        assert "CUDA out of memory" in log.read_text()
        log.unlink()


class Killed:
    """A task whose reward finds the server dead, so that what an episode says next meets none."""

    def __init__(self, engine: ServerEngine) -> None:
        self.engine, self.first = engine, True

    def prompt(self, p: Problem, role: str, heard: Sequence[Turn]) -> str:
        return " ".join(["say", *(turn.text for turn in heard)])

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        child, self.first = self.engine.child if self.first else None, False
        if child is not None:
            os.kill(child.process.pid, signal.SIGKILL)
            child.process.wait()
        return [[1.0] for _ in cases]


def test_episodes_at_their_own_pace_survive_a_server_that_dies(
    build_policy: Build, program: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def twice(p: Problem, team: Roles) -> None:
        first = await team["a"]()
        await score(team, [first])
        await score(team, [await team["a"](first)])

    program(f"#!{sys.executable} -IS\n{CANNED}")
    engine = ServerEngine(seconds=60.0)
    engine.publish([build_policy(**LORA).published(0)])
    try:
        first = engine.child
        stage = Stage({"a": "a"}, Killed(engine), engine, Sampling(5))  # type: ignore[arg-type]
        episodes = rollout(twice, [Problem("p"), Problem("q")], stage, members=3)
        assert [[t.action_ids for t in e.turns] for e in episodes] == [[[5, 1], [5, 1]]] * 6
        assert engine.child is not first and "the server is started again" in caplog.text
        assert first is not None
        first.log.unlink()
    finally:
        engine.close()


def test_turns_at_their_own_pace_are_refused_and_late_as_in_a_sweep(
    served: Serve, fake: FakeServer, build_policy: Build
) -> None:
    engine, inbox = served(), SimpleQueue[Callable[[], None]]()
    engine.publish([build_policy(**LORA).published(3)])
    [say] = make_says([[5, 6]], Sampling(5))
    with engine.overlapped(inbox) as ask:
        for mishap, told in {
            "400": "problem 'p0': vLLM .* refused with 400",
            "hang": "problem 'p0': vLLM .* left it unanswered for 0.5 s$",
        }.items():
            fake.mishaps = [mishap]
            engine.seconds = 0.5 if mishap == "hang" else 20.0
            ask(say, lambda turn: None)
            with pytest.raises((ValueError, ShortageError), match=rf"^policy 'a', version 3, {told}"):
                inbox.get()()
        with pytest.raises(ValueError, match="log-probabilities of the cut distribution"):
            ask(dataclasses.replace(say, sampling=Sampling(5, top_k=3)), lambda turn: None)
        with pytest.raises(ValueError, match="exceed the model's context"):
            ask(dataclasses.replace(say, prompt_ids=[5] * 9999), lambda turn: None)


@pytest.mark.parametrize("mishap", ASKED_AGAIN)
def test_at_their_own_pace_a_request_that_fails_is_made_again_once_too(
    mishap: str, served: Serve, fake: FakeServer, build_policy: Build
) -> None:
    engine, inbox, heard = served(), SimpleQueue[Callable[[], None]](), list[Turn]()
    engine.publish([build_policy(**LORA).published(3)])
    [say] = make_says([[5, 6]], Sampling(5))
    with engine.overlapped(inbox) as ask:
        for mishaps in ([], [mishap]):
            fake.mishaps = mishaps
            ask(say, heard.append)
            inbox.get()()
        assert heard[0] == heard[1]
        fake.mishaps = [mishap, mishap]
        ask(say, heard.append)
        with pytest.raises(ShortageError, match=r"^policy 'a', version 3, problem 'p0': vLLM .* failed twice: "):
            inbox.get()()


def test_a_turns_deadline_does_not_count_its_wait_behind_others(
    served: Serve, build_policy: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is short while another turn is sampled."""
    monkeypatch.setattr(flight, "MAX_CONNECTIONS", 1)
    engine, inbox, heard = served(), SimpleQueue[Callable[[], None]](), list[Turn]()
    engine.publish([build_policy(**LORA).published(0)])

    async def slowly(*_: Any) -> Sample:
        engine.seconds = 0.01
        await asyncio.sleep(0.1)
        engine.seconds = 20.0
        return Sample([EOS], [-1.0], True)

    monkeypatch.setattr(engine, "one", slowly)
    with engine.overlapped(inbox) as ask:
        for say in make_says([[5, 6]] * 3, Sampling(5)):
            ask(say, heard.append)
        for _ in range(3):
            inbox.get()()
    assert len(heard) == 3


def test_a_server_does_not_outlive_who_started_it(tmp_path: Path) -> None:
    code = "from coevolve.runtime.child import Child; import time; c = Child(['sleep', '600'], {}); "
    code += "print(c.process.pid, c.log, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child, log = parent.stdout.readline().split()
        assert Path(f"/proc/{child}").exists()
        parent.kill()
    assert gone(int(child))
    Path(log).unlink()


def test_a_fork_does_not_keep_a_server_when_who_started_it_is_gone() -> None:
    code = "from coevolve.runtime.child import Child; import os, time; c = Child(['sleep', '600'], {}); f = os.fork(); "
    code += "f and print(c.process.pid, c.log, f, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child, log, fork = parent.stdout.readline().split()
        parent.kill()
        parent.wait()
        assert gone(int(child))
        os.kill(int(fork), signal.SIGKILL)
    Path(log).unlink()


@pytest.mark.parametrize("written", ["http://here:80/v1", "http://here:80/v1/", "http://here:80/", "http://here:80"])
def test_an_address_may_be_written_as_for_openais_clients(written: str) -> None:
    assert ServerEngine(url=written).url == "http://here:80"


@contextmanager
def no_file_left() -> Iterator[None]:
    """A process that can open no file, pipe or connection any more."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    used: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, most))
    try:
        with suppress(OSError):
            while True:
                used.append(os.dup(1))
        yield
    finally:
        for one in used:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def test_want_of_open_files_is_told_as_that_and_not_as_a_server_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with httpx2.Client(base_url="http://127.0.0.1:9", trust_env=False) as client:
        monkeypatch.setattr(httpx2, "Client", lambda **how: nullcontext(client))
        with no_file_left(), pytest.raises(ShortageError, match=r"^/health: too many open files .*raise the limit"):
            asked("http://127.0.0.1:9", "/health", None, 5.0)
        with no_file_left(), pytest.raises(ShortageError, match=r"^/health: too many open files"):
            is_well("http://127.0.0.1:9", 5.0)  # or a server that is well would be started again
        with pytest.raises(FailedError, match=r"^/health: ConnectError"):
            asked("http://127.0.0.1:9", "/health", None, 5.0)
        assert not is_well("http://127.0.0.1:9", 5.0)


def test_a_host_of_two_addresses_has_two_reasons() -> None:
    error = httpx2.ConnectError("All connection attempts failed")
    error.__cause__ = OSError("All connection attempts failed")
    error.__cause__.__cause__ = ExceptionGroup("both", [ConnectionRefusedError(111, "no"), OSError(24, "Too many")])
    assert "raise the limit" in str(_failed("/health", error))
    error.__cause__.__cause__ = ExceptionGroup("both", [ConnectionRefusedError(111, "no")] * 2)
    assert str(_failed("/health", error)) == "/health: ConnectError All connection attempts failed"


def test_a_flight_that_cannot_begin_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop takes three files."""

    def fails(work: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(flight.asyncio, "run", fails)
    begun = Beside(lambda: flight.Flight(ServerEngine(url="http://127.0.0.1:9"), SimpleQueue()))
    with pytest.raises(OSError, match="Too many open files"):
        begun.found(20, "the flight")


def test_a_server_that_cannot_start_is_told(build_policy: Build, program: Callable[[str], None]) -> None:
    policy = build_policy(**LORA).published(0)
    with pytest.raises(ShortageError, match="no program vllm on the PATH to start a server with"):
        ServerEngine().publish([policy])
    program("#!/nowhere/bin/python\n")  # of an environment that was moved
    with pytest.raises(ShortageError, match=r"/vllm does not start: the program that its first line names is missing$"):
        ServerEngine().publish([policy])
    program("#!/bin/sh\necho 'error: no such flag --nonsense=1'\necho\nexit 2\n")
    with pytest.raises(ShortageError, match="ended as it started; it said 'error: no such flag") as told:
        ServerEngine(start={"nonsense": 1}).publish([policy])
    log = Path(str(told.value).rpartition(" in ")[2])
    assert log.read_text().startswith("error")
    log.unlink()
    program("#!/bin/sh\necho loading\nexec sleep 60\n")
    with pytest.raises(ShortageError, match=r"did not answer in 0.5 s; it said '(loading)?', and all") as told:
        ServerEngine(seconds=0.5).publish([policy])
    Path(str(told.value).rpartition(" in ")[2]).unlink()


@pytest.mark.parametrize(
    ("start", "cards"), [({}, "7"), ({"devices": 4}, "4"), ({"devices": "4,GPU-1a-2b"}, "4,GPU-1a-2b")]
)
def test_a_server_sees_the_cards_that_it_is_given(
    start: dict[str, Any],
    cards: str,
    build_policy: Build,
    program: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    program("#!/bin/sh\necho $CUDA_VISIBLE_DEVICES $*\nexit 2\n")
    monkeypatch.setattr(started, "free_memory", lambda device: 8 * GIB)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ShortageError, match=f"it said '{cards} serve ") as told:
        ServerEngine(start=start).publish([build_policy(**LORA, dtype="bfloat16").published(0)])
    assert "devices" not in str(told.value)
    log = Path(str(told.value).rpartition(" in ")[2])
    assert (f"--kv-cache-memory-bytes={2 * GIB}" in log.read_text()) is (not start)
    Path(str(told.value).rpartition(" in ")[2]).unlink()


@pytest.mark.parametrize(("how", "loads"), [(LORA, "1"), (FULL, "")])
def test_a_server_is_started_in_the_environment_of_its_team(
    how: dict[str, Any], loads: str, build_policy: Build, program: Callable[[str], None]
) -> None:
    """vLLM refuses loading of adapters together with several API servers; attention in float32 is not to be TF32."""
    program("#!/bin/sh\necho loads=$VLLM_ALLOW_RUNTIME_LORA_UPDATING $TRITON_F32_DEFAULT\nexit 2\n")
    with pytest.raises(ShortageError, match=f"it said 'loads={loads} ieee'") as told:
        ServerEngine(start={}).publish([build_policy(**how).published(0)])
    Path(str(told.value).rpartition(" in ")[2]).unlink()


def test_a_plain_server_is_asked_for_the_models_own_distribution(build_policy: Build) -> None:
    """vLLM takes what is left out from the model's generation_config.json."""
    [say] = make_says([[5, 6]], Sampling(5))
    body = OPENAI.asks(None, "base", build_policy(**LORA).published(0), say)
    assert (body["temperature"], body["top_p"]) == (1.0, 1.0)


def test_servers_are_asked_for_what_was_sampled(build_policy: Build) -> None:
    """By the policy's adapter, until its own end of sequence."""
    [say] = make_says([[5, 6]], Sampling(5, temperature=0.7))
    speaker = build_policy(**LORA).published(0)
    both = {"temperature": 0.7, "stop_token_ids": [EOS]}
    assert VLLM.asks("a@1", "base", speaker, say) == {
        "model": "a@1",
        "token_ids": [5, 6],
        "sampling_params": {**both, "max_tokens": 5, "seed": say.key, "logprobs": 0, "ignore_eos": True},
    }
    assert SGLANG.asks("a@1", "base", speaker, say) == {
        "lora_path": "a@1",
        "input_ids": [5, 6],
        "sampling_params": {**both, "max_new_tokens": 5, "sampling_seed": say.key % 2**31},
        "return_logprob": True,
    }


@pytest.mark.parametrize("routes", [VLLM, SGLANG, OPENAI])
def test_a_cut_distribution_is_asked_for_as_it_was_said(routes: Routes, build_policy: Build) -> None:
    cut: dict[str, Any] = {"top_k": 3, "top_p": 0.9, "repetition_penalty": 1.2}
    [say] = make_says([[5, 6]], Sampling(5, **cut))
    body = routes.asks(None, "base", build_policy(**LORA).published(0), say)
    how = body.get("sampling_params", body)
    assert {key: how.get(key) for key in cut} == cut


@pytest.mark.parametrize(
    ("text", "reason", "ids", "finished"),
    [("ab", "length", [3, 4], False), ("ab", "stop", [3, 4, EOS], True), ("", "length", [EOS], True)],
)
def test_a_partners_text_is_a_turn_though_it_is_empty(
    text: str, reason: str, ids: list[int], finished: bool, build_policy: Build
) -> None:
    """Special tokens alone, which a text leaves out, are an end."""
    answer = {"choices": [{"text": text, "finish_reason": reason}]}
    sample = OPENAI.reads(answer, build_policy(**LORA).published(0))
    assert (sample.action_ids, sample.finished) == (ids, finished)


def test_a_server_that_lacks_a_route_is_ended(build_policy: Build, program: Callable[[str], None]) -> None:
    """At once: the engine may publish again, and would start another one."""
    program(f"#!{sys.executable} -IS\n{CANNED.replace('/v1/load_lora_adapter', '/v1/other')}")
    policy, engine = build_policy(**LORA).published(0), ServerEngine(seconds=60.0)
    started = list[Child]()

    def noted(*given: Any) -> tuple[Child, str]:
        child, url = serve(*given)
        started.append(child)
        return child, url

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "serve", noted)
        for _ in range(2):
            with pytest.raises(ValueError, match="has no route /v1/load_lora_adapter"):
                engine.publish([policy])
    assert engine.child is None and len(started) == 2
    assert all(gone(child.process.pid) and not child.log.exists() for child in started)


@pytest.mark.parametrize(
    ("start", "free", "cuda", "space", "bytes"),
    [
        ({}, 8 * GIB, False, "", [2 * GIB]),
        ({}, 80 * GIB, False, "", [4 * GIB]),
        ({"devices": ""}, 8 * GIB, True, "", [2 * GIB]),
        ({"devices": 0}, 8 * GIB, False, "", []),
        ({}, 8 * GIB, True, "", []),
        ({"gpu-memory-utilization": 0.3}, 8 * GIB, False, "", []),
        ({"kv_cache_memory_bytes": 1}, 8 * GIB, False, "", []),
        ({}, 8 * GIB, False, "2", []),
        ({}, None, False, "", []),
    ],
)
def test_a_server_on_cpus_gets_a_part_of_what_is_free_unless_its_size_is_said(
    start: Any, free: int | None, cuda: bool, space: str, bytes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM would take nearly all of the machine, or not start."""
    monkeypatch.setattr(started, "free_memory", lambda device: free)
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", space)
    assert [*started.kv_cache_flag(start).values()] == bytes


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["(W pid=7) ERROR [x.py:9] ValueError: little", "RuntimeError: See root cause above."], "ValueError: little"),
        (["ValueError: x", "Exception: WorkerProc failed. See stack trace for root cause."], "ValueError: x"),
        (["ImportError: no triton", "vllm: error: unrecognized arguments: --x"], "error: unrecognized arguments: --x"),
        (
            ["E: 1 validation error for C", "Value error, no folder", "bye"],
            "1 validation error for C Value error, no folder",
        ),
        (["loading", "bye"], "bye"),
        ([], ""),
    ],
)
def test_the_reason_why_a_server_ended_is_what_it_raised_first_hand(lines: list[str], said: str) -> None:
    assert started._reason(lines) == said


def test_flags_are_those_of_the_team(build_policy: Build) -> None:
    team = [build_policy(**LORA | {"lora": LoraSpec(rank)}).published(0) for rank in (4, 20)]
    assert {"enable-lora": True, "max-loras": 3, "max-lora-rank": 32}.items() <= flags_of(team).items()
    assert flags_of([build_policy(**FULL).published(0)]) == {
        "served-model-name": "base",
        "dtype": "float32",
        "skip-tokenizer-init": True,
        "enable-scale-out": True,
        "logprobs-mode": "processed_logprobs",
    }
    partner, learner = (
        dataclasses.replace(team[0], spec=dataclasses.replace(team[0].spec, **changes))
        for changes in ({"weights": "frozen"}, {"dtype": "bfloat16"})
    )
    assert flags_of([partner, learner])["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("start", "listens", "asked"),
    [
        ({}, "127.0.0.1", "127.0.0.1"),
        ({"host": "0.0.0.0"}, "0.0.0.0", "127.0.0.1"),
        ({"host": "::"}, "::", "[::1]"),
        ({"host": "::1"}, "::1", "[::1]"),
        ({"host": "10.0.0.5"}, "10.0.0.5", "10.0.0.5"),
    ],
)
def test_a_server_listens_here_alone_unless_a_host_is_said_and_is_asked_where_it_listens(
    start: dict[str, Any], listens: str, asked: str, build_policy: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = list[list[str]]()
    monkeypatch.setattr(started, "Child", lambda command, around: commands.append(command))
    monkeypatch.setattr(started, "answers", lambda child, url: True)
    _, url = serve([build_policy(**LORA).published(0)], start, 1.0, "disk")
    assert f"--host={listens}" in commands[0] and url.startswith(f"http://{asked}:")


# In recipes.

RECIPE = """
task: {toy}:Lucky
play: chain
roles: {{pioneer: ann, observer: bob}}
policies:
  ann: {{model: {model}, learning_rate: 1.0e-2, compute: torch}}
  bob: {{model: {model}, weights: frozen, engine: {{name: openai, url: "{url}"}}}}
algorithm: magrpo
members: 2
sampling: {{max_new_tokens: 5}}
steps: 2
batch_size: 4
samples: 1
output_dir: {out}
"""


@pytest.fixture
def recipe(tmp_path: Path, micro_model: str, fake: FakeServer) -> Path:
    file = tmp_path / "team.yaml"
    toy_file = Path(__file__).parents[1] / "toy.py"
    file.write_text(RECIPE.format(toy=toy_file, model=micro_model, url=fake.url, out=tmp_path / "run"))
    return file


def test_a_partner_behind_an_endpoint_in_a_team_that_trains(
    recipe: Path, fake: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", str(recipe), "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert f"bob, engine: openai, url: {fake.url}" in planned and "bob: nothing, its weights are not here" in planned
    assert cli.main(["train", str(recipe)]) == 0
    assert "an OpenAI-compatible server at" in (tmp_path / "run" / "environment.json").read_text()
    assert {route for route, _ in fake.asked} == {OPENAI.generate}
    assert '"logps": [null' in (tmp_path / "run" / "episodes.jsonl").read_text()
    assert cli.main(["train", str(recipe), "steps=3", "--resume"]) == 0
    assert cli.main(["eval", str(tmp_path / "run"), "--problems", "2", "--trust-code"]) == 0
    for command in (["export", str(tmp_path / "run"), str(tmp_path / "out")], ["diagnose", str(tmp_path / "run")]):
        capsys.readouterr()
        assert cli.main([*command, "--trust-code"]) == 2
        assert "the weights of policy 'bob' are not in the run" in capsys.readouterr().err


@pytest.mark.parametrize("weights", ["full", "lora"])
def test_ranks_learn_what_a_server_samples(weights: str, recipe: Path, fake: FakeServer, tmp_path: Path) -> None:
    """The same as in one process, but for rounding: the first rank writes the weights that the server reads."""
    here = ["policies.bob.engine=null", f"policies.ann.weights={weights}", "members=4", "steps=3", "workers=false"]
    there = [f"policies.ann.engine={{name: vllm, url: '{fake.url}'}}", "learner={name: fsdp, ranks: 2, deadline: 240}"]
    found = []
    for name, more in (("here", []), ("there", there)):
        assert cli.main(["train", str(recipe), *here, *more, f"output_dir={tmp_path / name}"]) == 0
        lines = map(without_times, read_lines(tmp_path / name / "metrics.jsonl"))
        found.append([{key: x for key, x in line.items() if isinstance(x, float)} for line in lines])
    assert [route for route, _ in fake.asked].count(VLLM.load if weights == "lora" else "/collective_rpc") == 4
    assert sum(line["agents/ann/grad_norm"] > 0 for line in found[0]) == 3
    for one, other in zip(*found, strict=True):
        assert other.pop("agents/ann/drift") < 1e-5 > one.pop("agents/ann/drift")
        assert other == pytest.approx(one, rel=1e-3, abs=1e-4)


def test_a_plain_server_plays_and_does_not_teach(
    recipe: Path, fake: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    own = f"policies.ann.engine={{name: openai, url: '{fake.url}'}}"
    assert cli.main(["train", str(recipe), own]) == 2
    assert "policies.ann: the engine openai gives no log-probabilities" in capsys.readouterr().err
    assert cli.main(["eval", str(recipe), own, "--problems", "2", "--trust-code"]) == 0
    assert cli.main(["train", str(recipe), "policies.bob.engine={name: vlm}", "--dry-run"]) == 2
    assert "policies.bob.engine: unknown name 'vlm'" in capsys.readouterr().err


def test_learning_from_turns_without_log_probabilities_is_stopped(served: Serve, micro_model: str) -> None:
    policies = {"ann": PolicySpec(micro_model, **FULL)}
    trainer = toy(micro_model, roles=("pioneer",), policies=policies, engine=served(OPENAI), workers=False)
    with pytest.raises(ValueError, match=r"policy 'ann', step 0: .* nan by the sampler"):
        trainer.step(0)


def test_a_started_server_needs_trust(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = recipe.read_text().replace("{name: openai", "{name: vllm").replace("url:", "start: {middleware: x}, model:")
    recipe.write_text(text)
    assert cli.main(["eval", str(recipe)]) == 2
    assert "an engine's server, started with flags of its own" in capsys.readouterr().err


def test_policies_share_an_engine_where_they_can(micro_model: str, micro_gpt2: str) -> None:
    from coevolve.recipe.build import parts
    from coevolve.recipe.schema import Recipe

    engine = {"name": "vllm", "url": "http://127.0.0.1:1"}
    specs = {
        "a": {"model": micro_model, "weights": "lora", "engine": engine},
        "b": {"model": micro_model, "weights": "lora", "engine": engine},
        "c": {"model": micro_model, "engine": engine | {"url": "http://127.0.0.1:2"}},
        "d": {"model": micro_gpt2, "weights": "lora", "engine": engine | {"url": "http://127.0.0.1:3"}},
        "e": {"model": micro_model},
    }
    made = {"task": {"name": "arithmetic"}, "play": {"name": "chain"}, "algorithm": {"name": "magrpo"}}
    recipe = Recipe(roles={n: n for n in specs}, policies=specs, output_dir="run", **made)  # type: ignore[arg-type]
    routed = parts(recipe).engine()
    assert isinstance(routed, RoutedEngine)
    of = [id(routed.of(name)) for name in specs]
    assert of[0] == of[1] and len(set(of)) == 4
    assert isinstance(routed.of("e"), LocalEngine)
    assert dataclasses.replace(recipe.policies["a"], engine=None).engine is None


def test_engines_that_nobody_speaks_by_hold_nobody_up(served: Serve, build_policy: Build) -> None:
    policy, ours = build_policy(**LORA), served()
    engine = RoutedEngine({"a": ours}, LocalEngine())
    assert engine.overlapped is None
    engine.publish([policy.published(0)])
    assert engine.overlapped is not None
    inbox, heard = SimpleQueue[Callable[[], None]](), list[Turn]()
    [say] = make_says([[5, 6]], Sampling(5))
    with engine.overlapped(inbox) as ask:
        ask(say, heard.append)
        inbox.get()()
    assert [turn.action_ids for turn in heard] == [turn.action_ids for turn in ours.generate({"a": [say]})["a"]]
    idle = RoutedEngine({"a": ours}, ServerEngine(url="http://127.0.0.1:9"))  # which does not answer
    idle.publish([policy.published(1)])
    assert idle.overlapped is not None
    with idle.overlapped(inbox) as ask:
        ask(say, heard.append)
        inbox.get()()
    assert len(heard) == 2
