"""The engine against plain transformers forwards, and against itself in other batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from policy_cases import EOS, TOKENS, Build, make_says, plain, ragged, shaken
from torch.utils._python_dispatch import TorchDispatchMode

from coevolve import noise
from coevolve.compute.torch_backend import RowCache
from coevolve.engines import decode
from coevolve.engines.local import LocalEngine, chunks, sample_base
from coevolve.engines.routed import RoutedEngine
from coevolve.learners.build import build_policies
from coevolve.models.adapters import Adapters
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.types import Sampling, Say

pytestmark = pytest.mark.usefixtures("each_way")


def naive_logits(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """Next-token logits after ids: one row, no padding, no cache."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0, -1]


def naive_turn(model: torch.nn.Module, say: Say) -> tuple[list[int], list[float]]:
    """Sampling written plainly: token by token, the first token whose cumulative probability exceeds the uniform."""
    ids, actions, logps = list(say.prompt_ids), [], []
    for t in range(say.sampling.length_range[1]):
        logits = naive_logits(model, ids) / (say.sampling.temperature or 1.0)
        logp = torch.log_softmax(logits, -1)
        u = float(noise.uniform(torch.tensor([say.key]), t))
        token = int(logits.argmax()) if say.sampling.temperature == 0 else -1
        if token < 0:
            total = 0.0
            for candidate, p in enumerate(logp.exp().tolist()):
                total += p
                token = candidate
                if total > u:
                    break
        ids.append(token)
        actions.append(token)
        logps.append(float(logp[token]))
        if token == EOS:
            break
    return actions, logps


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("way", ["tree", "rows"])
@pytest.mark.parametrize("family", ["micro_model", "micro_gpt2"])
def test_turns_are_those_of_a_plain_forward(
    family: str, way: str, temperature: float, build_policy: Build, request: pytest.FixtureRequest
) -> None:
    policy = plain(build_policy(model=request.getfixturevalue(family)), way != "rows")
    prompts = ragged(9, seed=3)
    prompts += [prompts[0] + [7, 8, 9] * 4, prompts[0] + [7, 8, 9] * 5]
    says = make_says([*prompts, *prompts, *prompts[:3]], Sampling(9, temperature=temperature))
    turns = LocalEngine({"a": policy}).generate({"a": says})["a"]
    for say, turn in zip(says, turns, strict=True):
        actions, logps = naive_turn(policy.weights.base.causal, say)
        assert turn.action_ids == actions
        torch.testing.assert_close(torch.tensor(turn.logps), torch.tensor(logps), rtol=1e-5, atol=1e-5)
        assert turn.finished == (actions[-1] == EOS)
        assert turn.temperature == (temperature or 1.0)
        assert (turn.prompt_ids, turn.problem, turn.role) == (say.prompt_ids, say.problem, say.role)


@pytest.mark.parametrize("family", ["micro_model", "micro_gpt2"])
def test_a_row_does_not_depend_on_its_batch(family: str, build_policy: Build, request: pytest.FixtureRequest) -> None:
    engine = LocalEngine({"a": build_policy(model=request.getfixturevalue(family))})
    says = make_says(ragged(16, seed=4), Sampling(12))
    together = engine.generate({"a": says})["a"]
    for say, turn in zip(says, together, strict=True):
        (alone,) = engine.generate({"a": [say]})["a"]
        assert alone.action_ids == turn.action_ids
        torch.testing.assert_close(torch.tensor(alone.logps), torch.tensor(turn.logps), rtol=1e-5, atol=1e-5)
    backwards = engine.generate({"a": says[::-1]})["a"][::-1]
    assert [t.action_ids for t in backwards] == [t.action_ids for t in together]


