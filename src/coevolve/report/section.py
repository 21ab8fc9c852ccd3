"""What every part of a report is made of, whoever draws it: the page, ``report.md`` or a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Cell = str | float | int | None
"""None is what could not be measured, and shown as a dash; the page leaves out a column of nothing else."""


@dataclass(frozen=True)
class Series:
    """A line or, with ``points``, single points; low and high: the interval around each y. labels: one per point.

    x: numbers, or the names of what is compared.
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
    """One finding: a title, the sentence that says what may be concluded, a table, perhaps a plot.

    id: letters, digits and dashes, unique in a report. columns: titles; every row has one cell per column.
    """

    id: str
    title: str
    sentence: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = field(default_factory=list)
    plot: Plot | None = None
