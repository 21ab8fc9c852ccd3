"""The rule that turns results into verdicts, written down before the runs. Verdicts are computed, never typed.

A comparison uses pairs of runs, one for each seed of the tier ``full``; until all of them exist it is undecided, since
looking after every seed and stopping at a welcome result would be another test. Sign-flip tests (exact), with Holm's
correction over all comparisons of the study, run or not; bootstrap intervals of the mean difference.

    confirmed   adjusted p < .05, in the claimed direction, and the mean difference is beyond the margin
    refuted     as confirmed, but in the other direction
    equal       the whole 95 % interval is within the margin
    undecided   none of these, or pairs are missing
    vacuous     the claim needs its premises, one of which was measured and does not hold
    open        nothing was claimed: a question, whose answer is an interval

If the claim is that two sides are equal, an interval within the margin confirms it, and a significant difference beyond
the margin refutes it. A claim is confirmed, or equal, if all its comparisons are; refuted if one is; else undecided.
Open comparisons are no tests: they count neither for Holm's correction nor for the verdict of their claim.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from statistics import fmean
from typing import Any

from coevolve.report.findings.statistics import Estimate, estimate, holm, sign_flip
from coevolve.report.findings.verdicts import holds
from coevolve.study import measures
from coevolve.study.claims import ALPHA, Claim, Comparison, Direction, Study
from coevolve.study.results import Everywhere, Result, Results, other_libraries, other_weights

_TOO_EARLY = "finished before the day since which runs count"
MADE_APART = (
    "on different compute paths",
    "of different versions",
    "from different start weights",
    _TOO_EARLY,
)
"""Reasons why two runs are no pair that can be removed by making both of them anew."""


@dataclass
class Found:
    """The outcome of one comparison. pairs: seed -> (ours, theirs). made_on: seed -> the processor of its pair. lost:
    the seeds whose pair is of a lost commit. refused: seed -> why its runs are no pair. margin: in the measure's units.
    p: of the sign-flip test, None until all pairs exist; adjusted: p after Holm's correction."""

    comparison: Comparison
    pairs: dict[int, tuple[float, float]] = field(default_factory=dict)
    made_on: dict[int, str] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    margin: float = math.nan
    p: float | None = None
    adjusted: float = 1.0
    verdict: str = "undecided"

    @property
    def values(self) -> list[float]:
        """The difference of each pair, ours minus theirs."""
        return [ours - theirs for ours, theirs in self.pairs.values()]

    @property
    def estimate(self) -> Estimate | None:
        return estimate(self.values) if self.pairs else None

    @property
    def alike(self) -> int:
        """How many differences have the more frequent sign."""
        return max(sum(value > 0 for value in self.values), sum(value < 0 for value in self.values))


@dataclass(frozen=True)
class Judged:
    """A claim with its outcome. premises: the names of its premises -> what was measured, None if nothing was."""

    id: str
    claim: Claim
    found: Sequence[Found]
    premises: Mapping[str, Mapping[str, Any] | None]
    verdict: str

    @property
    def follows(self) -> str | None:
        """The text on what the verdict means for a user; None if the claim has none for this verdict."""
        return next((said for verdict, said in self.claim.follows.items() if verdict == self.verdict), None)


@dataclass(frozen=True)
class _Pair:
    """The runs of one seed on one kind of processor. why: the reason why they are no pair, or empty. spread: the
    standard deviation of the other side's rewards at the start. lost: whether one of them is of a lost commit.
    finished: when the last of them was, in UTC."""

    processor: str
    numbers: tuple[float, float]
    why: str
    spread: float
    lost: bool
    finished: str


def judge(study: Study, kept: Everywhere, premises: Mapping[str, Mapping[str, Any]]) -> list[Judged]:
    """Judge every claim of the study. premises: name -> what was measured."""
    found = {
        id: [_paired(one, study, kept, claim.since) for one in claim.comparisons] for id, claim in study.claims.items()
    }
    every = [one for each in found.values() for one in each if one.verdict != "open"]
    for one in every:
        if len(one.pairs) == study.seeds["full"]:
            one.p = sign_flip(one.values)
    for one, adjusted in zip(every, holm([1.0 if one.p is None else one.p for one in every]), strict=True):
        one.adjusted = adjusted
        if len(one.pairs) == study.seeds["full"]:
            one.verdict = decide(one.comparison.direction, estimate(one.values), adjusted, one.margin)
    judged = []
    for id, claim in study.claims.items():
        own = {name: premises.get(name) for name in claim.premise}
        judged.append(Judged(id, claim, found[id], own, _of_claim(claim, found[id], list(own.values()))))
    return judged


def decide(direction: Direction, effect: Estimate, adjusted: float, margin: float) -> str:
    """Return the verdict on the mean difference of all pairs. margin: at least 0, in the measure's units."""
    if effect.low is None or effect.high is None or math.isnan(margin):
        return "undecided"
    within = -margin <= effect.low and effect.high <= margin
    apart = adjusted < ALPHA and abs(effect.mean) > margin
    if direction == "equal":
        return "confirmed" if within else "refuted" if apart else "undecided"
    if apart:
        return "confirmed" if (effect.mean > 0) == (direction == "more") else "refuted"
    return "equal" if within else "undecided"


