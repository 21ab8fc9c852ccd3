"""How our seconds per step grow: with agents, group size, problems, turns and model size; and memory over many steps.

    python benchmarks/scaling.py             # one table per axis, each with its fitted exponent
    python benchmarks/scaling.py --memory    # resident memory of a 1M model over 500 steps; --fixed: of equal batches

The exponent is the slope of log seconds over log x by least squares: 1 is linear. The last column is seconds per joint
response, what one answer of the whole team costs; "joint exponent" is its slope. Medians over rounds after a warm-up;
lengths are ragged and forced as in peers.py. Turns are ``rounds``: each member goes on alone, and its prompt grows.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # see peers.py
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import argparse
import gc
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from peers_account import Load, peak_mib
from peers_limits import Shape
from peers_ours import Ours
from peers_report import markdown, quiet
from peers_work import SIZES, Case, save_model

from coevolve.runtime.cores import cores

AXES: dict[str, tuple[object, ...]] = {
    "agents": (1, 2, 4, 8),
    "members": (2, 4, 8, 16, 32),
    "problems": (1, 2, 4, 8, 16),
    "turns": (1, 2, 3, 4),
    "size": tuple(SIZES),
}
STEPS, EVERY = 500, 50
"""Steps of --memory, and between its lines."""


def main() -> None:
    asked = parse()
    torch.set_num_threads(asked.threads)
    quiet()
    if asked.memory:
        case = Case(size=asked.size or "1M", members=4, prompt=32, tokens=32, ragged=not asked.fixed)
        memory(case, asked.dtype, asked.steps)
        return
    centre = Case(size=asked.size or "10M")
    print(f"{asked.threads} threads, {asked.dtype}, medians of {asked.rounds} rounds; centre: {centre}")
    for axis in asked.axes.split(","):
        points = [replace(centre, **{axis: value}) for value in AXES[axis]]
        print(f"\n### {axis}\n\n{scale(axis, points, asked.rounds, asked.dtype)}", flush=True)


def scale(axis: str, points: Sequence[Case], rounds: int, dtype: str) -> str:
    """The table of one axis, and the exponents below it."""
    lines, x, seconds, each = [], [], [], []
    for case in points:
        took, busy = seconds_per_step(case, rounds, dtype)
        x.append(_number(axis, case))
        seconds.append(took)
        each.append(took / case.joints)
        label = f"{getattr(case, axis)} ({x[-1]:,} parameters)" if axis == "size" else str(getattr(case, axis))
        lines.append([label, f"{took:.3g}", str(case.joints), f"{1000 * each[-1]:.3g}", f"{busy:.2f}"])
    head = (axis, "s / step", "joint responses", "ms per joint response", "others' load")
    fits = f"exponent of the step {exponent(x, seconds):.2f}, of a joint response {exponent(x, each):.2f}"
    return f"{markdown(head, lines)}\n\n{fits}"


def seconds_per_step(case: Case, rounds: int, dtype: str) -> tuple[float, float]:
    """Medians: a step's seconds, and the cores that others kept busy."""
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(case, save_model(case, Path(folder)), dtype=dtype)
        found, loads = [], []
        for round in range(rounds + 1):
            load = Load()
            account = ours.step(round)
            loads.append(load.cores())
            account.check(case, "ours")
            found.append(account.seconds)
    del ours
    gc.collect()
    return median(found[1:]), median(loads[1:])


def _number(axis: str, case: Case) -> int:
    """Where the case lies on the axis; of a size, its parameters."""
    if axis == "size":
        shape = Shape.of(case)
        return shape.body + shape.head
    return int(getattr(case, axis))


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log y over log x; 0 where there is one point only."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0]) if len(x) > 1 else 0.0


def memory(case: Case, dtype: str, steps: int) -> None:
    """Resident memory while training, and how much it grows per 100 steps once the first lines are past."""
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(case, save_model(case, Path(folder)), dtype=dtype)
        print(f"{case}, {dtype}")
        done, held = [], []
        for step in range(steps):
            ours.step(step).made.clear()
            if (step + 1) % EVERY == 0:
                done.append(step + 1)
                held.append(peak_mib().get("now", float("nan")))
                print(f"step {step + 1}: {held[-1]:.1f} MiB", flush=True)
    late = [(n, mib) for n, mib in zip(done, held, strict=True) if n > 2 * EVERY]
    if len(late) > 1:
        slope = np.polyfit(*zip(*late, strict=True), 1)[0]
        print(f"growth after step {2 * EVERY}: {100 * slope:+.2f} MiB per 100 steps")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--axes", default=",".join(AXES), help=f"of {', '.join(AXES)}, with commas between")
    parser.add_argument("--memory", action="store_true", help="memory over many steps instead of time")
    parser.add_argument("--fixed", action="store_true", help="of --memory: all responses of the same length")
    parser.add_argument("--steps", type=int, default=STEPS, help="of --memory")
    parser.add_argument("--rounds", type=int, default=3, help="timed steps per point")
    parser.add_argument("--size", choices=list(SIZES), help="of the centre: 10M, with --memory 1M")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=cores(), help="default: all cores")
    asked = parser.parse_args()
    if unknown := [axis for axis in asked.axes.split(",") if axis not in AXES]:
        parser.error(f"no axes {unknown}; there are {', '.join(AXES)}")
    return asked


if __name__ == "__main__":
    main()
