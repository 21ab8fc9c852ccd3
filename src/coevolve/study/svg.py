"""Plots as SVG that is the same to the byte on every machine, and readable on light and on dark pages.

A test compares the study's page with its files, and the output of drawing libraries changes with their versions. The
picture is a card with colours of its own, which follow the reader's system; lines also differ in dashes and in the
marks at their ends, for readers who do not see colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import groupby

from coevolve.report.section import Plot, Series

_WIDTH, _HEIGHT, _LEGEND = 640, 330, 22  # width of the picture, heights of the plot in it and of a legend's line
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 28, 14, 48
_TICKS = 5
_DASHES = ("", "7 4", "2 3", "10 3 2 3", "4 2", "1 4")
_LIGHT = ("#2f6fde", "#c25e00", "#16866a", "#b93a86", "#7a5bd0", "#8f6414")
_DARK = ("#6aa1ff", "#f59f4a", "#3fc79f", "#ee7fc0", "#ab92f5", "#d3a94e")
_BAND = 0.16  # opacity of an interval

Point = tuple[float, float]


def svg(plot: Plot, title: str, says: str) -> str:
    """Draw a plot; at least one series must hold numbers. title, says: texts for screen readers."""
    frame = _Frame(plot.series)
    height = _HEIGHT + _LEGEND * len(plot.series) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="system-ui, sans-serif" '
        f'font-size="14" role="img"><title>{escape(title)}</title><desc>{escape(says)}</desc>',
        f"<style>{_style()}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>',
        *frame.axes(plot.x, plot.y),
    ]
    for number, series in enumerate(plot.series):
        look = f'class="s{number % len(_LIGHT)}" stroke-dasharray="{_DASHES[number % len(_DASHES)]}"'
        parts += [f"<g {look}>", *_drawn(series, frame, number), "</g>"]
        y = _HEIGHT + _LEGEND * number + 8
        parts.append(f"<g {look}>{_line([(_LEFT, y - 5), (_LEFT + 34, y - 5)])}{_mark(_LEFT + 17, y - 5, number)}</g>")
        parts.append(f'<text class="ink" x="{_LEFT + 44}" y="{y}">{escape(series.name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _style() -> str:
    def colours(card: str, ink: str, grid: str, lines: Sequence[str]) -> str:
        each = "".join(f".s{i}{{stroke:{colour};fill:{colour}}}" for i, colour in enumerate(lines))
        return f".card{{fill:{card};stroke:{grid}}}.ink{{fill:{ink}}}.grid{{stroke:{grid}}}{each}"

    light, dark = colours("#fff", "#1c2230", "#dfe3ea", _LIGHT), colours("#1a1f28", "#e6e9f0", "#39414f", _DARK)
    strokes = ".l{fill:none;stroke-width:2}.w{stroke-dasharray:none}.b{stroke:none}"
    return f"{light}@media(prefers-color-scheme:dark){{{dark}}}{strokes}"


class _Frame:
    """The box of the axes, which maps values to positions in the picture."""

    def __init__(self, series: Sequence[Series]) -> None:
        xs = [float(x) for one in series for x in one.x]
        ys = [y for one in series for side in (one.y, one.low or (), one.high or ()) for y in side if y is not None]
        self.x, self.y = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))

    def at(self, x: float, y: float) -> Point:
        wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return (
            _LEFT + wide * (x - self.x[0]) / (self.x[-1] - self.x[0]),
            _TOP + high * (1 - (y - self.y[0]) / (self.y[-1] - self.y[0])),
        )

    def axes(self, x_title: str, y_title: str) -> list[str]:
        """Draw the grid, its numbers and the titles of the axes."""
        (left, bottom), (right, top) = self.at(self.x[0], self.y[0]), self.at(self.x[-1], self.y[-1])
        parts = []
        for x in self.x:
            at = self.at(x, self.y[0])[0]
            parts.append(f'<path class="grid" d="M{at:.1f} {top:.1f}V{bottom:.1f}"/>')
            parts.append(f'<text class="ink" x="{at:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{x:g}</text>')
        for y in self.y:
            at = self.at(self.x[0], y)[1]
            parts.append(f'<path class="grid" d="M{left:.1f} {at:.1f}H{right:.1f}"/>')
            parts.append(f'<text class="ink" x="{left - 8:.1f}" y="{at + 5:.1f}" text-anchor="end">{y:g}</text>')
        middle = (top + bottom) / 2
        parts.append(
            f'<text class="ink" x="{(left + right) / 2:.1f}" y="{bottom + 38:.1f}" text-anchor="middle">'
            f"{escape(x_title)}</text>"
        )
        turned = f'transform="rotate(-90 16 {middle:.1f})"'
        parts.append(
            f'<text class="ink" x="16" y="{middle:.1f}" text-anchor="middle" {turned}>{escape(y_title)}</text>'
        )
        return parts


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers from at most ``low`` to at least ``high``, about ``_TICKS`` of them and at least two."""
    if low == high:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * size for size in (1, 2, 5, 10) if power * size >= raw)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _drawn(series: Series, frame: _Frame, number: int) -> list[str]:
    """Draw a series: bands or whiskers, then lines, which break where a value is missing, with a mark at the end of
    each piece or, for single points, at every point."""
    parts: list[str] = []
    rows = list(zip(map(float, series.x), series.y, series.low or series.y, series.high or series.y, strict=True))
    for known, group in groupby(rows, key=lambda row: row[1] is not None):
        if not known:
            continue
        piece = list(group)
        line = [frame.at(x, y) for x, y, _, _ in piece if y is not None]
        low = [frame.at(x, y) for x, _, y, _ in piece if y is not None]
        high = [frame.at(x, y) for x, _, _, y in piece if y is not None]
        if low != high and series.points:
            parts += [_line([below, above], "l w") for below, above in zip(low, high, strict=True)]
        elif low != high:
            outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*low, *reversed(high)])
            parts.append(f'<polygon class="b" fill-opacity="{_BAND}" points="{outline}"/>')
        if len(line) > 1:
            parts.append(_line(line))
        parts += [_mark(*point, number) for point in (line if series.points else line[-1:])]
    return parts


def _line(points: Sequence[Point], kind: str = "l") -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _mark(x: float, y: float, number: int) -> str:
    """Draw a circle, a square, a triangle or a diamond, by the number of the series."""
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>',
        f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" stroke-dasharray="none"/>',
        f'<path d="M{x - 5:.1f} {y + 4:.1f}h10l-5 -9z" stroke-dasharray="none"/>',
        f'<path d="M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z" stroke-dasharray="none"/>',
    )
    return shapes[number % len(shapes)]
