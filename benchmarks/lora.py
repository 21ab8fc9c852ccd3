"""N adapters on one base against the base alone: rollout, update and memory, with the same rows in total.

    python benchmarks/lora.py                        # 10M, rank 16, N = 1, 2, 4, 8
    python benchmarks/lora.py --dtype bfloat16 --rank 8 --ragged

"base" is one policy that trains all weights; it samples and learns from all rows at once. With N adapters the rows are
shared out among N policies: they sample together in one batch and learn one after the other, N optimiser steps.
"frozen" samples with the bare base. "full" is what one would do without adapters: policies with weights of their own.
Contenders take turns round by round; ratios are base / contender, of medians. Memory is of a process of its own per
contender after two steps: the peak, what lies above a process that has only imported, and bytes of weights, gradients
and moments.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # see peers.py
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import torch
from peers_account import Load, peak_mib
from peers_ours import forced_ends
from peers_report import markdown, quiet
from peers_work import SIZES, Case, lengths, prompts, save_model, tokenizer

from coevolve import LocalEngine, LoraSpec, PolicySpec, Problem, Sampling, build_policies, magrpo, noise
from coevolve.collate import collate
from coevolve.types import Row, Say, Targets

CONTENDERS = ("base", "frozen", "1 lora", "2 lora", "4 lora", "8 lora", "4 full")


class Team:
    """N policies that share the rows of a case of one agent."""

    def __init__(self, name: str, case: Case, folder: str, rank: int, dtype: str) -> None:
        count, weights = name.split() if " " in name else ("1", {"base": "full"}.get(name, name))
        self.case, self.names = case, [f"agent{i}" for i in range(int(count))]
        spec = PolicySpec(folder, weights=weights, lora=LoraSpec(rank=rank), learning_rate=1e-6, dtype=dtype)  # type: ignore[arg-type]
        built = build_policies(dict.fromkeys(self.names, spec), reference=False, critic=False, steps=1, seed=0)
        for policy in built.values():
            policy.tokenizer = tokenizer(case)
        self.policies, self.engine = built, LocalEngine(built, max_tokens=1 << 20)

    def step(self, round: int) -> tuple[float, float]:
        """Seconds of the rollout and of the update."""
        says, wanted = self._says(round)
        start = time.perf_counter()
        with forced_ends(wanted, self.case.vocabulary):
            turns = self.engine.generate(says)
        rollout = time.perf_counter() - start
        made = {name: collate([Row(t, 0.0, i) for i, t in enumerate(turns[name])], name) for name in self.names}
        start = time.perf_counter()
        for name, batch in made.items():
            if self.policies[name].trainable:
                advantage_BT = torch.randn(batch.mask_BT.shape, generator=torch.Generator().manual_seed(round))
                self.policies[name].update(batch, Targets(advantage_BT * batch.mask_BT), magrpo().objective, 0)
        return rollout, time.perf_counter() - start

    def _says(self, round: int) -> tuple[Mapping[str, list[Say]], dict[int, int]]:
        """Problem k is of policy k mod N."""
        says: dict[str, list[Say]] = {name: [] for name in self.names}
        wanted, length_KG = {}, lengths(self.case, round)[0, :, 0]
        for k, words in enumerate(prompts(self.case)[0]):
            name, ids = self.names[k % len(self.names)], [int(word[1:]) for word in words.split()]
            for g in range(self.case.members):
                key = noise.key("lora", round, k, g)
                wanted[key] = int(length_KG[k, g])
                says[name].append(
                    Say(name, name, Problem(str(k)), g, 0, ids, Sampling(max_new_tokens=self.case.tokens), key)
                )
        return says, wanted

    def state_mib(self) -> float:
        """Weights that are held once each, gradients at their most, and the optimisers' moments."""
        held = {p.data_ptr(): p for policy in self.policies.values() for p in policy.weights.base.causal.parameters()}
        trained = [p for policy in self.policies.values() for p in policy.parameters]
        moments = [
            x for p in self.policies.values() if p.optimizer for s in p.optimizer.state.values() for x in s.values()
        ]
        grads = max((sum(p.numel() for p in policy.parameters) for policy in self.policies.values()), default=0)
        assert trained or not moments
        return (sum(x.numel() * x.element_size() for x in [*held.values(), *moments]) + 4 * grads) / 2**20


