"""Is an answer that ends in a number the right one? The rule of CORY's GSM8K runs (arXiv 2410.06101, section 4).

The last number of a response counts, wherever it stands, and it is compared exactly. What a number is:

- ASCII digits with a decimal part ("12.50", ".5") and commas before groups of three ("1,000", in LaTeX also "1{,}000"
  and "1\\,000"); another comma separates.
- A minus is its sign unless a letter, digit or bracket stands before it: "x = -5" is -5, "3-5" ends in 5. With a blank
  behind it it is one behind "=" or an opening bracket only: "x = - 5" is -5, and the dash of a list is no sign.
- An en dash is a minus at the beginning of a line and behind "=", ":", "*", "$" or an opening bracket; else it may be
  a range's.
- "$", "%" and units are ignored: "-$5" is -5, "40%" is 40, and so is "40 apples".
- "a/b", also "\\frac{a}{b}", is one number, the fraction; none if b is 0.
- So is a mixed number, "3 1/2": a whole number, one blank, and a fraction of whole numbers between 0 and 1. "3 5/2" and
  "3 and 1/2" end in their fractions.
- No exponents: "1e5" ends in 5. What runs on is cut where the number ends: "1.2.3" ends in 3.
"""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction

_AMOUNT = r"(?:\d+(?:,\d{3}(?!\d))*(?:\.\d+)?|(?<![\w.])\.\d+)"
_WHOLE = r"(?:(?<![\w.,/])(?P<whole>\d+(?:,\d{3})*) (?=\d+/\d))?"
_EN_DASH = r"(?<!\d\$)(?:(?<![^\n=:*$(\[{])|(?<=[=:] ))\u2013"
_MINUS = rf"(?P<minus>(?:(?<=[=(\[{{])|(?<=[=(\[{{] ))[-\u2212\u2013] ?|(?<![\w)\]}}])[-\u2212]|{_EN_DASH})(?:\$ ?)?"
_NUMBER = re.compile(rf"(?:{_MINUS})?{_WHOLE}(?P<over>{_AMOUNT})(?:/(?P<under>{_AMOUNT}))?", re.ASCII)

_GROUPS = re.compile(r"(?<=[0-9])(?:\{,\}|\\,)(?=[0-9]{3}(?![0-9]))")
_FRACTION = re.compile(
    rf"(?P<whole>(?<=[0-9]))?\\[dt]?frac\{{(?P<over>{_AMOUNT})\}}\{{(?P<under>{_AMOUNT})\}}", re.ASCII
)
"""LaTeX's commas before groups of three, and its fractions, also behind the whole number of a mixed one."""

_LONGEST = 1000
"""Characters of a number. Python refuses to read integers of more than 4,300 digits, and no answer is that long."""

_GOLD = "####"


def last_number(text: str) -> Fraction | None:
    """The last number of a text; None if there is none, if it divides by 0, or if it has more than 1,000 characters.

    Never raises, whatever the text.
    """
    last = deque(_NUMBER.finditer(_plain(text)), maxlen=1)
    return _value(last[0]) if last else None


def is_right(text: str, gold: Fraction) -> bool:
    """Whether the last number of a text is exactly this one."""
    return last_number(text) == gold


def number(text: str) -> Fraction:
    """The number that this text is, but for white space, "$" and "%". ValueError if it is anything else."""
    bare = re.sub(r"^([-\u2212\u2013])\s+", r"\1", _plain(text).strip().strip("$%").strip())
    found = _NUMBER.fullmatch(bare)
    value = None if found is None else _value(found)
    if found is None or value is None or (found["whole"] and not _is_mixed(found)):
        raise ValueError(f"{text.strip()[:60]!r} is no number; want one such as 12, 1,000 or -0.5")
    return value


def gold_of(solution: str) -> Fraction:
    """The number behind the last ``####`` of a worked solution of GSM8K. ValueError if there is none."""
    _, mark, behind = solution.rpartition(_GOLD)
    if not mark:
        raise ValueError(f"no {_GOLD!r} in the worked solution {solution[-60:]!r}; want its last line to be '#### 12'")
    return number(behind)


def _plain(text: str) -> str:
    """The text with LaTeX's numbers as others are written: 1{,}000 is 1,000, and 3\\frac{1}{2} is 3 1/2."""
    text = _GROUPS.sub(",", text)
    return _FRACTION.sub(
        lambda found: f"{'' if found['whole'] is None else ' '}{found['over']}/{found['under']} ", text
    )


def _value(found: re.Match[str]) -> Fraction | None:
    if len(found[0]) > _LONGEST:
        return None
    over, under = (Fraction(part.replace(",", "")) for part in (found["over"], found["under"] or "1"))
    if under == 0:
        return None
    if not found["whole"]:
        return (-1 if found["minus"] else 1) * over / under
    if not _is_mixed(found):  # two numbers beside each other, and the minus is the first one's
        return over / under
    return (-1 if found["minus"] else 1) * (Fraction(found["whole"].replace(",", "")) + over / under)


def _is_mixed(found: re.Match[str]) -> bool:
    """Whether a whole number and a fraction behind it are one number."""
    over, under = found["over"], found["under"]
    return over.isdigit() and under.isdigit() and 0 < int(over) < int(under)
