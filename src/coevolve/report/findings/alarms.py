"""Signs that a training collapsed, each with the step where it began and from which it stayed to the end.

A condition is judged on running medians of five values, which leave edges where they are and pass over single
outliers; one that does not last for a tenth of the run, and five steps at least, is none. "The start" is the median of
the first tenth, at least three steps. The limits below are wide on purpose: an alarm is a place to look, and a healthy
run has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coevolve.report.findings.curves import column, window
from coevolve.report.findings.statistics import Floats
from coevolve.report.runs import Run
from coevolve.report.section import Section
from coevolve.report.wording import many

SHORTEST = 10
"""Steps below which there is no start, middle and end to tell apart."""

DIVERSITY = 0.5
"""Of the distinct 2-grams at the start. Learning a task costs some variety; halving it means repeated texts."""

ENTROPY = 0.2
"""Of the entropy at the start. Entropy falls in every training; a fifth is close to one answer for every problem."""

LENGTH = 1.5
"""Tokens, for agents that began with at least twice as many: an answer of one token says nothing."""

ENDING = 0.02
"""Of the answers end by themselves, where at least ten per cent did: from then on the cap cuts all others short."""
_ENDED = 0.1

KL = 10.0
"""Nats per turn: texts that the start model writes 22,000 times as rarely. Long ones get there in health, hence"""
FASTER = 5.0
"""... and this many times the median of the first half. Steady growth ends at four times it, slowing growth below."""

FALL = 0.5
"""Of the reward's rise lost again: more than half of what was learnt is gone."""
NOISE = 4.0
"""Standard deviations of a step's noise that a rise must have, or there is nothing to lose; and that the objective is
below its start when what the reward gained is worth less than what it cost in KL."""

GRADIENT = 0.02
"""Of the largest norm of the others: this agent hardly moves while they learn."""

_MEDIAN = 5
_FIRST = 3
_LASTS = 5
_NORMAL = 0.6745  # median absolute deviation of a normal variable, in standard deviations

_NUMBERS = ("reward", "kl", "objective", "loss", "grad_norm", "entropy")


@dataclass(frozen=True)
class Alarm:
    """signal: what is wrong. agent: whose, or "team". step: where it began. before, now: the quantity at the start and
    at the end; limit: what it crossed. None where it is not known."""

    signal: str
    agent: str
    step: int
    before: float | None
    now: float | None
    limit: float | None


def alarms(run: Run) -> list[Alarm]:
    """Every alarm of a run, the earliest first. In a run of fewer than ``SHORTEST`` steps only missing numbers."""
    found = list(_missing(run))
    if len(run.lines) >= SHORTEST:
        for policy in run.policies:
            found += _agent(run, policy)
        found += [*_fall(run), *_overpaid(run), *_vanished(run)]
    return sorted(found, key=lambda alarm: alarm.step)


def section(runs: Sequence[Run]) -> Section:
    """All alarms in one table."""
    found = [(run.name, alarm) for run in runs for alarm in alarms(run)]
    columns = ("run", "from step", "signal", "agent", "at the start", "at the end", "limit")
    rows = [(name, a.step, a.signal, a.agent, a.before, a.now, a.limit) for name, a in found]
    return Section("alarms", "Collapse alarms", _sentence(runs, found), columns if rows else (), rows)


def _sentence(runs: Sequence[Run], found: Sequence[tuple[str, Alarm]]) -> str:
    short = [run.name for run in runs if len(run.lines) < SHORTEST]
    judged = len(runs) - len(short)
    said = []
    if found:
        where = f" in {len({name for name, _ in found})} of {len(runs)} runs" if len(runs) > 1 else ""
        said.append(
            f"{many(len(found), 'alarm')}{where}. Each holds from its step to the end, missing numbers excepted; an "
            "alarm is a place to look, not a verdict."
        )
    elif judged:
        said.append(
            f"No alarm in {many(judged, 'run')}: what was measured of diversity, entropy, lengths, KL, reward and "
            "gradients stayed within its limits, and no number is missing."
        )
    if short:
        said.append(f"Too short to judge (fewer than {SHORTEST} steps): {', '.join(short)}.")
    return " ".join(said)


