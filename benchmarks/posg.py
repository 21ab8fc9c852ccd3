"""Where learning ends when each agent is paid its own, and when both are paid the team's mean.

    python benchmarks/posg.py            # a line per recipe, and docs/posg.png; some minutes

Trains recipes/posg-*.yaml with 30 seeds each. Pays are exact: the expected pay of the two policies as they are, from
their probabilities of C, not an average over samples.
"""

from __future__ import annotations

import statistics
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from transformers.utils import logging

from coevolve.learners.local import LocalLearner
from coevolve.recipe.build import build
from coevolve.recipe.read import load_recipe
from coevolve.tasks.games import GAMES, START, Pays

ROOT = Path(__file__).resolve().parents[1]
SEEDS = 30
EVERY = 5
"""Steps between two points of a path."""
STYLES = {"individual": ("paid its own", "tab:orange", 9), "joint": ("paid the mean", "tab:blue", 4)}
"""Credit -> label, colour, size of an end point."""
EQUILIBRIA = {"harmony": ["CC"], "chicken": ["CD", "DC"]}

Path2D = list[tuple[float, float]]
"""Expected pay of the first and of the second agent, in the course of a run."""


def main() -> None:
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    print(f"{SEEDS} seeds, expected pay after the last step, mean and standard deviation")
    paths = {
        (game, credit): [train(game, credit, seed) for seed in range(SEEDS)]
        for game, credit in product(EQUILIBRIA, STYLES)
    }
    for (game, credit), runs in paths.items():
        report(game, credit, [run[-1] for run in runs])
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    for axis, game in zip(figure.subplots(1, 2), EQUILIBRIA, strict=True):
        draw(axis, game, {credit: paths[game, credit] for credit in STYLES})
    FigureCanvasAgg(figure).print_figure(str(ROOT / "docs" / "posg.png"), dpi=110)


def train(game: str, credit: str, seed: int) -> Path2D:
    """The path of one run of the game's recipe."""
    trainer = build(load_recipe(ROOT / "recipes" / f"posg-{game}-{credit}.yaml", [f"seed={seed}"]))
    pays = GAMES[game][""]  # type: ignore[index]
    path = []
    for step in range(trainer.steps + 1):
        if step % EVERY == 0:
            path.append(expected(pays, *(cooperates(policy) for policy in trainer.policies.values())))
        if step < trainer.steps:
            trainer.step(step)
    return path


@torch.no_grad()
def cooperates(policy: LocalLearner) -> float:
    """The probability of move C, as C or c."""
    ids: Any = policy.tokenizer(START, return_tensors="pt").input_ids
    with policy.active() as causal:
        p_V = causal(input_ids=ids).logits[0, -1].softmax(-1)
    return float(p_V[policy.tokenizer("Cc").input_ids].sum())


def expected(pays: Pays, first: float, second: float) -> tuple[float, float]:
    """What each agent can expect when they play C with these probabilities."""
    chance = {"CC": first * second, "CD": first * (1 - second), "DC": (1 - first) * second}
    chance["DD"] = 1 - sum(chance.values())
    one, other = (sum(chance[joint] * pay[i] for joint, pay in pays.items()) for i in range(2))
    return one, other


def report(game: str, credit: str, ends: Path2D) -> None:
    """One line: the team's pay, and how many seeds ended at each joint move."""
    team = [sum(end) for end in ends]
    pays = GAMES[game][""]  # type: ignore[index]
    near = {joint: sum(np.hypot(a - pay[0], b - pay[1]) < 0.5 for a, b in ends) for joint, pay in pays.items()}
    where = ", ".join(f"{count} at {pays[joint]}" for joint, count in near.items() if count)
    spread = statistics.stdev(team)
    print(f"{game:8s} {credit:10s} team {statistics.mean(team):5.2f} ± {spread:.2f}   of {len(ends)} seeds {where}")


def draw(axis: Axes, game: str, runs: dict[str, list[Path2D]]) -> None:
    """The pays that joint moves can reach, and every seed's path through them."""
    pays = GAMES[game][""]  # type: ignore[index]
    corners = np.array([pays[joint] for joint in ("CC", "CD", "DD", "DC")], dtype=float)
    axis.fill(*corners.T, color="0.93", zorder=0)
    for joint, pay in pays.items():
        stable = joint in EQUILIBRIA[game]
        axis.plot(*pay, "s" if stable else "o", color="0.35", markersize=9 if stable else 5, fillstyle="none")
        axis.annotate(f"{joint} {pay}", pay, textcoords="offset points", xytext=(7, 6), fontsize=8, color="0.35")
    for credit, paths in runs.items():
        label, colour, size = STYLES[credit]
        for path in paths:
            axis.plot(*np.array(path).T, color=colour, linewidth=0.7, alpha=0.5)
        ends = np.array([path[-1] for path in paths])
        axis.plot(*ends.T, "o", color=colour, markersize=size, label=f"{label}: all {len(paths)} ends")
    axis.set(title=game, xlabel="pay of the first agent", ylabel="pay of the second agent")
    axis.set(xlim=(-0.5, 7.6), ylim=(-0.5, 7.6), aspect="equal")
    axis.legend(loc="upper right", fontsize=8)


if __name__ == "__main__":
    main()