def test_compaction_changes_nothing(build_policy: Build, each_way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of all ids end a turn, so rows leave at every step; never leaving must give the same turns."""
    policy = build_policy()
    policy.eos = frozenset(range(0, TOKENS, 5))
    prompts = ragged(11, seed=5)
    engine, says = LocalEngine({"a": policy}), make_says([*prompts * 4], Sampling(16))
    sizes: list[int] = []
    by_loops = each_way == "cpu"
    memory: Any = import_module("coevolve.compute.cpu.attention").PrefixCache if by_loops else RowCache
    keep = memory.keep

    def counting(self: Any, order_B: torch.Tensor, holes: torch.Tensor) -> None:
        sizes.append(len(order_B))
        keep(self, order_B, holes)

    monkeypatch.setattr(memory, "keep", counting)
    compacted = engine.generate({"a": says})["a"]
    assert len(sizes) > 2 and sizes == sorted(sizes, reverse=True)
    monkeypatch.setattr(decode._State, "compact", lambda self, done: None)
    whole = engine.generate({"a": says})["a"]
    assert [t.action_ids for t in whole] == [t.action_ids for t in compacted]
    for a, b in zip(whole, compacted, strict=True):
        torch.testing.assert_close(torch.tensor(a.logps), torch.tensor(b.logps), rtol=1e-5, atol=1e-5)
    assert {len(t.action_ids) for t in whole} >= {1, 2, 3}


@pytest.mark.parametrize("steps", [15, 16, 17, 40])
def test_finished_rows_may_be_looked_for_at_every_16th_token(
    steps: int, build_policy: Build, each_way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on GPUs: the same turns, and all are done before the last token."""
    policy = build_policy()
    policy.eos = frozenset(range(0, TOKENS, 5))
    engine, says = LocalEngine({"a": policy}), make_says(ragged(11, seed=5) * 2, Sampling(steps))
    at_once = engine.generate({"a": says})["a"]
    drawn, draw = list[int](), decode.draw

    def counting(*given: Any) -> Any:
        drawn.append(1)
        return draw(*given)

    monkeypatch.setattr(decode, "draw", counting)
    every = decode.every(torch.device("cuda"))
    assert (every, decode.every(torch.device("cpu"))) == (16, 1)
    monkeypatch.setattr(decode, "every", lambda device: every)
    later = engine.generate({"a": says})["a"]
    assert [t.action_ids for t in later] == [t.action_ids for t in at_once]
    for a, b in zip(at_once, later, strict=True):
        torch.testing.assert_close(torch.tensor(a.logps), torch.tensor(b.logps), rtol=1e-5, atol=1e-5)
    assert len(drawn) == min(steps, 32)  # behind 17 tokens at the most all have ended


def test_who_is_told_of_tokens_hears_those_of_the_turn(build_policy: Build) -> None:
    """Each of its own row, the end among them, in order, while rows leave; and nobody's turn is another one for it."""
    policy = build_policy()
    policy.eos = frozenset(range(0, TOKENS, 5))
    engine, says = LocalEngine({"a": policy}), make_says(ragged(11, seed=5) * 2, Sampling(16))
    heard: list[list[int]] = [[] for _ in says]
    listened = [replace(say, on_token=heard[i].append) if i % 3 else say for i, say in enumerate(says)]
    turns = engine.generate({"a": listened})["a"]
    assert [t.action_ids for t in turns] == [t.action_ids for t in engine.generate({"a": says})["a"]]
    assert heard == [list(turn.action_ids) if i % 3 else [] for i, turn in enumerate(turns)]
    assert {len(ids) for ids in heard} >= {0, 1, 2, 3}


def test_end_of_sequence_is_part_of_the_turn_and_not_of_its_text(build_policy: Build) -> None:
    policy = build_policy()
    engine = LocalEngine({"a": policy})
    first = engine.generate({"a": make_says(ragged(8, seed=6), Sampling(6))})["a"]
    policy.eos = frozenset({first[0].action_ids[2], EOS})
    engine.publish([policy.published(0)])
    again = engine.generate({"a": make_says(ragged(8, seed=6), Sampling(6))})["a"][0]
    cut = first[0].action_ids.index(first[0].action_ids[2])
    assert again.finished and again.action_ids == first[0].action_ids[: cut + 1]
    policy.eos = frozenset(range(100))
    engine.publish([policy.published(0)])
    one = engine.generate({"a": make_says(ragged(8, seed=6), Sampling(6))})["a"]
    assert all(t.finished and len(t.action_ids) == len(t.logps) == 1 for t in one)
    policy.eos = frozenset()
    engine.publish([policy.published(0)])
    never = engine.generate({"a": make_says(ragged(24, seed=3), Sampling(30))})["a"]
    assert not any(t.finished for t in never) and all(len(t.action_ids) == 30 for t in never)
    special = [t.text for t in never if {0, EOS} & {*t.action_ids}]
    assert special and not any("<eos>" in text or "<pad>" in text for text in special)


def test_members_prefill_their_prompt_once(build_policy: Build, each_way: str) -> None:
    policy = build_policy()
    shapes: list[tuple[int, ...]] = []
    embedding = policy.weights.base.causal.model.embed_tokens
    embedding.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(inputs[0].shape)))
    prompts = ragged(3, seed=7)
    turns = LocalEngine({"a": policy}).generate({"a": make_says([*prompts * 5], Sampling(4))})["a"]
    packed, padded = (1, sum(map(len, prompts)) // 8 * 8 + 8), (3, max(map(len, prompts)))  # filled up, too
    assert shapes[0] == (packed if each_way == "cpu" else padded)
    assert shapes[1] == (15, 1)  # the next token of every member
    assert len({tuple(t.action_ids) for t in turns[::3]}) > 1, "members of one prompt have their own noise"


@pytest.mark.parametrize("stay", [[0, 1], [2, 3], [4, 5, 6, 7], [0, 1, 6, 7], [3, 4, 5, 6]])
def test_whichever_prompts_rows_leave_the_others_go_on(stay: list[int], build_policy: Build) -> None:
    policy = build_policy()
    prompts = ragged(4, seed=9)
    adapters = Adapters([None], policy.device)
    with torch.no_grad(), policy.active() as causal:
        sampler = policy.backend.sampler(adapters, torch.float32)
        memory = sampler.session(prompts, [0] * 4, [0, 0, 1, 1, 2, 2, 3, 3], 3)
        lengths = torch.tensor([len(prompts[b // 2]) for b in range(8)])
        memory.step(torch.full((8,), 5), lengths)
        order = stay + [b for b in range(8) if b not in stay]
        order_B = torch.tensor(order[: len(stay)])
        memory.keep(order_B, torch.tensor([b for b in range(len(stay)) if order[b] != b], dtype=torch.long))
        hidden = memory.step(torch.full((len(stay),), 7), lengths[order_B] + 1)
        for b, state in zip(stay, hidden, strict=True):
            alone = causal.model(torch.tensor([[*prompts[b // 2], 5, 7]])).last_hidden_state[0, -1]
            torch.testing.assert_close(state, alone, rtol=1e-4, atol=1e-5)


def test_a_row_of_a_crowd_is_as_alone(build_policy: Build) -> None:
    engine, prompts = LocalEngine({"a": build_policy()}), ragged(6, seed=5)
    says = make_says([prompts[0]] * 20 + prompts, Sampling(9))
    together = engine.generate({"a": says})["a"]
    for say, turn in zip(says, together, strict=True):
        assert engine.generate({"a": [say]})["a"][0].action_ids == turn.action_ids


def test_nothing_asked_is_nothing_said(build_policy: Build) -> None:
    assert LocalEngine({"a": build_policy()}).generate({"a": []}) == {"a": []}


def test_chunks_bound_tokens_and_padding_and_mix_no_samplings() -> None:
    short, long = Sampling(4), Sampling(8)
    says = make_says([[5] * n for n in (3, 200, 4, 5, 210)], short) + make_says([[5] * 3] * 2, long)
    groups = [[len(says[i].prompt_ids) for i in group] for group in chunks(says, max_tokens=1000)]
    assert sorted(groups) == [[3, 3], [3, 4, 5], [200, 210]]
    assert [len(g) for g in chunks(make_says([[5] * 6] * 7, short), max_tokens=30)] == [3, 3, 1]
    assert [len(g) for g in chunks(make_says([[5] * 60] * 2, short), max_tokens=30)] == [1, 1]


def test_chunks_do_not_change_turns(build_policy: Build) -> None:
    policy, says = build_policy(), make_says(ragged(12, seed=8), Sampling(5))
    whole = LocalEngine({"a": policy}).generate({"a": says})["a"]
    pieces = LocalEngine({"a": policy}, max_tokens=64).generate({"a": says})["a"]
    assert [t.action_ids for t in whole] == [t.action_ids for t in pieces]


def test_a_prompt_without_room_is_named(build_policy: Build) -> None:
    engine = LocalEngine({"a": build_policy()})
    fits, too_long = make_says([[5] * 250, [5] * 251], Sampling(6))
    assert len(engine.generate({"a": [fits]})["a"]) == 1
    with pytest.raises(ValueError, match=r"role 'role', policy 'a', problem 'p1': a prompt of 251 tokens and 6 new"):
        engine.generate({"a": [too_long]})


def test_truncation_says_how_far_off_it_is(build_policy: Build) -> None:
    policy = build_policy()
    engine, prompts = LocalEngine({"a": policy}), ragged(32, seed=9)
    plain = engine.generate({"a": make_says(prompts, Sampling(6))})["a"]
    assert all(turn.excess == 0 for turn in plain)
    says = make_says(prompts, Sampling(6, top_k=3, top_p=0.9, repetition_penalty=1.3))
    turns = engine.generate({"a": says})["a"]
    assert sum(turn.excess for turn in turns) > 0
    model = policy.weights.base.causal
    for turn in turns:
        ids = list(turn.prompt_ids)
        for token, logp in zip(turn.action_ids, turn.logps, strict=True):
            logits = naive_logits(model, ids)
            assert logp == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-5)
            seen = torch.tensor(sorted(set(ids)))
            logits[seen] = torch.where(logits[seen] > 0, logits[seen] / 1.3, logits[seen] * 1.3)
            assert int((logits > logits[token]).sum()) < 3
            ids.append(token)


def test_two_policies_answer_in_one_call(micro_model: str, micro_gpt2: str) -> None:
    policies = build_policies(
        {"a": PolicySpec(micro_model), "b": PolicySpec(micro_gpt2)}, reference=False, critic=False, steps=1, seed=0
    )
    engine, prompts = LocalEngine(policies), ragged(4, seed=10)
    both = engine.generate({name: make_says(prompts, Sampling(5), name) for name in ("b", "a")})
    assert list(both) == ["b", "a"]
    for name in both:
        alone = engine.generate({name: make_says(prompts, Sampling(5), name)})[name]
        assert [t.action_ids for t in alone] == [t.action_ids for t in both[name]]
    assert [t.action_ids for t in both["a"]] != [t.action_ids for t in both["b"]]


def test_devices_answer_side_by_side(micro_model: str) -> None:
    """Two names of the CPU stand for two devices: each answers in its own thread, and nothing else changes."""
    specs = {name: PolicySpec(micro_model, weights="frozen", device=name) for name in ("cpu", "cpu:0")}
    policies = {n: build_policies({n: s}, reference=False, critic=False, steps=1, seed=0)[n] for n, s in specs.items()}
    policies["cpu:0"].device = torch.device("cpu", 0)
    assert policies["cpu"].device != policies["cpu:0"].device
    says = {name: make_says(ragged(4, seed=12), Sampling(5), name) for name in policies}
    turns = LocalEngine(policies).generate(says)
    assert list(turns) == ["cpu", "cpu:0"]
    assert [t.action_ids for t in turns["cpu"]] == [t.action_ids for t in turns["cpu:0"]]


def test_local_engines_that_share_a_base_take_turns(micro_model: str) -> None:
    """Asked side by side, each says what it says alone, bit for bit: with its own adapter and in its own batches."""
    lora = PolicySpec(micro_model, weights="lora", lora=LoraSpec(rank=4))
    policies = build_policies({"a": lora, "b": lora}, reference=False, critic=False, steps=1, seed=0)
    for number, policy in enumerate(policies.values()):
        shaken(policy, number)
    engine = RoutedEngine({"a": LocalEngine(max_tokens=1024)}, LocalEngine())
    engine.publish([policy.published(0) for policy in policies.values()])
    says = {name: make_says([[5, 6, 7, 8]] * 32, Sampling(60), name) for name in policies}
    alone = {name: engine.of(name).generate({name: says[name]})[name] for name in policies}
    assert [t.action_ids for t in alone["a"]] != [t.action_ids for t in alone["b"]]
    for _ in range(3):
        assert engine.generate(says) == alone


def test_diverged_weights_are_named(build_policy: Build) -> None:
    policy = build_policy()
    with torch.no_grad():
        policy.parameters[0].fill_(torch.nan)
    with pytest.raises(ValueError, match=r"policy 'a', problem 'p0': the model's probabilities are not finite"):
        LocalEngine({"a": policy}).generate({"a": make_says(ragged(3, seed=13), Sampling(5))})


def test_bfloat16_runs_and_stays_near(build_policy: Build) -> None:
    """The log-probability kept is the bfloat16 model's own; against float32 it is off by rounding only."""
    policy = build_policy(dtype="bfloat16")
    turns = LocalEngine({"a": policy}).generate({"a": make_says(ragged(8, seed=11), Sampling(5))})["a"]
    assert all(p.dtype == torch.float32 for p in policy.weights.base.causal.parameters())
    for turn in turns:
        ids = list(turn.prompt_ids)
        for token, logp in zip(turn.action_ids, turn.logps, strict=True):
            exact = naive_logits(policy.weights.base.causal, ids).log_softmax(-1)[token]
            assert logp == pytest.approx(float(exact), abs=0.25)
            ids.append(token)


def test_engines_side_by_side_are_as_stale_as_the_stalest():
    """Where one is sampled ahead all are, and none may be started anew with weights that change."""

    class Kind:
        def __init__(self, staleness):
            self.staleness = staleness

    one, other, third = Kind(1), Kind(0), object()
    assert RoutedEngine({"ann": other, "bob": third}, one).staleness == 1
    assert (one.staleness, other.staleness) == (1, 1)


class Rounded(TorchDispatchMode):
    """Counts how often each parameter is converted to another dtype."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.counts = {p.data_ptr(): 0 for p in parameters}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_to_copy" in str(func) and args[0].data_ptr() in self.counts:
            self.counts[args[0].data_ptr()] += 1
        return func(*args, **(kwargs or {}))


def test_trained_weights_are_rounded_once_a_sampling(build_policy: Build) -> None:
    policy = build_policy(weights="full", dtype="bfloat16", compute="torch")
    with Rounded(policy.parameters) as found:
        sample_base({"a": policy}, {"a": make_says([[5, 6]], Sampling(8))}, 1 << 20)
    assert max(found.counts.values()) == 1


def test_policies_on_a_gpu_are_named_with_what_is_lacking_there(
    build_policy: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LocalEngine({"a": build_policy()})
    assert engine.about == "LocalEngine"
    monkeypatch.setattr(engine.policies["a"], "device", torch.device("cuda:1"))
    assert engine.about == "LocalEngine (a on a GPU without CUDA graphs and continuous batching, which vllm has)"
