"""What samples: this process, worker processes, a real vLLM; the same chains of two agents, in turn, round by round.

    python benchmarks/engines.py                                        # coevolve-tiny, 64 episodes
    COEVOLVE_VLLM=.venv-vllm/bin python benchmarks/engines.py           # with vLLM, after `make test-server`
    COEVOLVE_VLLM=... python benchmarks/engines.py --device cuda --model models/smollm2-135m        # never run

Two LoRA agents on one base continue openings of the task sentiment; the second hears the first, and turns end by
themselves, after 3 to 48 tokens. vLLM draws other random numbers than we, so texts differ and rates are compared. "in
step" and "at own pace" are the two drivers of ``coevolve.rollout`` on one vLLM: the first waits for all first turns
before anybody's second one. Ratios are of median rates, to the engine in this process. A publish is that of both
adapters, with the bytes that it writes for a server (the other engines share the weights) and those that a dry run
predicts; start-up is all until the first turns are back. vLLM has as many threads as it takes, we have one a process.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # see peers.py
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import argparse
import math
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from by_vllm import program, server
from learners import predicted, written
from peers_report import markdown, quiet

from coevolve import LocalEngine, PolicySpec, build_policies
from coevolve.engines.server import ServerEngine
from coevolve.plays import chain
from coevolve.rollout import Stage, rollout
from coevolve.tasks.sentiment import Sentiment
from coevolve.types import Sampling

AGENTS = ("ann", "bob")


class InStep:
    """A server engine without its own pace."""

    def __init__(self, engine: ServerEngine) -> None:
        self.encode, self.generate = engine.encode, engine.generate


class Contender:
    """An engine with its policies, and what it took."""

    def __init__(self, engine: Any, policies: Any, task: Sentiment, tokens: int, episodes: int) -> None:
        self.engine, self.policies, self.task, self.sampling = engine, policies, task, Sampling(tokens)
        self.problems = task.train[:episodes]
        self.rates, self.publishes = list[float](), list[float]()
        start = time.perf_counter()
        self.publish(0)
        self.play(0, engine)
        self.begun = time.perf_counter() - start

    def publish(self, version: int) -> float:
        start = time.perf_counter()
        self.engine.publish([self.policies[name].published(version) for name in AGENTS])
        return time.perf_counter() - start

    def play(self, round: int, engine: Any) -> float:
        start = time.perf_counter()
        stage = Stage(dict(zip(AGENTS, AGENTS, strict=True)), self.task, engine, self.sampling, step=round)
        episodes = rollout(chain(), self.problems, stage)
        spent = time.perf_counter() - start
        return sum(len(turn.action_ids) for episode in episodes for turn in episode.turns) / spent

    def line(self, name: str, like: list[float]) -> list[str]:
        rate, publish = median(self.rates), 1e3 * median(self.publishes)
        sizes = sum(written(self.policies[agent]) for agent in AGENTS) / 1e6
        foretold = sum(predicted(self.policies[agent].spec) for agent in AGENTS) / 1e6
        return [
            name, f"{rate:.0f}", f"{rate / median(like):.2f}", f"{publish:.0f}", f"{sizes:.2f}", f"{foretold:.2f}",
            "-" if math.isnan(self.begun) else f"{self.begun:.1f}",
        ]  # fmt: skip


def vllm(bin: Path, device: str, begin: Any) -> dict[str, tuple[Contender, Any]]:
    """One server, and how it is driven. On a GPU it leaves half of the memory to the others."""
    engine = server(bin, device, 0.5, **{"max-num-seqs": 128, "max-model-len": 512})
    first = begin(engine)
    again = begin(engine)
    again.begun = math.nan  # the server was started already
    return {"vLLM, at own pace": (first, engine), "vLLM, in step": (again, InStep(engine))}


HEADER = ("engine", "tokens/s", "times this process", "publish, ms", "MB", "MB, predicted", "start-up, s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="coevolve-tiny")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    quiet()
    dtype = "float32" if asked.device == "cpu" else "bfloat16"  # as vLLM computes adapters on GPUs
    spec = PolicySpec(asked.model, weights="lora", device=asked.device, dtype=dtype)
    build = partial(build_policies, dict.fromkeys(AGENTS, spec), reference=False, critic=False, steps=9, seed=0)
    begin = partial(Contender, task=Sentiment(), tokens=asked.tokens, episodes=asked.episodes)
    alone = build(workers=False)
    made = {"this process": begin(LocalEngine(alone), alone)}
    if asked.device == "cpu":
        spread = build(workers=True)
        made["worker processes"] = begin(LocalEngine(spread), spread)
    paces = {name: (one, one.engine) for name, one in made.items()}
    if bin := program():
        paces |= vllm(bin, asked.device, partial(begin, policies=alone))
    for round in range(1, asked.rounds + 1):
        for one, engine in paces.values():
            one.publishes.append(one.publish(round))
            one.rates.append(one.play(round, engine))
    print(f"load average {os.getloadavg()[0]:.1f}")
    like = made["this process"].rates
    print(markdown(HEADER, [one.line(name, like) for name, (one, _) in paces.items()]))
    for one, _ in paces.values():
        one.engine.close()
    for policy in (policy for one in made.values() for policy in one.policies.values()):
        policy.close()


if __name__ == "__main__":
    main()
