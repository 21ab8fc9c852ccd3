"""Alarms: signs that a training collapsed, each with the step from which it holds to the end.

A condition is checked on running medians of five values, which keep edges in place and ignore single outliers; it must
hold for the last tenth of the run, and for five steps at least. "The start" is the median of the first tenth, at least
three steps. The limits below are wide on purpose: an alarm is a place to look, and a healthy run has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coevolve.report.findings.curves import column, window
from coevolve.report.findings.statistics import Floats
from coevolve.report.runs import Run
from coevolve.report.section import Section
from coevolve.report.wording import many

SHORTEST = 10
"""Fewest steps in which start, middle and end can be told apart."""

DIVERSITY = 0.5
"""Limit, as a share of the distinct 2-grams at the start. Learning costs some variety; half of it means repetition."""

AS_MANY = 1.5
"""Limit of the factor between the numbers of turns of two steps whose distinct 2-grams are compared."""

ENTROPY = 0.2
"""Limit, as a share of the entropy at the start. Entropy falls in every training; at a fifth of it, a policy gives
nearly the same answer to every problem."""

LENGTH = 1.5
"""Limit in tokens, for agents that began with at least twice as many: a one-token answer has no content."""

ENDING = 0.02
"""Limit of the share of answers that end by themselves, where at least ten per cent did at the start: below it, the
token limit cuts nearly all answers short."""
_ENDED = 0.1

KL = 10.0
"""Limit in nats per turn: the start model writes such texts 22,000 times as rarely. Healthy runs of long texts reach it
too, so ``FASTER`` must be exceeded as well."""
FASTER = 5.0
"""Limit as a multiple of the median KL of the first half. Steady growth ends at four times it, slowing growth below."""

FALL = 0.5
"""Limit, as a share of the reward's rise that is lost again: more than half of what was learnt is gone."""
NOISE = 4.0
"""Limit in standard deviations of a step's noise. Only a larger rise of the reward can count as lost again, and only a
larger fall of the objective below its start shows that the reward gained less than it cost in KL."""

GRADIENT = 0.02
"""Limit, as a share of the largest gradient norm of the other agents: this agent hardly moves while they learn."""

_MEDIAN = 5
_FIRST = 3
_LASTS = 5
_NORMAL = 0.6745  # median absolute deviation of a normal variable, in standard deviations

_NUMBERS = ("reward", "kl", "objective", "loss", "grad_norm", "entropy")


@dataclass(frozen=True)
class Alarm:
    """An alarm. signal: what is wrong. agent: the policy's name, or "team". step: where it began. before, now: the
    quantity at the start and at the end; limit: the limit it crossed; all three None for missing numbers."""

    signal: str
    agent: str
    step: int
    before: float | None
    now: float | None
    limit: float | None


def alarms(run: Run) -> list[Alarm]:
    """Return a run's alarms, the earliest first; for fewer than ``SHORTEST`` steps only those on missing numbers."""
    found = list(_missing(run))
    if len(run.lines) >= SHORTEST:
        for policy in run.learning:  # each beside its own start
            for phase in _phases(run, policy):
                found += _agent(phase, policy)
        found += [*_fall(run), *_overpaid(run), *_vanished(run)]
    return sorted(found, key=lambda alarm: alarm.step)


def section(runs: Sequence[Run]) -> Section:
    """Return a section with all alarms of the runs in one table."""
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
    long = [run for run in runs if run.name not in short]
    if brief := [f"{policy} of {run.name}" for run in long for policy in run.learning if not _phases(run, policy)]:
        said.append(f"In one role for too few steps to judge its texts: {', '.join(brief)}.")
    if short:
        said.append(f"Too short to judge (fewer than {SHORTEST} steps): {', '.join(short)}.")
    return " ".join(said)


def _agent(run: Run, policy: str) -> Iterator[Alarm]:
    """Yield the alarms of one policy: on the variety and length of its texts, and on its KL to the start."""
    for of, key, share in ((_as_many(run, policy), "distinct_2", DIVERSITY), (run, "entropy", ENTROPY)):
        steps, values = _known(of, f"agents/{policy}/{key}")
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


def _as_many(run: Run, policy: str) -> Run:
    """Return the steps in which the policy had about as many turns as at the start: among more texts more pairs of
    words repeat. None if they are too few for an alarm, or none of them is among the last."""
    turns = column(run, f"agents/{policy}/turns")
    if np.isnan(turns).all():
        return run
    first = _start(turns[~np.isnan(turns)])
    alike = ~(np.maximum(turns, first) > AS_MANY * np.minimum(turns, first))
    last = max(_LASTS, window(len(run.lines)))
    kept = [line for line, one in zip(run.lines, alike, strict=True) if one] if alike[-last:].any() else []
    return replace(run, lines=kept if len(kept) >= SHORTEST else [])


def _phases(run: Run, policy: str) -> list[Run]:
    """Return the run as far as the policy played the same roles, for all roles of the last steps: roles may write quite
    unlike texts. Only what is long enough to be judged."""

    def roles(line: Mapping[str, Any]) -> frozenset[str]:
        return frozenset(role for role, name in line.get("cast", {}).items() if name == policy)

    last = dict.fromkeys(map(roles, run.lines[-max(_LASTS, window(len(run.lines))) :]))
    phases = [replace(run, lines=[line for line in run.lines if roles(line) == those]) for those in last]
    return [phase for phase in phases if len(phase.lines) >= SHORTEST]


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
    """Yield an alarm if the objective, reward minus eta * KL, ends below its start."""
    steps, values = _known(run, "objective")
    if len(values) > 1:
        limit = _start(values) - NOISE * _noise(values)
        yield from _below("objective fell below its start", "team", steps, values, limit)


def _noise(values: Floats) -> float:
    """Return the standard deviation of a step around its neighbours."""
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
    """Yield an alarm for each metric that was NaN or infinite at some step: both are written as null."""
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
    """Yield an alarm if the condition ``bad`` holds from some step to the end, for long enough."""
    good = np.flatnonzero(~bad)
    began = int(good[-1]) + 1 if len(good) else 0
    if len(bad) - began >= max(_LASTS, window(len(bad))):
        yield Alarm(signal, agent, int(steps[began]), _start(values), float(_medians(values)[-1]), limit)


def _known(run: Run, key: str) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the steps at which a metric is a number, and these numbers."""
    values = column(run, key)
    known = ~np.isnan(values)
    return _steps(run)[known], values[known]


def _steps(run: Run) -> npt.NDArray[np.int64]:
    return np.array([line["step"] for line in run.lines], dtype=np.int64)


def _start(values: Floats) -> float:
    return float(np.median(values[: max(_FIRST, window(len(values)))]))


def _medians(values: Floats) -> Floats:
    """Return the median of the ``_MEDIAN`` values around each value; of fewer at the ends."""
    padded = np.pad(values, _MEDIAN // 2, constant_values=np.nan)
    return np.asarray(np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, _MEDIAN), axis=1))
