"""The comparison of groups of runs: their means over seeds, and the differences of each two groups, paired by seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from coevolve.report.findings.alike import ALL_TURNS, Reward
from coevolve.report.findings.arms import setting
from coevolve.report.findings.measures import Measure
from coevolve.report.findings.statistics import FEWEST, Estimate, estimate, holm, sign_flip
from coevolve.report.runs import Group
from coevolve.report.section import Plot, Section, Series
from coevolve.report.wording import and_list, many, number, within
from coevolve.runs.identity import flat

_ALPHA = 0.05
_PAID_BY = ("task.", "sampling.")  # keys of a recipe that may change the reward of a turn
_EVEN = 1.01  # runs whose turns differ by at most this factor sampled equally many
_SPOKEN = 3  # with more pairs of groups, their first differences are in the table only

_EVIDENCE, _HINT, _NOTHING = "evidence", "a hint, not evidence", "no difference at these seeds"
_SAME, _ONE = "no difference: the same at every seed", "one seed says nothing about other seeds"


@dataclass(frozen=True)
class Difference:
    """The differences ``second - first`` in a measure, one for each seed that both have. p: of the sign-flip test;
    adjusted: p after Holm's correction."""

    measure: str
    first: str
    second: str
    values: Sequence[float]
    p: float
    adjusted: float

    @property
    def estimate(self) -> Estimate:
        return estimate(self.values)

    @property
    def verdict(self) -> str:
        """The conclusion: evidence, a hint, or why there is neither."""
        _, _, low, high = self.estimate
        if not any(self.values):
            return _SAME
        if low is None or high is None:
            return _ONE
        if self.adjusted < _ALPHA:
            return _EVIDENCE
        return _NOTHING if low <= 0 <= high else _HINT


def of_groups(groups: Sequence[Group], measures: Sequence[Measure], reward: Reward = ALL_TURNS) -> Section:
    """Return the section with the mean over seeds of every measure, group by group."""
    rows = []
    for measure in measures:
        for name, seeds in measure.values.items():
            if seeds:
                rows.append((measure.title, name, *estimate(list(seeds.values()))))
    counts = [f"{group.name} has {many(len(group.runs), 'seed')}" for group in groups]
    sentence = (
        f"Means over seeds with bootstrap 95 % intervals: {and_list(counts)}."
        f"{reward.said}{_few(min(len(group.runs) for group in groups))}{_lengths(groups)}{_settings(groups)}"
        f"{''.join(f' {measure.left_out}' for measure in measures if measure.left_out)}"
    )
    columns = ("measure", "group", "seeds", "mean", "low", "high")
    plot = _plot(measures[0].title, [row[1:] for row in rows if row[0] == measures[0].title]) if rows else None
    return Section("groups", "Groups of seeds", sentence, columns, rows, plot)


def _plot(title: str, rows: Sequence[tuple[str, int, float, float | None, float | None]]) -> Plot:
    """Plot a mean and its interval for each name, of one measure: others have other scales, and are in the table."""
    names, _, means, low, high = map(list, zip(*rows, strict=True))
    return Plot("", title, [Series(title, names, means, low, high, points=True)])


def _few(seeds: int) -> str:
    """Return a caution on the number of seeds of the smallest group; empty if it has enough."""
    if seeds >= FEWEST:
        return ""
    if seeds == 1:
        return " One seed says nothing about other seeds."
    return (
        " Intervals of so few seeds are too narrow: that of 3 holds the true mean in three cases of four, that of 10 "
        "in nine of ten."
    )


def _lengths(groups: Sequence[Group]) -> str:
    """Return a caution if the runs differ in their number of steps or turns; else empty."""
    runs = [run for group in groups for run in group.runs]
    steps = {len(run.lines) for run in runs}
    turns = [sum(value or 0 for value in run.column("turns")) for run in runs if "turns" in run.keys]
    if len(steps) > 1:
        given = f"have from {min(steps)} to {max(steps)} steps"
    elif turns and max(turns) > _EVEN * min(turns):
        given = f"sampled from {number(min(turns))} to {number(max(turns))} turns"
    else:
        return ""
    return f" The runs {given}, and final means each run's own end: only the rewards at equal cost compare them fairly."


