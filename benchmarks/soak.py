"""A long training watched from outside: does anything grow?

    python benchmarks/soak.py [--steps 10000] [--recipe FILE] [--output FOLDER] [key=value ...]

Trains in a process of its own and looks at it every few seconds: resident memory, open files, threads, and what the
run takes on disk. Each look is a line of ``soak.jsonl`` in the output folder; the end is a table and the slope of the
resident memory over the last half of the steps, in bytes a step (least squares). ``--read FOLDER`` prints that of a
soak which still runs. Linux only (/proc).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from coevolve.runs.folder import RunDir, read_lines
from coevolve.sweep.show import last_metrics

ROOT = Path(__file__).parents[1]
ROWS = 12
"""Of the table."""


def look(pid: int, run: Path) -> dict[str, int]:
    """What a process and its run take at this moment: KiB of memory, files, threads, KiB on disk, steps done."""
    proc = Path(f"/proc/{pid}")
    pages = int((proc / "statm").read_text().split()[1])
    line = last_metrics(run)
    return {
        "step": line["step"] + 1 if line else 0,
        "rss_kib": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
        "files": len(list((proc / "fd").iterdir())),
        "threads": len(list((proc / "task").iterdir())),
        "disk_kib": sum(int(kib) for kib in subprocess.check_output(["du", "-sk", str(run)]).split()[:1]),
    }


def soak(recipe: Path, overrides: list[str], output: Path, every: float) -> int:
    """Train and look; returns the exit code of the training."""
    run = output / "run"
    run.mkdir(parents=True)
    command = [sys.executable, "-m", "coevolve.cli", "train", str(recipe), *overrides, f"output_dir={run}"]
    with (output / "train.log").open("wb") as log, (output / "soak.jsonl").open("w", buffering=1) as looks:
        training = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        while training.poll() is None:
            time.sleep(every)
            try:
                looks.write(json.dumps(look(training.pid, run)) + "\n")
            except (OSError, IndexError, ValueError, subprocess.CalledProcessError):  # it has just ended
                continue
    return training.returncode


def show(output: Path) -> None:
    """The table and the slopes of what was seen so far."""
    text = (output / "soak.jsonl").read_text("utf-8")
    looks = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    looks = [line for line in looks if 0 < line["step"] < looks[-1]["step"]]  # the last step's looks see the plot drawn
    print(*(f"{key:>9}" for key in looks[0]))
    for line in looks[:: -(-len(looks) // ROWS)] + looks[-1:]:
        print(*(f"{value:9,}" for value in line.values()))
    half = [line for line in looks if line["step"] > looks[-1]["step"] / 2]
    steps = [line["step"] for line in half]
    for key, unit in (("rss_kib", 1024), ("files", 1), ("threads", 1)):
        slope = np.polyfit(steps, [line[key] * unit for line in half], 1)[0]
        print(f"{key.removesuffix('_kib')} over steps {steps[0]:,} to {steps[-1]:,}: {slope:.3g} a step")
    seconds = [line["time/step"] for line in read_lines(RunDir(output / "run").metrics)]
    print(f"{len(seconds):,} steps of {np.median(seconds):.3f} s (median)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "posg-chicken-joint.yaml")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two looks")
    parser.add_argument("--output", type=Path, default=Path("runs/soak"))
    parser.add_argument("--read", type=Path, metavar="FOLDER", help="only say what was seen so far")
    args, overrides = parser.parse_known_args()
    if args.read:
        show(args.read)
        return 0
    code = soak(args.recipe, [f"steps={args.steps}", *overrides], args.output, args.every)
    show(args.output)
    print(f"exit code {code}; {args.output}")
    return code


if __name__ == "__main__":
    sys.exit(main())
