"""The summary of each run, and the gradient norms of its agents."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coevolve.report.findings.alike import unlike
from coevolve.report.findings.arms import arms
from coevolve.report.findings.curves import cell, column, final, mean, of_agents, peak, smooth, start, window
from coevolve.report.findings.statistics import Floats
from coevolve.report.runs import Run
from coevolve.report.section import Cell, Plot, Section, Series
from coevolve.report.wording import number

_COLUMNS = (
    "run", "seed", "steps", "reward at start", "peak reward", "final reward", "KL (nats/turn)", "objective",
    "entropy (nats/token)", "length (tokens)", "tokens/s", "seconds",
)  # fmt: skip
_POINTS = 20_000
"""Most points of all curves of gradient norms together: the page has to hold the dialogues too."""


def sections(runs: Sequence[Run]) -> list[Section]:
    """Return a section with a row per run; if a run has several agents that learn, also one on their gradients."""
    return [_summary(runs), *_gradients(runs)]


def _summary(runs: Sequence[Run]) -> Section:
    sentence = (
        "Start, peak and final are the first, the largest and the last mean over a tenth of the run's steps; KL, "
        "objective (the reward less the weighted KL), entropy and length are means over the last tenth; seconds are "
        "those of the steps, without loading and saving."
    )
    if unlike(arms(runs)):
        sentence += " Rewards are means over all turns, which are unlike in these teams."
    return Section("summary", "Summary", sentence, _COLUMNS, [_row(run) for run in runs])


def _row(run: Run) -> list[Cell]:
    reward, seconds = column(run, "reward"), column(run, "time/step")
    entropy = mean(np.stack(of_agents(run, "entropy")), axis=0) if run.policies else np.full(len(reward), np.nan)
    ends = [final(column(run, key)) for key in ("kl", "objective")]
    ends += [final(entropy), final(column(run, "length"))]
    speed = float(mean(column(run, "tokens_per_second") * seconds) / mean(seconds))
    numbers = [start(reward), peak(reward), final(reward), *ends, speed, float(mean(seconds)) * len(seconds)]
    return [run.name, run.seed, len(run.lines), *map(cell, numbers)]


def _gradients(runs: Sequence[Run]) -> list[Section]:
    found = [(run, norms) for run in runs if len(norms := _norms(run)) > 1]
    if not found:
        return []
    table: list[Sequence[Cell]] = []
    times: dict[str, float] = {}
    for run, norms in found:
        largest, smallest = max(norms, key=norms.__getitem__), min(reversed(norms), key=norms.__getitem__)
        table += [(run.name, policy, norm, cell(_ratio(norm, norms[largest]))) for policy, norm in norms.items()]
        times[f"{largest} against {smallest} in {run.name}"] = _ratio(norms[largest], norms[smallest])
    who = max(times, key=times.__getitem__)
    sentence = (
        f"Means over the last tenth of the steps, before clipping. The largest ratio is {number(times[who])} ({who}). "
        "Agents of other sizes, weights or losses have other norms by nature; the alarms look for one that vanishes."
    )
    columns = ("run", "agent", "gradient norm", "share of the largest")
    return [Section("gradients", "Gradient norms of the agents", sentence, columns, table, _curves(found))]


def _curves(found: Sequence[tuple[Run, dict[str, float]]]) -> Plot:
    """Plot each agent's smoothed norm over the steps of its run; with many points, only every n-th step."""
    series, every = [], max(1, math.ceil(sum(len(run.lines) * len(norms) for run, norms in found) / _POINTS))
    for run, norms in found:
        steps = [float(line["step"]) for line in run.lines][window(len(run.lines)) - 1 :: every]
        for policy in norms:
            name = f"{run.name} {policy}" if len(found) > 1 else policy
            series.append(
                Series(name, steps, list(map(cell, smooth(column(run, f"agents/{policy}/grad_norm"))[::every])))
            )
    return Plot("step", "gradient norm", series)


def _norms(run: Run) -> dict[str, float]:
    """Return policy -> gradient norm at the end, for policies that learn."""
    ends = [_known(norm) for norm in of_agents(run, "grad_norm")]
    return {policy: end for policy, end in zip(run.policies, ends, strict=True) if np.isfinite(end)}


def _known(norm: Floats) -> float:
    return final(norm[~np.isnan(norm)]) if not np.isnan(norm).all() else np.nan


def _ratio(above: float, below: float) -> float:
    return above / below if below else np.inf if above else 1.0
