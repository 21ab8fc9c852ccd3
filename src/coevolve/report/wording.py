"""Words for findings: numbers with fitting digits, intervals, lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

_SIGNIFICANT = 3
_TINY = 1e-4
_ROUNDING = 1e-9  # of the value: a smaller standard error comes from rounding in sums


def number(value: float | None) -> str:
    """Return three significant digits, integers in full: ``0.123``, ``12.3``, ``7,680``, ``1.2e-05``; a dash for None,
    NaN and infinities."""
    if value is None or not math.isfinite(value):
        return "–"
    rounded = abs(float(f"{value:.{_SIGNIFICANT - 1}e}"))  # .09999 has the digits of .1
    if isinstance(value, int) or value == 0 or rounded >= 10**_SIGNIFICANT:
        return f"{value:,.0f}"
    if rounded < _TINY:
        return f"{value:.1e}"
    return f"{value:.{max(0, _SIGNIFICANT - 1 - math.floor(math.log10(rounded)))}f}"


def fixed(value: float | None, digits: int) -> str:
    """Return a number with so many decimals; a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def plus_minus(value: float, error: float | None) -> str:
    """Return ``3.59 ± 0.37``: the error with two digits, the value with as many decimals; without an error, the value
    alone."""
    if not error or error < _ROUNDING * abs(value):
        return number(value)
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def within(value: float, low: float | None, high: float | None) -> str:
    """Return a number with its interval, ``0.52 [0.31, 0.70]``; without limits, the number alone."""
    return number(value) if low is None or high is None else f"{number(value)} [{number(low)}, {number(high)}]"


def and_list(names: Sequence[str]) -> str:
    """Return names as a list in words: ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def many(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 run``, ``2 runs``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def table_cell(value: object) -> str:
    """Return a value for a cell of a Markdown table: bars escaped, breaks of lines as ``<br>``."""
    return str(value).replace("|", "\\|").replace("\n", "<br>")


def table_rows(lines: Iterable[Iterable[str]]) -> str:
    """Return lines of cells, whose Markdown marks are escaped already, as rows of a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
