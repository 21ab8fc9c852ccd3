"""Episode records (see ``record``) as a page carries them: each string once, numbers as counts of a round unit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from coevolve.report.page.blob import rounded
from coevolve.runs.folder import plain

Record = Mapping[str, Any]

_SAID = ("role", "policy", "round", "reward", "finished", "credit")
_LEVELS = 500  # most units between zero and the largest number


def value(record: Record) -> float:
    """Return the value of an episode: the mean reward of its scored turns, 0 if it has none."""
    paid = [turn["reward"] for turn in record["turns"] if turn["reward"] is not None]
    return fmean(paid) if paid else 0.0


def round_step(largest: float) -> float:
    """Return the smallest unit of 1, 2, 5, 10, ... (and 0.5, 0.2, 0.1, ...) of which ``largest`` is at most ``_LEVELS``
    units; 0 for 0."""
    if largest <= 0:
        return 0.0
    wanted = largest / _LEVELS
    decade = 10.0 ** math.floor(math.log10(wanted))
    return float(f"{next(m * decade for m in (1, 2, 5, 10) if m * decade >= wanted * (1 - 1e-9)):.1g}")


def packed_chunk(records: Sequence[Record], grid: Mapping[str, float]) -> dict[str, Any]:
    """Return a chunk: problems (id -> columns), strings (every piece, prompt and note once), and the episodes, which
    refer to strings by their position."""
    strings: dict[str, int] = {}
    episodes = [
        {
            **rounded({key: record[key] for key in ("step", "problem", "member", "joints", "parts")}),
            "value": rounded(value(record)),
            "turns": [_turn(turn, strings, grid) for turn in record["turns"]],
        }
        for record in records
    ]
    return {
        "problems": {record["problem"]: plain(record["data"]) for record in records},
        "episodes": episodes,
        "strings": list(strings),
    }


def _turn(turn: Record, strings: dict[str, int], grid: Mapping[str, float]) -> dict[str, Any]:
    """Return a packed turn: pieces, prompt and notes as positions of strings, the text only if it is not that of the
    pieces, numbers on the grid."""

    def place(text: str) -> int:
        return strings.setdefault(text, len(strings))

    pieces = turn["pieces"]
    packed: dict[str, Any] = rounded({key: turn[key] for key in _SAID if key in turn})
    packed |= {"heard": [part if isinstance(part, int) else [place(part)] for part in turn["heard"]]}
    packed |= {} if turn["text"] == "".join(pieces[:-1] if turn["finished"] else pieces) else {"text": turn["text"]}
    packed |= {"pieces": [place(piece) for piece in pieces]}
    packed |= {"prompt": place(turn["prompt"])} if "prompt" in turn else {}
    return packed | {name: on_grid(turn[name], step) for name, step in grid.items() if name in turn}


def on_grid(values: Sequence[float | None], step: float) -> list[float | int | None]:
    """Return each value as the nearest number of units ``step``, or unchanged if ``step`` is 0; None if not finite."""
    finite = [None if v is None or not math.isfinite(v) else v for v in values]
    return [v if v is None or not step else round(v / step) for v in finite]
