"""Words for findings: numbers with fitting digits, intervals, lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

_SIGNIFICANT = 3
_TINY = 1e-4
_ROUNDING = 1e-9  # of the value: an error as small is that of adding up


def number(value: float | None) -> str:
    """Three significant digits, integers in full: ``0.123``, ``12.3``, ``7,680``, ``1.2e-05``; a dash for no number."""
    if value is None or not math.isfinite(value):
        return "–"
    if isinstance(value, int) or value == 0 or abs(value) >= 10**_SIGNIFICANT:
        return f"{value:,.0f}"
    if abs(value) < _TINY:
        return f"{value:.1e}"
    return f"{value:.{max(0, _SIGNIFICANT - 1 - math.floor(math.log10(abs(value))))}f}"


def fixed(value: float | None, digits: int) -> str:
    """So many digits behind the point; a dash for what could not be measured."""
    return "-" if value is None else f"{value:.{digits}f}"


def plus_minus(value: float, error: float | None) -> str:
    """``3.59 ± 0.37``: two digits of the error, and the value as exactly; without an error the value alone."""
    if not error or error < _ROUNDING * abs(value):
        return number(value)
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def within(value: float, low: float | None, high: float | None) -> str:
    """``0.52 [0.31, 0.70]``; without limits the number alone."""
    return number(value) if low is None or high is None else f"{number(value)} [{number(low)}, {number(high)}]"


def and_list(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def many(count: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def table_rows(lines: Iterable[Iterable[str]]) -> str:
    """Lines of cells as rows of a Markdown table, whose marks the cells have lost already."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
