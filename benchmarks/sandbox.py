"""Cases per second of the sandbox against fresh processes, one a case, on identical work, alternating.

    python benchmarks/sandbox.py          # medians over rounds, one line a workload

Workloads: a function of one line with one assert; HumanEval's reference solutions with all their tests (needs
COEVOLVE_DATA). Two cases at a time on every side, every program new to the cache. The fresh processes get their best
case: solution and asserts in one file, so one interpreter where the sandbox has two, and no limits. "fresh python"
holds nothing, "fresh bwrap" is the same interpreter in new namespaces with the whole disk read-only.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coevolve.rewards.sandbox import Program, Sandbox
from coevolve.tasks.data import read

ROUNDS = 5
WORKERS = 2
BWRAP = "bwrap --unshare-all --die-with-parent --ro-bind / / --dev /dev"
_numbers = itertools.count()


def main() -> None:
    boxes = {level: Sandbox(isolation=level, workers=WORKERS) for level in ("bubblewrap", "plain")}
    for name, programs in workloads().items():
        sides: dict[str, Callable[[list[Program]], None]] = {
            "fresh python": fresh([sys.executable]),
            "fresh python -I -S": fresh([sys.executable, "-I", "-S"]),
            "fresh bwrap python -I -S": fresh([*BWRAP.split(), sys.executable, "-I", "-S"]),
            **{level: ours(box) for level, box in boxes.items()},
        }
        rates: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(ROUNDS + 1):
            for side, run in sides.items():
                case = [
                    dataclasses.replace(p, code=f"# {next(_numbers)}\n{p.code}") for p in programs
                ]  # nothing cached
                start = time.perf_counter()
                run(case)
                if number:  # the first round warms up
                    rates[side].append(len(case) / (time.perf_counter() - start))
        median = {side: statistics.median(values) for side, values in rates.items()}
        shown = ", ".join(f"{side} {rate:.0f}" for side, rate in median.items())
        print(f"{name}: cases/s {shown}", flush=True)
        for side in list(sides)[:3]:
            print(f"  times {side}: " + ", ".join(f"{level} {median[level] / median[side]:.1f}" for level in boxes))
    for box in boxes.values():
        box.close()


def workloads() -> dict[str, list[Program]]:
    trivial = Program("def f(x):\n    return x + 1\n", "assert f(1) == 2", "f")
    found = {"trivial": [trivial] * 100}
    try:
        data = read("humaneval")
    except (ValueError, OSError) as error:
        print(f"no HumanEval: {error}", file=sys.stderr)
        return found
    found["HumanEval"] = [
        Program(row["prompt"] + row["canonical_solution"], row["test"], row["entry_point"], prelude=row["prompt"])
        for row in data
    ]
    return found


def ours(box: Sandbox) -> Callable[[list[Program]], None]:
    def run(programs: list[Program]) -> None:
        assert all(verdict.kind == "passed" for verdicts in box.run(programs) for verdict in verdicts)

    return run


def fresh(command: list[str]) -> Callable[[list[Program]], None]:
    def one(program: Program, folder: str) -> None:
        file = Path(folder, f"{next(_numbers)}.py")
        ending = f"\ncheck({program.entry})\n" if "def check(" in program.tests else "\n"
        file.write_text(f"{program.code}\n{program.tests}{ending}", "utf-8")
        subprocess.run([*command, str(file)], check=True, timeout=60, stdout=subprocess.DEVNULL)

    def run(programs: list[Program]) -> None:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(lambda program: one(program, folder), programs))

    return run


if __name__ == "__main__":
    main()
