"""The sections and plots that make up a report, whether as the page, as ``report.md`` or as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Cell = str | float | int | None
"""A cell of a table; None was not measured and is shown as a dash. The page leaves out columns of None only."""


@dataclass(frozen=True)
class Series:
    """A line or, with ``points``, single points; low and high: the interval around each y. labels: one per point.

    x: numbers, or the names of the things compared.
    """

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    labels: Sequence[str] | None = None
    points: bool = False


@dataclass(frozen=True)
class Plot:
    """A picture of series over common axes; x and y are the titles of the axes."""

    x: str
    y: str
    series: Sequence[Series]


@dataclass(frozen=True)
class Section:
    """A finding: a title, a sentence on what may be concluded, and optionally a table and a plot.

    id: letters, digits and dashes, unique in a report. columns: titles; every row has one cell per column.
    """

    id: str
    title: str
    sentence: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = field(default_factory=list)
    plot: Plot | None = None
