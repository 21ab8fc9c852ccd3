"""How large a report becomes, and how long it takes to write and to open.

    python benchmarks/report.py                     # 200 steps of 256 written episodes, two turns of 16 tokens
    python benchmarks/report.py --run runs/mine     # a run of yours

Opening ends when the first curves are drawn, in headless Chromium, from disk; the smallest of several tries.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from coevolve.report.page.build import write_page
from coevolve.report.runs import find

TRIES = 3
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
WORDS = 1000
DRAWN = "#curves-part .plot .scatterlayer .trace"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--episodes", type=int, default=256)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = args.run or made(Path(folder) / "made-0", args.steps, args.episodes)
        began = time.perf_counter()
        page = write_page(find([run]), Path(folder) / "report.html")
        print(f"written in {time.perf_counter() - began:.1f} s: {page.stat().st_size / 1e6:.2f} MB")
        for part in ("curves", "dialogues", "findings"):
            print(f"#{part} open after {min(opened(page, part) for _ in range(TRIES)):.2f} s")


def opened(page: Path, part: str) -> float:
    """Seconds until this part of the page is there."""
    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
        tab = browser.new_page(viewport={"width": 1400, "height": 900})
        began = time.perf_counter()
        tab.goto(f"{page.as_uri()}#{part}")
        tab.wait_for_selector("html[data-ready]")
        if part == "curves":
            tab.wait_for_selector(DRAWN, state="attached")
        seconds = time.perf_counter() - began
        browser.close()
    return seconds


def made(run: Path, steps: int, episodes: int) -> Path:
    """A run directory of this size: words by a power law, numbers with four digits that nobody could compress."""
    run.mkdir()
    draw = random.Random(0)
    words = [" " + "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(WORDS)]
    weights = [1 / (rank + 3) for rank in range(WORDS)]
    with (run / "metrics.jsonl").open("w") as metrics, (run / "episodes.jsonl").open("w") as out:
        for step in range(steps):
            metrics.write(json.dumps(line(step, draw)) + "\n")
            for record in records(step, episodes, draw, words, weights):
                out.write(json.dumps(record) + "\n")
    return run


def line(step: int, draw: random.Random) -> dict[str, Any]:
    names = ("reward", "kl", "objective", "length", "eos_rate", "distinct_1", "distinct_2", "grad_norm", "entropy")
    team = {name: draw.gauss(step / 50, 0.5) for name in names}
    agents = {f"agents/{who}/{name}": draw.gauss(step / 50, 1) for who in ("ann", "bob") for name in (*names, "loss")}
    times = {f"time/{phase}": draw.random() for phase in ("generate", "reward", "describe", "update", "step")}
    pair = ("ann", "bob") if step // 5 % 2 else ("bob", "ann")
    cast = {"pioneer": pair[0], "observer": pair[1]}
    return {
        "step": step,
        "cast": cast,
        "turns": 512,
        **team,
        **agents,
        **times,
        "tokens_per_second": 300 * draw.random(),
    }


def records(
    step: int, episodes: int, draw: random.Random, words: list[str], weights: list[float]
) -> Iterator[dict[str, Any]]:
    for i in range(episodes):
        turns = [turn(who, role, draw, draw.choices(words, weights, k=16)) for who, role in ((0, "ann"), (1, "bob"))]
        paid = [one["reward"] for one in turns]
        joints = [{"turns": [0, 1], "rewards": paid, "after": None}]
        problem = {"problem": f"problem {draw.randint(0, 999)}", "member": i % 4, "data": {"query": "an opening"}}
        yield {"step": step, **problem, "turns": turns, "joints": joints, "parts": {}}


def turn(place: int, policy: str, draw: random.Random, pieces: list[str]) -> dict[str, Any]:
    def numbers(scale: float) -> list[float]:
        return [float(f"{draw.gauss(0, scale):.4g}") for _ in pieces]

    return {
        "role": ("pioneer", "observer")[place], "policy": policy, "round": 0, "text": "".join(pieces),
        "reward": draw.gauss(1, 1), "tokens": len(pieces), "finished": False, "heard": list(range(place)),
        "pieces": pieces, "logps": [-abs(x) for x in numbers(3)], "adv": numbers(1),
        "kl": [abs(x) for x in numbers(0.5)], "credit": draw.gauss(1, 1),
    }  # fmt: skip


if __name__ == "__main__":
    main()
