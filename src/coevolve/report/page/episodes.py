"""Records of episodes (see ``record``) as a page carries them: strings once, numbers as counts of a round step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from coevolve.report.page.blob import rounded
from coevolve.runs.folder import plain

Record = Mapping[str, Any]

_SAID = ("role", "policy", "round", "reward", "finished", "credit")
_LEVELS = 500  # steps between zero and the largest number, at most


def value(record: Record) -> float:
    """What an episode came to: the mean reward of the turns that somebody scored, 0 where there is none."""
    paid = [turn["reward"] for turn in record["turns"] if turn["reward"] is not None]
    return fmean(paid) if paid else 0.0


def round_step(largest: float) -> float:
    """The smallest of 1, 2, 5, 10, ... (and 0.1, 0.2, ...) of which ``largest`` is at most ``_LEVELS``; 0 for 0."""
    if largest <= 0:
        return 0.0
    wanted = largest / _LEVELS
    decade = 10.0 ** math.floor(math.log10(wanted))
    return float(f"{next(m * decade for m in (1, 2, 5, 10) if m * decade >= wanted * (1 - 1e-9)):.1g}")


def packed_chunk(records: Sequence[Record], grid: Mapping[str, float]) -> dict[str, Any]:
    """problems (id -> its columns), strings (every piece, prompt and note once), and the episodes, which name those by
    place."""
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
    """A turn as it was written: pieces, prompt and notes by place, text only where the pieces do not say it, numbers on
    the grid."""

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
    """Each as the nearest multiple of the step, as a count of steps; step 0: as it is. None for what is not finite."""
    finite = [None if v is None or not math.isfinite(v) else v for v in values]
    return [v if v is None or not step else round(v / step) for v in finite]