def _settings(groups: Sequence[Group]) -> str:
    """Return a caution if the groups differ in a setting of the task or of sampling, so that their rewards may not mean
    the same; else empty."""
    keys = dict.fromkeys(key for group in groups for key in flat(group.runs[0].recipe) if key.startswith(_PAID_BY))
    differ = [key for key in keys if any(setting(group, key) != setting(groups[0], key) for group in groups)]
    if not differ:
        return ""
    return f" They differ in {and_list(differ)}: a reward means the same in all only if that changes nothing of it."


def differences(groups: Sequence[Group], measures: Sequence[Measure]) -> Section:
    """Return the section on the differences of each two groups, in every measure that means the same in both."""
    found = _differences(groups, measures)
    rows = [
        (one.measure, f"{one.second} - {one.first}", *one.estimate, one.p, one.adjusted, one.verdict) for one in found
    ]
    columns = ("measure", "difference", "pairs", "mean", "low", "high", "p", "p (Holm)", "conclusion")
    said = [*_told(found), *_counted(found), *_unpaired(groups, measures)]
    plot = _plot(rows[0][0], [row[1:6] for row in rows if row[0] == rows[0][0]]) if rows else None
    return Section("differences", "Differences, paired by seed", " ".join(said), columns if rows else (), rows, plot)


def _differences(groups: Sequence[Group], measures: Sequence[Measure]) -> list[Difference]:
    paired = [
        (measure.title, first.name, second.name, values)
        for first, second in combinations(groups, 2)
        for measure in measures
        if _same_meaning(measure, first, second) and (values := _between(measure, first, second))
    ]
    ps = [sign_flip(values) for *_, values in paired]
    return [Difference(*one, p, adjusted) for one, p, adjusted in zip(paired, ps, holm(ps), strict=True)]


def _same_meaning(measure: Measure, first: Group, second: Group) -> bool:
    return measure.agree is None or measure.agree[0](first) == measure.agree[0](second)


def _between(measure: Measure, first: Group, second: Group) -> list[float]:
    a, b = measure.values.get(first.name, {}), measure.values.get(second.name, {})
    return [b[seed] - a[seed] for seed in sorted(a.keys() & b.keys())]


def _told(found: Sequence[Difference]) -> Iterator[str]:
    """Yield the difference of each two groups in their first measure, in words, unless there are too many pairs."""
    told: dict[tuple[str, str], str] = {}
    for one in found:
        n, mean, low, high = one.estimate
        text = (
            f"{one.measure} of {one.second} less that of {one.first}: {within(mean, low, high)}, "
            f"{many(n, 'pair')}, p = {number(one.p)}, adjusted {number(one.adjusted)}: {one.verdict}."
        )
        told.setdefault((one.first, one.second), text[:1].upper() + text[1:])
    if len(told) <= _SPOKEN:
        yield from told.values()


def _counted(found: Sequence[Difference]) -> Iterator[str]:
    """Yield the number of comparisons, and a caution if they are too many, or pairs too few, for evidence."""
    if not found:
        yield "Nothing to compare: the groups share no seed."
        return
    verdicts = [one.verdict for one in found]
    yield (
        f"{many(len(found), 'comparison')} in all, for which Holm's correction adjusts p: {verdicts.count(_EVIDENCE)} "
        f"with p < {_ALPHA}, {verdicts.count(_HINT)} with no more than a hint (an interval without zero)."
    )
    fewest, most = (bound(len(one.values) for one in found) for bound in (min, max))
    least = 2 / 2**most
    if fewest < FEWEST:
        yield (
            f"With fewer than {FEWEST} pairs no sign-flip test can reach p < {_ALPHA}; with {fewest} the smallest p is "
            f"{number(2 / 2**fewest)}."
        )
    elif least * len(found) >= _ALPHA:
        yield (
            f"With {most} pairs the smallest p is {number(least)}, and {number(least * len(found))} when adjusted for "
            "so many comparisons: too few pairs for evidence, however large the difference."
        )


def _unpaired(groups: Sequence[Group], measures: Sequence[Measure]) -> Iterator[str]:
    """Yield remarks on seeds that not all groups have, and on measures that do not mean the same in all groups."""
    seeds = {group.name: and_list([str(run.seed) for run in group.runs]) for group in groups}
    if len(set(seeds.values())) > 1:
        shown = "; ".join(f"{name} has {those}" for name, those in seeds.items())
        yield f"Only seeds that both groups of a pair have are compared: {shown}."
    for measure in measures:
        if measure.agree and any(measure.agree[0](group) != measure.agree[0](groups[0]) for group in groups):
            yield f"Not compared between groups that differ in {measure.agree[1]}: {measure.title}."
