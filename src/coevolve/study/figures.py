"""The data of the study's pictures, which are drawn as in the papers.

The claims file defines the figures; this module makes their lines from the kept results of their arms. Arms without
results are left out and named. What no run knows is not drawn: points, lines without points, figures without lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coevolve.report.findings.curves import column, smooth
from coevolve.report.findings.statistics import Floats, bootstrap, estimate
from coevolve.report.section import Plot, Series
from coevolve.report.wording import and_list, number, within
from coevolve.study.claims import Book, Figure, Line
from coevolve.study.measures import SPENT, metric
from coevolve.study.results import Everywhere, Result, Results, one_per_seed

RESPONSES = "responses"


@dataclass(frozen=True)
class Drawn:
    """A figure with its data. rows: its lines as numbers: name, arm, seeds, x and y at the end. missing: arms without
    results. apart: a sentence with the processors, if the runs are of several kinds and so no pairs; else empty."""

    id: str
    figure: Figure
    plot: Plot
    rows: Sequence[Sequence[str]]
    missing: Sequence[str]
    apart: str

    @property
    def says(self) -> str:
        """A description of the picture, for readers who cannot see it."""
        lines = "; ".join(f"{name}: {x} and {y}" for name, _, _, x, y in self.rows)
        return f"{self.figure.reads} {self.plot.x} and {self.plot.y} at the end. {lines}."


def drawn(book: Book, everywhere: Everywhere) -> list[Drawn]:
    """Return every figure of which there is a point to draw."""
    found = []
    for id, figure in book.study.figures.items():
        arms = list(dict.fromkeys(arm for line in figure.lines.values() for arm in line.arms))
        kept = _of_most(everywhere, arms)
        lines = {name: line for name, line in figure.lines.items() if any(arm in kept for arm in line.arms)}
        series = [one for name, line in lines.items() if (one := _series(figure, name, line, kept)).y]
        if not series:
            continue
        series += [_marks(name, points) for name, points in figure.marks.items()]
        rows = [row for name, line in lines.items() for row in _rows(name, line, kept)]
        missing = [arm for arm in arms if arm not in kept]
        found.append(Drawn(id, figure, Plot(figure.x, figure.y, series), rows, missing, _apart(kept)))
    return found


def _of_most(everywhere: Everywhere, arms: Sequence[str]) -> Results:
    """Return a result of each seed of these arms, from the processor that made most of them where it has one."""
    made = {name: sum(len(results.get(arm, {})) for arm in arms) for name, results in everywhere.items()}
    any_of = one_per_seed(everywhere, first=max(sorted(made), key=made.__getitem__, default=None))
    return {arm: any_of[arm] for arm in arms if arm in any_of}


def _apart(kept: Results) -> str:
    processors = sorted({one.machine.processor for seeds in kept.values() for one in seeds.values()})
    return f"Runs of several processors, which are no pairs: {and_list(processors)}." if len(processors) > 1 else ""


def _series(figure: Figure, name: str, line: Line, kept: Results) -> Series:
    results = [list(kept[arm].values()) for arm in line.arms if arm in kept]
    if figure.draws == "ends":
        return _ends(name, line, results)
    return _curve(name, line, results[0]) if figure.draws == "curve" else _runs(name, line, results[0])


def _ends(name: str, line: Line, arms: Sequence[Sequence[Result]]) -> Series:
    """Return a point for each arm whose seeds all know their ends: their mean, with the interval of y."""
    points = []
    for results in arms:
        x, y = (estimate([_end(one, key) for one in results]) for key in (line.x, line.y))
        if np.isfinite([x.mean, y.mean]).all():
            points.append((x.mean, y))
    points.sort(key=lambda point: point[0])
    low, high = [y.low for _, y in points], [y.high for _, y in points]
    return Series(name, [x for x, _ in points], [y.mean for _, y in points], low, high, points=True)


def _curve(name: str, line: Line, results: Sequence[Result]) -> Series:
    """Return the mean over seeds along the run, with its interval, at the points where all seeds have both metrics;
    results of an arm have curves of the same length."""
    x_SN, y_SN = (np.stack([_along(one, key) for one in results]) for key in (line.x, line.y))
    known_N = np.isfinite(x_SN + y_SN).all(axis=0)
    x_SN, y_SN = x_SN[:, known_N], y_SN[:, known_N]
    low, high = bootstrap(y_SN)
    return Series(name, x_SN.mean(axis=0).tolist(), y_SN.mean(axis=0).tolist(), low.tolist(), high.tolist())


def _runs(name: str, line: Line, results: Sequence[Result]) -> Series:
    """Return all runs as one series, one after the other, with gaps between them."""
    xs: list[float] = []
    ys: list[float | None] = []
    for one in results:
        points = zip(_along(one, line.x).tolist(), _along(one, line.y).tolist(), strict=True)
        known = [point for point in points if np.isfinite(point).all()]
        if known:
            xs += [x for x, _ in known] + [known[-1][0]]  # the gap needs an x; any value does
            ys += [*(y for _, y in known), None]
    return Series(name, xs[:-1], ys[:-1])


def _marks(name: str, points: Sequence[tuple[float, float]]) -> Series:
    """Return points as one series with gaps between them."""
    xs = [x for x, _ in points for _ in range(2)]
    return Series(name, xs[:-1], [y for _, at in points for y in (at, None)][:-1], points=True)


def _rows(name: str, line: Line, kept: Results) -> list[list[str]]:
    found = []
    for arm in line.arms:
        results = list(kept.get(arm, {}).values())
        if results:
            ends = [within(*estimate([_end(one, key) for one in results])[1:]) for key in (line.x, line.y)]
            found.append([name, arm, number(len(results)), *ends])
    return found


def _along(result: Result, key: str) -> Floats:
    """Return a metric at each point of its curve, smoothed; or the number of responses generated by then."""
    if key == RESPONSES:
        return np.asarray(SPENT[RESPONSES](result.run))
    name, scale = metric(key)
    if name not in result.curves:
        raise ValueError(f"a figure draws {name} of {result.arm}, whose results have no such curve; change `figures`")
    return smooth(column(result.run, name)) / scale


def _end(result: Result, key: str) -> float:
    return float(_along(result, key)[-1])
