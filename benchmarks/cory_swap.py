"""CORY as we have it against the structure of its released script, with the same policies, plays and updates.

    python benchmarks/cory_swap.py                      # one table per model size
    python benchmarks/cory_swap.py --sizes 1M --steps 2 --rows 4 --tokens 8 --threads 1     # to try it out

Theirs, as structure: two PPO trainers one after the other, each with its own start model as reference, and at every
exchange both models are written to disk, read again by the other trainer, and both optimisers rebuilt. Ours: one
reference for both agents, and an exchange is a look-up in a dictionary. No line of their code runs here: both sides are
our policies, our engine and our PPO, so that the structure alone differs. Each side has a process of its own, because
memory is compared; the two take turns, and the table has medians over all of their steps.
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
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from peers_account import Load, cores, peak_mib
from peers_report import markdown, quiet
from peers_work import LEARNING_RATE, SIZES, Case, prompts, save_model, tokenizer, worth

from coevolve import PolicySpec, Problem, Sampling, Trainer, build_policies, cory
from coevolve.cast import exchange, fixed
from coevolve.plays import chain
from coevolve.types import Case as Judged
from coevolve.types import Turn

PIONEER, OBSERVER = "pioneer", "observer"
STRUCTURES = ("ours", "script")
TURNS = 2
"""Processes per structure, in turn."""


class Queries:
    """A query each; the observer also hears the pioneer's answer, between two copies of the query."""

    def __init__(self, case: Case) -> None:
        self.train = self.test = [Problem(str(k), {"text": text}) for k, text in enumerate(prompts(case)[0])]

    def prompt(self, p: Problem, role: str, heard: Sequence[Turn | str]) -> str:
        said = [part.text.strip() if isinstance(part, Turn) else part for part in heard]
        text: str = p.data["text"]
        return " ".join((text, *said, text)) if said else text

    def reward(self, cases: Sequence[Judged]) -> list[list[float]]:
        return [[worth([turn.text]) for turn in case.turns] for case in cases]


class Team:
    """Pioneer and observer with PPO, 4 epochs over the batch. every: steps between two exchanges.

    shared: one reference for both, and roles exchanged by name. Else each policy is built by itself, with a reference
    of its own, and ``exchange`` goes through the disk.
    """

    def __init__(self, case: Case, folder: str, every: int, shared: bool) -> None:
        self.every, self.shared = every, shared
        specs = {name: PolicySpec(model=folder, learning_rate=LEARNING_RATE) for name in (PIONEER, OBSERVER)}
        needs: dict[str, Any] = {"reference": True, "critic": True, "steps": 1, "seed": 0}
        if shared:
            self.policies = build_policies(specs, **needs)
        else:
            self.policies = {name: build_policies({name: spec}, **needs)[name] for name, spec in specs.items()}
        for policy in self.policies.values():
            policy.tokenizer, policy.eos = tokenizer(case), frozenset()  # so that every turn has all its tokens
        roles = {PIONEER: PIONEER, OBSERVER: OBSERVER}
        self.trainer = Trainer(
            task=Queries(case),
            play=chain(),
            cast=exchange(roles, every) if shared else fixed(roles),
            policies=self.policies,
            algorithm=cory(),
            sampling=Sampling(max_new_tokens=case.tokens),
            batch_size=case.problems,
        )

    def step(self, i: int) -> tuple[float, float]:
        """Seconds of step i without, and of, the exchange before it."""
        start = time.perf_counter()
        if not self.shared and i and i % self.every == 0:
            self.exchange()
        exchanged = time.perf_counter()
        self.trainer.step(i)
        return time.perf_counter() - exchanged, exchanged - start

    def exchange(self) -> None:
        """Each goes on with what the other has written."""
        with tempfile.TemporaryDirectory() as place:
            folders = {name: Path(place, name) for name in self.policies}
            for name, policy in self.policies.items():
                policy.save(folders[name])
            for policy, folder in zip(self.policies.values(), reversed(folders.values()), strict=True):
                policy.weights.load(folder)
                policy.reset_optimizer()


def alone(asked: argparse.Namespace) -> dict[str, Any]:
    """One structure in this process: seconds of every step after the first and of every exchange, memory."""
    case = _case(asked.alone["size"], asked)
    team = Team(case, asked.alone["folder"], asked.every, asked.alone["structure"] == "ours")
    start = peak_mib()
    load = Load()
    pairs = [team.step(i) for i in range(1 + asked.steps)][1:]
    exchanges = [exchanged for i, (_, exchanged) in enumerate(pairs, 1) if i % asked.every == 0]
    memory = {"start": start.get("now", 0.0), "peak": peak_mib().get("peak", 0.0)}
    return {"steps": [seconds for seconds, _ in pairs], "exchanges": exchanges, "busy": load.cores(), **memory}


def compare(size: str, asked: argparse.Namespace) -> str:
    """Both structures on one model size, in turn, as a table."""
    found: dict[str, list[dict[str, Any]]] = {structure: [] for structure in STRUCTURES}
    with tempfile.TemporaryDirectory() as folder:
        save_model(_case(size, asked), Path(folder))
        for _ in range(TURNS):
            for structure in STRUCTURES:
                told = json.dumps({"size": size, "folder": folder, "structure": structure})
                command = [sys.executable, __file__, *sys.argv[1:], "--alone", told]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                found[structure].append(json.loads(done.stdout.splitlines()[-1]))
    head = (
        "structure",
        "s / step",
        "s / exchange",
        "s / step with them",
        "MiB at the start",
        "peak MiB",
        "others' load",
    )
    return markdown(head, [_line(structure, runs, asked.every) for structure, runs in found.items()])


def _line(structure: str, runs: Sequence[dict[str, Any]], every: int) -> list[str]:
    step = median(seconds for run in runs for seconds in run["steps"])
    exchanges = [seconds for run in runs for seconds in run["exchanges"]]
    swap = median(exchanges) if exchanges else 0.0
    memory = [max(run[what] for run in runs) for what in ("start", "peak")]
    seconds = [f"{step:.3g}", f"{swap:.3g}", f"{step + swap / every:.3g}"]
    return [structure, *seconds, *(f"{mib:.0f}" for mib in memory), f"{median(run['busy'] for run in runs):.2f}"]


def _case(size: str, asked: argparse.Namespace) -> Case:
    return Case(size=size, agents=1, problems=asked.rows, members=1, prompt=8, tokens=asked.tokens, ragged=False)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default=",".join(SIZES), help="with commas between")
    parser.add_argument("--steps", type=int, default=10, help="timed steps per process, after a warm-up")
    parser.add_argument("--every", type=int, default=5, help="steps between two exchanges")
    parser.add_argument("--rows", type=int, default=64, help="queries per step")
    parser.add_argument("--tokens", type=int, default=16, help="of each answer")
    parser.add_argument("--threads", type=int, default=cores(), help="default: all cores")
    parser.add_argument("--alone", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := [size for size in asked.sizes.split(",") if size not in SIZES]:
        parser.error(f"no sizes {unknown}; there are {', '.join(SIZES)}")
    return asked


def main() -> None:
    asked = parse()
    torch.set_num_threads(asked.threads)
    quiet()
    if asked.alone:
        print(json.dumps(alone(asked)))
        return
    print(f"{asked.rows} queries of 8 tokens, answers of {asked.tokens}, exchange every {asked.every} steps, ", end="")
    print(f"{asked.threads} threads")
    for size in asked.sizes.split(","):
        print(f"\n### {size}\n\n{compare(size, asked)}", flush=True)


if __name__ == "__main__":
    main()
