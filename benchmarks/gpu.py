"""One policy on a GPU (or here): sampled tokens a second, the update's share of the arithmetic; vLLM and TRL beside it.

    python benchmarks/gpu.py --size 0.5B            # and 1.5B; random weights of Qwen2's shapes, nothing is downloaded
    python benchmarks/gpu.py --model models/smollm2-135m           # real weights, by tools/fetch_models.py
    COEVOLVE_VLLM=/where/vllm/is/bin python benchmarks/gpu.py --size 0.5B    # a vLLM decodes the same rows: never run
    python benchmarks/gpu.py --size 0.5B --trl transformers       # also TRL's GRPOTrainer, same prompts and lengths
    python benchmarks/gpu.py --size 0.5B --trl vllm               # which samples with a vLLM in its process: never run

K prompts of P tokens, G responses of exactly R tokens each. The update's share is 6 operations per parameter and token
fed (a group's prompt once, the output layer at responses only) over seconds x the rate of the best matrix product
measured in the same run. Medians over interleaved rounds after two warm-ups. vLLM is sampled by
our own engine, on the same GPU and with the weights of the start; it still knows the prompts of the round before, and
need not read them again. The goals are in docs/performance.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import peers_work
import torch
from by_vllm import program, server
from peers_work import Case, load_model, prompts, save_model, tokenizer, worth
from transformers import AutoConfig

from coevolve import Episode, LocalEngine, PolicySpec, Problem, Sampling, build_policies, magrpo, noise
from coevolve.collate import collate, rows_of
from coevolve.engines.server import ServerEngine
from coevolve.learners.elsewhere import FrozenElsewhere
from coevolve.types import Joint, Lesson, Say

peers_work.SIZES |= {
    "0.5B": {"hidden_size": 896, "heads": 14, "kv_heads": 2, "num_hidden_layers": 24, "intermediate_size": 4864},
    "1.5B": {"hidden_size": 1536, "heads": 12, "kv_heads": 2, "num_hidden_layers": 28, "intermediate_size": 8960},
}


class Ours:
    """One policy, its rollout and its update apart. dtype bfloat16 over float32 master weights."""

    def __init__(self, case: Case, folder: str, device: str, dtype: str) -> None:
        self.case, self.rule = case, magrpo()
        spec = PolicySpec(folder, learning_rate=1e-6, device=device, dtype=dtype, micro_tokens=1 << 13)
        self.policies = build_policies({"a": spec}, reference=False, critic=False, steps=1, seed=0)
        self.policies["a"].tokenizer, self.policies["a"].eos = tokenizer(case), frozenset()
        self.engine, self.episodes = LocalEngine(self.policies), []

    def says(self) -> list[Say]:
        return [
            Say(
                "r",
                "a",
                Problem(str(k)),
                g,
                0,
                self.engine.encode("a", text),
                Sampling(self.case.tokens),
                noise.key(k, g),
            )
            for k, text in enumerate(prompts(self.case)[0])
            for g in range(self.case.members)
        ]

    def generate(self) -> None:
        turns = self.engine.generate({"a": self.says()})["a"]
        for turn in turns:
            turn.reward, turn.peers = worth([turn.text]), (turn.problem.id,)
        self.episodes = [Episode(t.problem, t.member, [t], [Joint((t,), (t.reward or 0.0,))]) for t in turns]

    def update(self) -> None:
        rows = rows_of(self.episodes, self.rule.credit, lambda cases: [worth([t.text for t in c.turns]) for c in cases])
        batch = self.policies["a"].describe(collate(rows, "a"))
        targets, _ = self.rule.advantage(Lesson(self.episodes, {"a": batch}), {})
        self.policies["a"].update(batch, targets["a"], self.rule.objective, 0)


def transformers_generate(case: Case, folder: str, device: str, dtype: str) -> Callable[[], None]:
    """``generate`` in its best case: one call for all rows, weights in dtype."""
    model = load_model(folder).to(device, getattr(torch, dtype)).eval()
    ids = tokenizer(case)(prompts(case)[0], return_tensors="pt").input_ids.repeat_interleave(case.members, 0).to(device)

    @torch.inference_mode()
    def run() -> None:
        model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, pad_token_id=case.pad,
            max_new_tokens=case.tokens, min_new_tokens=case.tokens,
        )  # fmt: skip

    return run


def vllm_engine(ours: Ours, bin: Path, device: str) -> ServerEngine:
    """Our engine on a vLLM with the policy's weights of the start, which leaves most of a GPU to the others."""
    case, spec = ours.case, ours.policies["a"].spec
    speaker = FrozenElsewhere("a", replace(spec, weights="frozen"))
    speaker.tokenizer, speaker.eos = tokenizer(case), frozenset()  # each turn has all its tokens, or is refused
    rows = case.problems * case.members
    engine = server(bin, device, 0.15, **{"max-num-seqs": rows, "max-model-len": case.prompt + case.tokens})
    engine.publish([speaker.published(0)])
    return engine