def _of_claim(claim: Claim, found: Sequence[Found], premises: Sequence[Mapping[str, Any] | None]) -> str:
    if claim.needs_premise and not all(one is None or holds(one) for one in premises):
        return "vacuous"
    if claim.elsewhere is not None:
        return "not run here"
    if claim.needs_premise and None in premises:
        return "undecided"
    verdicts = {one.verdict for one in found} - {"open"} or {"open"}
    if "refuted" in verdicts:
        return "refuted"
    return verdicts.pop() if len(verdicts) == 1 else "undecided"


def _paired(comparison: Comparison, study: Study, kept: Everywhere, since: date | None) -> Found:
    """Find the pairs of a comparison among the seeds of the tier ``full``, and why other runs are none. Of a seed that
    several kinds of processor have a pair of, the pair that was finished first counts: any other choice would let later
    runs, made for other claims, look at a decided comparison again. since: runs that finished before this day are no
    pairs."""
    found = Found(comparison, verdict="open" if comparison.direction == "open" else "undecided")
    spreads = []
    for seed in range(study.seeds["full"]):
        each = [_pair(comparison, seed, name, results, study.lost, since) for name, results in sorted(kept.items())]
        made = [pair for pair in each if pair is not None]
        if pairs := [pair for pair in made if not pair.why]:
            first = min(pairs, key=lambda pair: pair.finished)
            found.pairs[seed], found.made_on[seed] = first.numbers, first.processor
            found.lost |= {seed} if first.lost else set()
            spreads.append(first.spread)
        elif made:
            found.refused[seed] = min(made, key=lambda pair: pair.why == _TOO_EARLY).why  # of runs that count, if any
    found.margin = _margin(found, spreads)
    return found


def _pair(
    comparison: Comparison,
    seed: int,
    processor: str,
    results: Results,
    commits: Collection[str],
    since: date | None,
) -> _Pair | None:
    """Return the pair of a seed on a processor; None where one of its runs is missing. commits: the lost ones. since:
    the day from which runs count."""
    sides = [[results.get(arm, {}).get(seed) for arm in side] for side in comparison.sides]
    ours, theirs = ([one for one in side if one is not None] for side in sides)
    if len(ours) + len(theirs) < sum(map(len, sides)):
        return None
    numbers, why = _numbers(comparison, ours, theirs)
    lost = any(commit in one.commit for one in (*ours, *theirs) for commit in commits)
    times = [one.took.finished for one in (*ours, *theirs)]
    if since is not None and min(times) < since.isoformat():
        why = _TOO_EARLY
    return _Pair(processor, numbers, why, measures.spread(theirs[0]), lost, max(times))


def _numbers(
    comparison: Comparison, ours: Sequence[Result], theirs: Sequence[Result]
) -> tuple[tuple[float, float], str]:
    """Return the values of both sides and an empty text; or NaNs and the reason why they cannot be compared."""
    nothing = (math.nan, math.nan)
    if len({one.machine for one in (*ours, *theirs)}) > 1:
        return nothing, MADE_APART[0]
    if other_libraries([*ours, *theirs]):
        return nothing, MADE_APART[1]
    if other_weights([*ours, *theirs]):
        return nothing, MADE_APART[2]
    if any(map(measures.evaluated, comparison.measures)) and (why := _evaluated_apart([*ours, *theirs])):
        return nothing, why
    matched = comparison.matched
    budgeted = all(map(measures.along, comparison.measures))
    if not budgeted and not all(measures.same_cost(a, b, matched) for a, b in zip(ours, theirs, strict=True)):
        return nothing, f"spent different {matched}"
    if comparison.measure == "hypervolume":
        numbers = measures.areas(ours, theirs)
    else:
        budget = measures.budget_of(ours[0], theirs[0], matched) if budgeted else None
        ours_is, theirs_is = comparison.measures
        numbers = measures.amount(ours[0], ours_is, budget), measures.amount(theirs[0], theirs_is, budget)
    return (numbers, "") if all(map(math.isfinite, numbers)) else (nothing, "not measured in these runs")


def _evaluated_apart(sides: Sequence[Result]) -> str:
    """Return why held-out results cannot be compared; empty if they can. Without the second check, one side that was
    evaluated with the same random numbers for all seeds would bring the luck of these into every pair."""
    if len({one.evaluated.samples for one in sides}) > 1:
        return "evaluated with different numbers of samples"
    if len({one.evaluation_seed for one in sides}) > 1:
        return "evaluated by different random numbers"
    return ""


def _margin(found: Found, spreads: Sequence[float]) -> float:
    """Return the margin in the measure's units; NaN without pairs."""
    if not found.pairs:
        return math.nan
    margin = found.comparison.margin
    if margin.unit == " %":
        return margin.size / 100 * abs(fmean(theirs for _, theirs in found.pairs.values()))
    return margin.size * (fmean(spreads) if margin.unit == " sd" else 1.0)
