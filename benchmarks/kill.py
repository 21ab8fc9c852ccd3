"""Kills and power cuts: every recipe resumes bit for bit, whatever a training was about to write.

    python benchmarks/kill.py [--random 100] [RECIPE ...]

Four teams of micro models train two steps with a checkpoint after each, of which the newest is kept. Each training is
stopped before every one of its file operations (``tests/crash.py``: system calls, so those of libraries too). From each
such moment come the folder that a kill leaves and folders that a power cut may leave; where two are equal one is tried.
Each is resumed (or started again where there is no run yet) and has to end as the undisturbed training: the same lines
but for times, the same bytes in the checkpoint, no other files; and every checkpoint in it has to be whole before.
Then real SIGKILLs at random times, of a training of eight steps. A line for each failure, and a count for each recipe.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from crash import crashes, lay_out, run_and_exit  # noqa: E402
from micro import VOCABULARY, save_micro  # noqa: E402
from toy import Lucky, without_times  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from coevolve import PolicySpec, Sampling, Trainer, chain, cory, exchange, fixed, magrpo  # noqa: E402
from coevolve.models.spec import LoraSpec  # noqa: E402
from coevolve.plays import rounds, tree  # noqa: E402
from coevolve.runs import checkpoint  # noqa: E402
from coevolve.runs.folder import RunDir, read_lines  # noqa: E402

ROLES = {"pioneer": "ann", "observer": "bob"}
LINES = ("metrics.jsonl", "episodes.jsonl", "samples.jsonl")


class Noted(Lucky):
    """The task with a note between turns."""

    def feedback(self, p: Any, turns: Any) -> list[str]:
        return [f"{turn.reward or 0:.0f}" for turn in turns]


def recipes(model: str) -> dict[str, dict[str, Any]]:
    """Full copies that exchange roles, adapters, a tree of two turns, and two turns of a mixed team."""
    full = PolicySpec(model, learning_rate=1e-2)
    lora = PolicySpec(model, weights="lora", lora=LoraSpec(rank=2), learning_rate=1e-2)
    pair, lucky = {"cast": exchange(ROLES, 1), "play": chain(), "algorithm": cory(eta=0.3, target_kl=0.5)}, Lucky()
    turns = {"cast": fixed(ROLES), "algorithm": magrpo(), "task": Noted(), "members": 2}
    return {
        "chain": {**pair, "task": lucky, "policies": {"ann": full, "bob": full}},
        "lora": {**pair, "task": lucky, "policies": {"ann": lora, "bob": lora}},
        "tree": {**turns, "play": tree(n=2, k=2), "members": 1, "policies": {"ann": full, "bob": full}},
        "mixed": {**turns, "play": rounds(n=2), "policies": {"ann": full, "bob": lora}},
    }


def build(settings: dict[str, Any], steps: int) -> Trainer:
    return Trainer(**settings, steps=steps, batch_size=2, sampling=Sampling((2, 4)))


def train(trainer: Trainer, folder: Path) -> None:
    """Start the run, or go on with it."""
    run = RunDir(folder)
    for found in run.checkpoints():
        checkpoint.verify(found)
    trainer.run(folder, resume=run.begun, save_every=1, keep_last=1, samples=1, listeners=[])


def forked(work: Callable[[], object]) -> int:
    """The exit code of work in a process of its own."""
    if (child := os.fork()) == 0:
        run_and_exit(work)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def outcome(run: Path) -> dict[str, Any]:
    """What has to be equal: lines, and every file of every checkpoint."""
    lines = {name: [without_times(line) for line in read_lines(run / name)] for name in LINES}
    files = {p.relative_to(run).as_posix(): p.read_bytes() for p in run.glob("checkpoint-*/**/*") if p.is_file()}
    return {"names": sorted(p.name for p in run.iterdir()), **lines, **files}


def differences(trainer: Trainer, work: Path, wanted: dict[str, Any]) -> str:
    """Go on with what is in work/run; what then is not as wanted."""
    if code := forked(lambda: train(trainer, work / "run")):
        return f"exit code {code}"
    found = outcome(work / "run")
    return ", ".join(key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key))


def undisturbed(trainer: Trainer, settings: dict[str, Any], work: Path) -> tuple[dict[str, Any], float]:
    """The outcome of a training that nobody stops, and its seconds. What is compiled or loaded late is there before."""
    train(build(settings, 1), work / "warm")
    began = time.monotonic()
    assert forked(lambda: train(trainer, work / "run")) == 0
    seconds = time.monotonic() - began
    return outcome(work / "run"), seconds


def folder_of(work: Path) -> Path:
    """The folder, empty."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    return work


def operations(settings: dict[str, Any], base: Path, every: int = 1) -> Iterator[tuple[str, str]]:
    """Of each moment, or of every so many: what it was, and what was not as in an undisturbed training."""
    trainer = build(settings, 2)
    wanted, _ = undisturbed(trainer, settings, folder_of(base / "whole"))
    traced = folder_of(base / "traced")
    for number, (moment, state) in enumerate(crashes(lambda: train(trainer, traced / "run"), traced)):
        if number % every == 0:
            lay_out(state, folder_of(base / "crashed"))
            yield moment, differences(trainer, base / "crashed", wanted)


def random_times(settings: dict[str, Any], base: Path, kills: int, chance: random.Random) -> Iterator[tuple[str, str]]:
    """The same of real kills at random times."""
    trainer = build(settings, 8)
    wanted, seconds = undisturbed(trainer, settings, folder_of(base / "whole"))
    for _ in range(kills):
        work, moment = folder_of(base / "killed"), chance.random() * seconds
        if (child := os.fork()) == 0:
            run_and_exit(lambda work=work: train(trainer, work / "run"))
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        yield f"killed after {moment:.3f} s", differences(trainer, work, wanted)


def told(label: str, tried: Iterator[tuple[str, str]]) -> int:
    """Print what failed, and how many did; returns that."""
    count = failed = 0
    for moment, wrong in tried:
        count += 1
        if wrong:
            failed += 1
            print(f"{label}: {moment}: {wrong}", flush=True)
    print(f"{label}: {count} tried, {failed} not as undisturbed", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help="chain, lora, tree, mixed; default: all")
    parser.add_argument("--random", type=int, default=100, help="kills at random times, of all recipes together")
    args = parser.parse_args()
    quiet()
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        known = recipes(micro(base / "model"))
        names = args.recipes or list(known)
        for name in names:
            failed += told(f"{name}, every operation", operations(known[name], base))
        for name in names:
            kills = random_times(known[name], base, args.random // len(names), random.Random(name))
            failed += told(f"{name}, random times", kills)
    return int(failed > 0)


def quiet() -> None:
    """One thread."""
    torch.set_num_threads(1)


def micro(folder: Path) -> str:
    """A Llama of one layer and 8 dimensions, saved."""
    config = LlamaConfig(
        vocab_size=len(VOCABULARY), hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return save_micro(LlamaForCausalLM(config), folder)


if __name__ == "__main__":
    sys.exit(main())