def _agent(run: Run, policy: str) -> Iterator[Alarm]:
    """One policy: how varied and how long its texts are, and how far it went from where it started."""
    for key, share in (("distinct_2", DIVERSITY), ("entropy", ENTROPY)):
        steps, values = _known(run, f"agents/{policy}/{key}")
        if len(values) and (before := _start(values)) > 0:
            yield from _below(f"{key} fell", policy, steps, values, share * before)
    steps, values = _known(run, f"agents/{policy}/length")
    if len(values) and _start(values) >= 2 * LENGTH:
        yield from _below("answers of one token", policy, steps, values, LENGTH)
    steps, values = _known(run, f"agents/{policy}/eos_rate")
    if len(values) and _start(values) >= _ENDED:
        yield from _below("answers do not end", policy, steps, values, ENDING)
    steps, values = _known(run, f"agents/{policy}/kl")
    if len(values):
        limit = max(KL, FASTER * float(np.median(values[: len(values) // 2 + 1])))
        yield from _lasting("KL runs away", policy, steps, values, _medians(values) > limit, limit)


def _fall(run: Run) -> Iterator[Alarm]:
    steps, values = _known(run, "reward")
    if len(values) < 2:
        return
    noise = _noise(values)
    middle = _medians(values)
    rise = float(middle.max()) - _start(values)
    if rise > NOISE * noise:
        limit = float(middle.max()) - FALL * rise
        yield from _lasting("reward fell from its peak", "team", steps, values, middle < limit, limit)


def _overpaid(run: Run) -> Iterator[Alarm]:
    """What PPO and CORY maximise, reward less eta * KL, ends below where it began."""
    steps, values = _known(run, "objective")
    if len(values) > 1:
        limit = _start(values) - NOISE * _noise(values)
        yield from _below("r - eta*KL fell below its start", "team", steps, values, limit)


def _noise(values: Floats) -> float:
    """The standard deviation of a step around its neighbours."""
    return float(np.median(np.abs(np.diff(values)))) / _NORMAL / math.sqrt(2)


def _vanished(run: Run) -> Iterator[Alarm]:
    norms = {policy: column(run, f"agents/{policy}/grad_norm") for policy in run.policies}
    for policy, norm in norms.items():
        others = [other for name, other in norms.items() if name != policy]
        if not others:
            return
        largest = np.fmax.reduce(others)
        known = ~np.isnan(norm) & (largest > 0)
        if known.any():
            steps, share = _steps(run)[known], norm[known] / largest[known]
            yield from _below("gradients vanish beside the others'", policy, steps, share, GRADIENT)


def _missing(run: Run) -> Iterator[Alarm]:
    """Numbers that were measured and came out as NaN or infinity, which is written as null."""
    for key in run.keys:
        parts = key.split("/")
        agent = parts[1] if parts[0] == "agents" and len(parts) == 3 else "team"
        if (parts[-1] if agent != "team" else key) in _NUMBERS:
            steps = [line["step"] for line in run.lines if key in line and line[key] is None]
            if steps:
                yield Alarm(f"{parts[-1]} is no number at {len(steps)} steps", agent, steps[0], None, None, None)


def _below(signal: str, agent: str, steps: npt.NDArray[np.int64], values: Floats, limit: float) -> Iterator[Alarm]:
    return _lasting(signal, agent, steps, values, _medians(values) < limit, limit)


def _lasting(
    signal: str, agent: str, steps: npt.NDArray[np.int64], values: Floats, bad: npt.NDArray[np.bool_], limit: float
) -> Iterator[Alarm]:
    """An alarm where the condition holds from some step to the end."""
    good = np.flatnonzero(~bad)
    began = int(good[-1]) + 1 if len(good) else 0
    if len(bad) - began >= max(_LASTS, window(len(bad))):
        yield Alarm(signal, agent, int(steps[began]), _start(values), float(_medians(values)[-1]), limit)


def _known(run: Run, key: str) -> tuple[npt.NDArray[np.int64], Floats]:
    """The steps that have a number, and the numbers."""
    values = column(run, key)
    known = ~np.isnan(values)
    return _steps(run)[known], values[known]


def _steps(run: Run) -> npt.NDArray[np.int64]:
    return np.array([line["step"] for line in run.lines], dtype=np.int64)


def _start(values: Floats) -> float:
    return float(np.median(values[: max(_FIRST, window(len(values)))]))


def _medians(values: Floats) -> Floats:
    """Of the values around each, fewer at the ends."""
    padded = np.pad(values, _MEDIAN // 2, constant_values=np.nan)
    return np.asarray(np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, _MEDIAN), axis=1))
