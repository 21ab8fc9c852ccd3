"""Ours, TRL's GRPOTrainer and CoMLRL's MAGRPOTrainer on identical work, in one process, round by round in turn.

    pip install 'coevolve[peers]'
    python benchmarks/peers.py --quick     # the centre only; last line "comlrl A.Ax trl B.Bx"
    python benchmarks/peers.py --quick --ours   # without the peers, which need not be installed
    python benchmarks/peers.py             # all rows: one thing at a time is other than in the centre
    python benchmarks/peers.py --quick --model models/smollm2-135m   # real weights, by tools/fetch_models.py
    python benchmarks/peers.py --limits    # ours alone: how close rollout and update come to the machine's limit

Same weights, prompts, lengths and sampling (temperature 1, no truncation); everybody's responses end where a table
says, which is checked after every step, as are the tokens trained on and the optimiser steps. Medians over rounds after
one warm-up each. benchmarks/README.md says what is compared and what is not. To try it out:

    python benchmarks/peers.py --quick --size 1M --problems 2 --members 2 --tokens 16 --rounds 1 --threads 1
"""

from __future__ import annotations

import os

# A waiting OpenMP thread spins this often before it sleeps: it costs little on a quiet machine, and keeps a busy
# neighbour from stopping everything. The same for all contenders. Read when torch is loaded, hence set before.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1"}

import argparse
import dataclasses
import gc
import importlib.metadata
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import peers_report as report
import torch
from peers_account import Account, Load, peak_mib
from peers_limits import Machine, limits, measure
from peers_work import SIZES, Case, save_model
from transformers import AutoConfig

from coevolve.runtime.cores import cores
from coevolve.runtime.processor import bfloat16_by

OURS, OURS_BF16, TRL, COMLRL = "ours", "ours bf16", "trl", "comlrl"
EVERYBODY = (OURS, OURS_BF16, COMLRL, TRL)
PEERS = {"comlrl": "1.4.3", "trl": "1.16.0"}
QUICK_ROUNDS, ROUNDS = 5, 5
AT_128 = {"agents": 1, "problems": 16, "members": 8}
"""Who decodes 128 rows at once: the batch at which the shares of the limit are asked for."""


def rows(centre: Case) -> dict[str, Case]:
    """The centre, and around it one thing at a time. A tree of 8 x 8 would be 9 times the work, so it has 4 x 4."""
    changes: dict[str, dict[str, Any]] = {
        "centre": {},
        "1M": {"size": "1M"},
        "50M": {"size": "50M"},
        "1 problem": {"problems": 1},
        "16 problems": {"problems": 16},
        "fixed lengths": {"ragged": False},
        "prompt 256": {"prompt": 256},
        "vocabulary 50k": {"vocabulary": 50257},
        "2 turns": {"turns": 2, "play": "tree", "members": min(4, centre.members)},
    }
    if centre.model is not None:  # which is as large as it is, and whose lengths are fixed
        changes = {name: changes[name] for name in ("centre", "1 problem", "16 problems", "prompt 256")}
    return {name: dataclasses.replace(centre, **change) for name, change in changes.items()}


def contender(name: str, case: Case, folder: str, batch: int | None = None) -> Any:
    """The one of this name, ready for its first step; None if it cannot do the case."""
    if name == COMLRL:
        from peers_comlrl import Comlrl

        return Comlrl(case, folder)
    if name == TRL:
        from peers_trl import Trl

        return None if case.turns > 1 else Trl(case, folder, batch)
    from peers_ours import Ours

    return Ours(case, folder, dtype="bfloat16" if name == OURS_BF16 else "float32")


def compare(case: Case, names: Sequence[str], rounds: int, folder: str, machine: Machine) -> report.Row:
    """One row: everybody's step of round 0 as warm-up, then of rounds 1, 2, ... in turn."""
    made = {name: contender(name, case, folder) for name in names}
    there = {name: one for name, one in made.items() if one is not None}
    accounts: dict[str, list[Account]] = {name: [] for name in there}
    for round in range(rounds + 1):
        first = round % len(there)  # nobody is always the one behind the same neighbour
        for name in [*there][first:] + [*there][:first]:
            found = one_step(there[name], case, round, name)
            if round:
                accounts[name].append(found)
    bounds = [limits(machine, case, round) for round in range(1, rounds + 1)]
    batch = there[TRL].batch if TRL in there else None
    return report.Row(case, accounts, bounds, batch, {})


def one_step(one: Any, case: Case, round: int, name: str) -> Account:
    """A step, checked: forced lengths, every token trained once, one optimiser step per agent.

    CoMLRL alone may differ: it drops the last token of a group's longest response, trains padding, and takes a step
    per turn; what it did is counted and shown.
    """
    gc.collect()
    load = Load()
    found: Account = one.step(round)
    found.busy = load.cores()
    found.check(case, name)
    steps = case.agents * (case.turns if name == COMLRL else 1)
    assert found.steps == steps, f"{name} took {found.steps} optimiser steps, not {steps}"
    if name != COMLRL:
        assert found.trained == found.generated, f"{name} trained {found.trained} of {found.generated} tokens"
    return found


def alone(name: str, case: Case, folder: str, batch: int | None) -> dict[str, float]:
    """Memory of a process with one contender and nothing else: before its first step, and at most. MiB."""
    one = contender(name, case, folder, batch)
    before = peak_mib()
    for round in (0, 1):
        one.step(round)
    after = peak_mib()
    return {"start": before["now"], "peak": after["peak"]} if before else {}


