"""Exact comparison of a response's last number with the right one, as in CORY's GSM8K runs (arXiv 2410.06101, sec. 4).

The last number of a response counts, wherever it stands, and it is compared exactly. A number is:

- ASCII digits with a decimal part ("12.50", ".5") and commas before groups of three ("1,000", in LaTeX also "1{,}000"
  and "1\\,000"); any other comma separates numbers.
- A minus is a sign unless a letter, digit or closing bracket precedes it: "x = -5" is -5, "3-5" ends in 5. A minus
  followed by a blank is a sign only after "=" or an opening bracket: "x = - 5" is -5, and the dash of a list item is no
  sign.
- An en dash is a minus at the beginning of a line and after "=", ":", "*", "$" or an opening bracket; elsewhere it may
  denote a range.
- "$", "%" and units without digits are ignored: "-$5" is -5, "40%" is 40, and so is "40 apples".
- "a/b", also "\\frac{a}{b}", is one number, the fraction; it is no number if b is 0.
- A mixed number, "3 1/2", is one number: a whole number, one blank, and a fraction of whole numbers between 0 and 1.
  "3 5/2" and "3 and 1/2" end in their fractions.
- There are no exponents: "1e5" ends in 5. Digits that run on start a new number: "1.2.3" ends in 3.
"""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction

_AMOUNT = r"(?:\d+(?:,\d{3}(?!\d))*(?:\.\d+)?|(?<![\w.])\.\d+)"
_WHOLE = r"(?:(?<![\w.,/])(?P<whole>\d+(?:,\d{3})*) (?=\d+/\d))?"
_EN_DASH = r"(?<!\d\$)(?:(?<![^\n=:*$(\[{])|(?<=[=:] ))\u2013"
_TIGHT = r"(?<![^\W_])(?<![)\]}])[-\u2212]"
_MINUS = rf"(?P<minus>(?:(?<=[=(\[{{])|(?<=[=(\[{{] ))[-\u2212\u2013] ?|{_TIGHT}|{_EN_DASH})(?:\$ ?)?"
_NUMBER = re.compile(rf"(?:{_MINUS})?{_WHOLE}(?P<over>{_AMOUNT})(?:/(?P<under>{_AMOUNT}))?", re.ASCII)

_GROUPS = re.compile(r"(?<=[0-9])(?:\{,\}|\\,)(?=[0-9]{3}(?![0-9]))")
_FRACTION = re.compile(
    rf"(?P<whole>(?<=[0-9]))?\\[dt]?frac"
    rf"(?:\{{(?P<over>[-\u2212]?{_AMOUNT})\}}\{{(?P<under>{_AMOUNT})\}}|(?P<digits>\d\d))",
    re.ASCII,
)
"""LaTeX's commas before groups of three, and its fractions, also after the whole number of a mixed number."""

_LONGEST = 1000
"""Most characters of a number. Python refuses to parse integers of over 4,300 digits, and no answer is that long."""

_GOLD = "####"


def last_number(text: str) -> Fraction | None:
    """Return the last number of a text; None if there is none, if it divides by 0, or if it is over 1,000 characters.

    Never raises, whatever the text.
    """
    last = deque(_NUMBER.finditer(_plain(text)), maxlen=1)
    return _value(last[0]) if last else None


def is_right(text: str, gold: Fraction) -> bool:
    """Return whether the last number of a text is exactly ``gold``."""
    return last_number(text) == gold


def number(text: str) -> Fraction:
    """Parse a text that is a number, apart from white space, "$" and "%". Raises ValueError for anything else."""
    bare = re.sub(r"^([-\u2212\u2013])\s+", r"\1", _plain(text).strip().strip("$%").strip())
    found = _NUMBER.fullmatch(bare)
    value = None if found is None else _value(found)
    if found is None or value is None or (found["whole"] and not _is_mixed(found)):
        raise ValueError(f"{text.strip()[:60]!r} is no number; want one such as 12, 1,000 or -0.5")
    return value


def gold_of(solution: str) -> Fraction:
    """Return the number after the last ``####`` of a worked solution of GSM8K. Raises ValueError if there is none."""
    _, mark, behind = solution.rpartition(_GOLD)
    if not mark:
        raise ValueError(f"no {_GOLD!r} in the worked solution {solution[-60:]!r}; want its last line to be '#### 12'")
    return number(behind)


def _plain(text: str) -> str:
    """Return the text with LaTeX's numbers in plain notation: 1{,}000 as 1,000, 3\\frac{1}{2} as 3 1/2, \\$5 as $5."""
    return _FRACTION.sub(_as_plain, _GROUPS.sub(",", text).replace("\\$", "$"))


def _as_plain(found: re.Match[str]) -> str:
    over, under = list(found["digits"] or (found["over"], found["under"]))
    apart = found["whole"] is not None or over[0] in "-\u2212"  # of a mixed number, or its minus is a sign
    return f"{' ' if apart else ''}{'0' if over[0] == '.' else ''}{over}/{under} "


def _value(found: re.Match[str]) -> Fraction | None:
    if len(found[0]) > _LONGEST:
        return None
    over, under = (Fraction(part.replace(",", "")) for part in (found["over"], found["under"] or "1"))
    if under == 0:
        return None
    if not found["whole"]:
        return (-1 if found["minus"] else 1) * over / under
    if not _is_mixed(found):  # two adjacent numbers: the minus belongs to the first
        return over / under
    return (-1 if found["minus"] else 1) * (Fraction(found["whole"].replace(",", "")) + over / under)


def _is_mixed(found: re.Match[str]) -> bool:
    """Return whether a whole number and the fraction after it form one mixed number."""
    over, under = found["over"], found["under"]
    return over.isdigit() and under.isdigit() and 0 < int(over) < int(under)
