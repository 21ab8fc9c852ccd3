"""The rows of an evaluation (``coevolve.evaluate``) for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

_NAMES = ("weights", "setting", "role", "policy", "decoding")
_DIGITS = {"kl": 2, "length": 1, "eos_rate": 2, "distinct_1": 3, "distinct_2": 3}
_LOG_WIDTH = 120  # where there is no terminal to ask; rich's 80 columns would cut the names


def show_evaluation(result: Mapping[str, Any]) -> None:
    """Print what ``evaluate_run`` found."""
    terminal = Console().is_terminal
    Console(width=None if terminal else _LOG_WIDTH).print(_table(result))


def _table(result: Mapping[str, Any]) -> Table:
    title = f"checkpoint {result['checkpoint']}, {result['problems']} held-out problems"
    shown = Table(title=f"{title}, at most {result['max_new_tokens']} new tokens", box=box.SIMPLE)
    for name in _NAMES:
        shown.add_column(name)
    for name in ("reward", *_DIGITS):
        shown.add_column(name, justify="right")
    for row in result["rows"]:
        reward = f"{_number(row['reward'], 2)} ± {_number(row['reward_se'], 2)}"
        numbers = [_number(row.get(key), digits) for key, digits in _DIGITS.items()]
        shown.add_row(*(str(row[key]) for key in _NAMES), reward, *numbers)
    return shown


def _number(value: float | None, digits: int) -> str:
    """Fixed point; a dash for what could not be measured."""
    return "-" if value is None else f"{value:.{digits}f}"