def main() -> None:
    asked = parse()
    torch.set_num_threads(asked.threads)
    quiet()
    case = Case(size=asked.size, agents=1, problems=16, members=8, prompt=64, tokens=asked.tokens, ragged=asked.ragged)
    with tempfile.TemporaryDirectory() as folder:
        model = asked.folder or save_model(case, Path(folder))
        if asked.memory:
            print(json.dumps(memory(asked.memory, case, model, asked)))
            return
        print(f"{asked.threads} threads, {asked.dtype}, rank {asked.rank}, {asked.rounds} rounds; {case}", flush=True)
        print(measure(case, model, asked))
        if not asked.no_memory:
            print(f"\n{weigh(model, asked)}")


def measure(case: Case, model: str, asked: argparse.Namespace) -> str:
    teams = {name: Team(name, case, model, asked.rank, asked.dtype) for name in asked.only}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in teams}
    loads = []
    for round in range(asked.rounds + 1):
        load = Load()
        for name, team in teams.items():
            took = team.step(round)
            if round:  # the first one warms up
                seconds[name].append(took)
        loads.append(load.cores())
    tokens = int(torch.stack([lengths(case, r).sum() for r in range(1, asked.rounds + 1)]).float().mean())
    rollout, update = ({name: median(pair[i] for pair in seconds[name]) for name in teams} for i in (0, 1))
    lines = []
    for name in teams:
        learns = name != "frozen"
        lines.append(
            [
                name,
                f"{tokens / rollout[name]:.0f}",
                f"{rollout['base'] / rollout[name]:.0%}",
                f"{update[name]:.3f}" if learns else "-",
                f"{update['base'] / update[name]:.0%}" if learns else "-",
            ]
        )
    head = ("contender", "rollout, tokens / s", "of the base", "update, s", "of the base")
    return f"{markdown(head, lines)}\n\nothers' load {median(loads):.2f} cores"


def weigh(model: str, asked: argparse.Namespace) -> str:
    """The table of memory, one process per contender."""
    found = {}
    for name in dict.fromkeys(("nothing", "1 lora", *asked.only)):
        command = [sys.executable, __file__, *sys.argv[1:], "--memory", name, "--folder", model]
        found[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    one, empty = found["1 lora"], found["nothing"]["peak"]
    lines = [
        [
            name,
            f"{found[name]['peak']:.0f}",
            f"{found[name]['peak'] / one['peak']:.2f}",
            f"{(found[name]['peak'] - empty) / (one['peak'] - empty):.2f}",
            f"{found[name]['state']:.1f}",
            f"{found[name]['state'] / one['state']:.2f}",
        ]
        for name in asked.only
    ]
    head = (
        "contender",
        "peak MiB",
        "x 1 lora",
        "above imports, x 1 lora",
        "weights, gradients, moments, MiB",
        "x 1 lora",
    )
    return markdown(head, lines)


def memory(name: str, case: Case, model: str, asked: argparse.Namespace) -> dict[str, float]:
    if name == "nothing":
        return {"peak": peak_mib()["peak"], "state": 0.0}
    team = Team(name, case, model, asked.rank, asked.dtype)
    for round in range(2):
        team.step(round)
    return {"peak": peak_mib()["peak"], "state": team.state_mib()}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--size", choices=list(SIZES), default="10M")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--ragged", action="store_true", help="lengths log-uniform instead of all the same")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=CONTENDERS, help="separated by commas; base is always one"
    )
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.only = tuple(dict.fromkeys(("base", *asked.only)))
    return asked


if __name__ == "__main__":
    main()