def trl_step(case: Case, folder: str, device: str, dtype: str, sampler: str) -> Callable[[], float]:
    """One optimiser step of GRPOTrainer on all rows, a problem at a time: 128 rows at once would not fit a GPU. Returns
    the seconds of its step, without what ``train`` sets up before. sampler: vllm samples on the same GPU, which needs a
    vLLM that TRL takes, in this environment."""
    from datasets import Dataset
    from peers_trl import Clock
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(
        output_dir=tempfile.gettempdir(), use_cpu=device == "cpu", bf16=dtype == "bfloat16", learning_rate=1e-6,
        max_steps=1, per_device_train_batch_size=case.members, gradient_accumulation_steps=case.problems,
        num_generations=case.members, top_k=0, beta=0.0,
        max_completion_length=case.tokens, generation_kwargs={"min_new_tokens": case.tokens},
        gradient_checkpointing=False, max_grad_norm=0.0, logging_strategy="no", save_strategy="no", report_to="none",
        disable_tqdm=True, use_vllm=sampler == "vllm", vllm_mode="colocate", vllm_gpu_memory_utilization=0.3,
    )  # fmt: skip
    trainer = GRPOTrainer(
        load_model(folder), reward_funcs=lambda completions, **_: [worth([text]) for text in completions], args=args,
        train_dataset=Dataset.from_list([{"prompt": text} for text in prompts(case)[0]]),
        processing_class=tokenizer(case), callbacks=[clock := Clock()],
    )  # fmt: skip

    def run() -> float:
        trainer.train()
        return clock.end - clock.start

    return run


def rate(device: str, dtype: str) -> float:
    """Operations a second of a large matrix product."""
    n = 8192 if device == "cuda" else 1024
    x = torch.randn(n, n, device=device, dtype=getattr(torch, dtype))
    return 2 * n**3 / min(seconds(lambda: x @ x, device) for _ in range(10))


def seconds(run: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", default="0.5B", choices=sorted(peers_work.SIZES))
    parser.add_argument("--model", help="a folder of real weights, instead of a size")
    for name, default in (("problems", 16), ("members", 8), ("prompt", 256), ("tokens", 256), ("vocabulary", 151936)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trl", choices=("transformers", "vllm"), help="what TRL samples with")
    asked = vars(parser.parse_args())
    rounds, trl = asked.pop("rounds"), asked.pop("trl")
    if asked["model"] is not None:
        words = AutoConfig.from_pretrained(asked["model"]).vocab_size
        asked |= {"size": Path(asked["model"]).name, "vocabulary": words}
    case = Case(agents=1, ragged=False, **asked)
    device, dtype = "cuda" if torch.cuda.is_available() else "cpu", "bfloat16"
    with tempfile.TemporaryDirectory() as folder:
        report(case, save_model(case, Path(folder)), device, dtype, rounds, trl)


def report(case: Case, folder: str, device: str, dtype: str, rounds: int, trl: str | None) -> None:
    ours = Ours(case, folder, device, dtype)
    contenders = {"rollout": ours.generate, "update": ours.update}
    contenders["generate"] = transformers_generate(case, folder, device, dtype)
    if by := program():
        there = vllm_engine(ours, by, device)
        contenders["vLLM"] = lambda: there.generate({"a": ours.says()})
    timed = {name: partial(seconds, run, device) for name, run in contenders.items()}
    if trl:
        timed["trl step"] = trl_step(case, folder, device, dtype, trl)
    found: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(rounds + 2):
        for name, measure in timed.items():
            found[name].append(measure())
    median = {name: statistics.median(times[2:]) for name, times in found.items()}
    new = case.problems * case.members * case.tokens
    model = ours.policies["a"].weights.base.causal
    head = model.get_output_embeddings().weight.numel()
    body = sum(p.numel() for p in model.parameters()) - head
    fed = case.problems * (case.prompt + case.members * (case.tokens - 1))
    best = rate(device, dtype)
    share = 6 * (body * fed + head * new) / median["update"] / best
    print(
        f"{case}, {dtype} on {torch.cuda.get_device_name() if device == 'cuda' else device}, {best / 1e12:.2f} TFLOP/s"
    )
    print(f"rollout {new / median['rollout']:.0f} tokens/s, {median['generate'] / median['rollout']:.2f}x generate")
    if by:
        print(f"vLLM {new / median['vLLM']:.0f} tokens/s, {median['rollout'] / median['vLLM']:.2f}x our rollout")
        there.close()
    print(f"update {new / median['update']:.0f} trained tokens/s, {share:.0%} of the best matrix product")
    if device == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB (all contenders in one process)")
    if trl:
        print(f"step {median['trl step'] / (median['rollout'] + median['update']):.2f}x TRL (by {trl})")


if __name__ == "__main__":
    main()
