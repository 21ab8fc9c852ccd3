"""The tables of an evaluation (``coevolve.evaluate``) in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from coevolve.console import WIDE, console
from coevolve.report.wording import fixed

NAMES = ("weights", "setting", "role", "policy", "decoding")
_DIGITS = {"kl": 2, "length": 1, "eos_rate": 2, "distinct_1": 3, "distinct_2": 3}
_PART = "parts/"
_BEST = "best@"


def show_evaluation(result: Mapping[str, Any]) -> None:
    """Print the result of ``evaluate_run``."""
    out = console(WIDE)
    result = {**result, "rows": _told_once(result["rows"])}
    out.print(_table(result))
    whole = [row for row in result["rows"] if any(key.startswith(_PART) for key in row)]
    if whole:
        out.print(_parts(whole))
    drawn = [row for row in result["rows"] if any(key.startswith(_BEST) for key in row)]
    if drawn:
        out.print(_best(drawn, result["samples"]))


def _told_once(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Drop repeated rows if one policy in one role is the whole team: alone, it has the same numbers as the team."""
    if len({(row["role"], row["policy"]) for row in rows if row["role"] != "all"}) > 1:
        return list(rows)
    numbers = [{key: value for key, value in row.items() if key not in ("setting", "seconds")} for row in rows]
    return [row for i, row in enumerate(rows) if numbers[i] not in numbers[:i]]


def _parts(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of the reward's components and of the cost, with a column per row of the evaluation."""
    shown = Table(title="components, means over problems", box=box.SIMPLE)
    shown.add_column("")
    for row in rows:
        shown.add_column(f"{row['weights']}\n{row['setting']}\n{row['decoding']}", justify="right")
    for key in ("reward", *dict.fromkeys(key for row in rows for key in row if key.startswith(_PART))):
        shown.add_row(key.removeprefix(_PART), *(fixed(row.get(key), 3) for row in rows))
    for key, digits in (("tokens", 1), ("seconds", 3)):
        shown.add_row(f"{key} per problem and sample", *(fixed(row[key], digits) for row in rows))
    return shown


def _best(rows: Sequence[Mapping[str, Any]], samples: int) -> Table:
    """Return the table of the expected best of k samples; for values of 0 and 1 that is pass@k."""
    shown = Table(title=f"best of k, from {samples} samples of each problem", box=box.SIMPLE)
    for name in (*NAMES[:-1], "of"):
        shown.add_column(name)
    ks = dict.fromkeys(key.partition("/")[0].removeprefix(_BEST) for row in rows for key in row if _BEST in key)
    for k in ks:
        shown.add_column(f"k = {k}", justify="right")
    for row in rows:
        for name in (key.removeprefix(f"{_BEST}1/") for key in row if key.startswith(f"{_BEST}1/")):
            best = [fixed(row.get(f"{_BEST}{k}/{name}"), 3) for k in ks]
            shown.add_row(*(str(row[key]) for key in NAMES[:-1]), name.removeprefix(_PART), *best)
    return shown


def _table(result: Mapping[str, Any]) -> Table:
    weights = f"checkpoint {result['checkpoint']}" if result["checkpoint"] else "untrained"
    title = f"{weights}, {result['problems']} held-out problems"
    shown = Table(
        title=f"{title}, at most {result['max_new_tokens']} new tokens", box=box.SIMPLE, collapse_padding=True
    )
    for name in NAMES:
        shown.add_column(name)
    gained = any("gain" in row for row in result["rows"])
    digits = {key: count for key, count in _DIGITS.items() if not (gained and key == "distinct_1")}  # for want of width
    for name in ("reward", *(["gain"] if gained else []), *digits):
        shown.add_column(name, justify="right")
    for row in result["rows"]:
        rewards = [f"{fixed(row.get('reward'), 2)} ± {fixed(row.get('reward_se'), 2)}"]
        if gained:
            rewards.append(f"{row['gain']:+.2f} ± {fixed(row['gain_se'], 2)}" if "gain" in row else "-")
        numbers = [fixed(row.get(key), count) for key, count in digits.items()]
        shown.add_row(*(str(row[key]) for key in NAMES), *rewards, *numbers)
    return shown