def memory(row: report.Row, folder: str, threads: int) -> dict[str, dict[str, float]]:
    """``alone`` of every contender of the row, each in its own process: one process's peak is everybody's."""
    found = {}
    for name in row.accounts:
        asked = {"name": name, "case": dataclasses.asdict(row.case), "folder": folder, "batch": row.batch}
        command = [sys.executable, __file__, "--threads", str(threads), "--alone", json.dumps(asked)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def need_peers() -> None:
    """Exits unless both are here, in the versions whose inner methods are used."""
    for name, version in PEERS.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            sys.exit(f"{name} is not installed; pip install 'coevolve[peers]'")
        if found != version:
            sys.exit(f"{name} {found} is installed, and {version} is driven here; pip install 'coevolve[peers]'")


def run(chosen: Mapping[str, Case], names: Sequence[str], asked: argparse.Namespace) -> dict[str, report.Row]:
    """All rows, each printed when it is done."""
    machine, found = measure(asked.threads), {}
    print(f"machine, all threads used here: {machine}")
    if asked.threads > 1:
        print(f"machine, one thread: {measure(1)}")
    for label, case in chosen.items():
        with tempfile.TemporaryDirectory() as folder:
            save_model(case, Path(folder))
            machine = machine.best(measure(asked.threads))
            row = compare(case, names, asked.rounds, folder, machine)
            gc.collect()
            if asked.memory:
                row.memory = memory(row, folder, asked.threads)
        found[label] = row
        print(f"\n### {label}: {case}\n\n{report.table(row, OURS)}\n\n{report.counts(row)}", flush=True)
    print(f"\nmachine, best of all measurements: {machine}")
    return found


def against_limits(asked: argparse.Namespace, names: Sequence[str]) -> None:
    """Ours alone at 128 rows: the share of the limit that rollout and update reach."""
    sizes = [asked.size] if asked.size else ["10M", "50M"]
    chosen = {
        f"{size} {'ragged' if ragged else 'fixed'}": dataclasses.replace(
            centre(asked), size=size, ragged=ragged, **AT_128
        )
        for size in sizes
        for ragged in (False, True)
    }
    asked.memory = False
    found = run(chosen, names, asked)
    dtypes = {OURS_BF16: "bfloat16", OURS: "float32"}
    print(f"\n{report.shares(found, {name: dtypes[name] for name in names})}")


def centre(asked: argparse.Namespace) -> Case:
    changes = {name: getattr(asked, name) for name in ("size", "problems", "members", "prompt", "tokens", "vocabulary")}
    if asked.model is not None:
        if not (asked.model / "config.json").is_file():
            sys.exit(f"{asked.model} is no folder of a model; python tools/fetch_models.py smollm2-135m makes one")
        words = AutoConfig.from_pretrained(asked.model).vocab_size
        changes |= {"size": asked.model.name, "vocabulary": words, "model": str(asked.model), "ragged": False}
    return Case(**{name: value for name, value in changes.items() if value is not None})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the centre only, and the ratios as the last line")
    parser.add_argument("--ours", action="store_true", help="ours alone, in both dtypes")
    parser.add_argument("--limits", action="store_true", help="ours alone at 128 rows, against the machine's limit")
    parser.add_argument("--rows", help="names of rows with commas between, such as 'centre,50M'")
    parser.add_argument("--rounds", type=int, help="timed rounds after the warm-up")
    parser.add_argument("--threads", type=int, default=cores(), help="default: the cores there are")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="skip the processes of their own")
    parser.add_argument("--json", type=Path, help="write everything there, too")
    parser.add_argument("--size", choices=list(SIZES), help="of the centre, like the following")
    parser.add_argument("--model", type=Path, help="a folder of real weights, instead of a size")
    for name in ("problems", "members", "prompt", "tokens", "vocabulary"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.limits and asked.model:
        parser.error("--limits is of random weights; leave --model out")
    return asked


def main() -> None:
    warnings.filterwarnings("ignore")
    asked = parse()
    torch.set_num_threads(asked.threads)
    report.quiet()
    if asked.alone:
        told = json.loads(asked.alone)
        print(json.dumps(alone(told["name"], Case(**told["case"]), told["folder"], told["batch"])))
        return
    asked.rounds = asked.rounds or (QUICK_ROUNDS if asked.quick else ROUNDS)
    start = time.perf_counter()
    names = (OURS, OURS_BF16) if asked.ours or asked.limits else EVERYBODY
    if bfloat16_by() == "nothing":
        print("without ours in bfloat16, for which this processor has no instructions")
        names = tuple(name for name in names if name != OURS_BF16)
    if asked.limits:
        against_limits(asked, names)
        return
    if not asked.ours:
        need_peers()
    chosen = rows(centre(asked))
    if asked.quick or asked.rows:
        wanted = asked.rows.split(",") if asked.rows else ["centre"]
        if unknown := [name for name in wanted if name not in chosen]:
            sys.exit(f"no rows {unknown}; there are {', '.join(chosen)}")
        chosen = {name: chosen[name] for name in wanted}
    found = run(chosen, names, asked)
    if asked.json:
        asked.json.write_text(json.dumps(report.record(found), indent=1), "utf-8")
    print(f"\n{report.overview(found, OURS)}\n\n{time.perf_counter() - start:.0f} s in all")
    if "centre" in found and not asked.ours:
        print(found["centre"].verdict(OURS, (COMLRL, TRL)))


if __name__ == "__main__":
    main()
