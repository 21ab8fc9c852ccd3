"""The dialogues of runs as a page carries them: as many as fit, in chunks that are opened one by one.

Held-out problems (``samples.jsonl``) come first, whole steps of them. Of the training episodes (``episodes.jsonl``) a
step shows its worst, its best, and others drawn by a fixed seed; where even a few of every step are too many, every
second step, third, ... The index says how many are shown of how many were written.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from coevolve import noise
from coevolve.report.page.blob import blob
from coevolve.report.page.episodes import Record, packed_chunk, round_step, value
from coevolve.report.runs import Run
from coevolve.runs.folder import RunDir, read_lines

MEASURES = ("adv", "kl", "logps")
"""What a record knows of every token."""

_EXACT = 200_000  # tokens on a page up to which their numbers stay as they were written
_CHUNK = 12_000  # tokens of a chunk
_PROBE = 256  # episodes whose packed size tells how many fit
_FEW = 4  # training episodes a step shows at least
_SATURATED = 0.98  # quantile of a measure at which its colour is full


@dataclass(frozen=True)
class _Source:
    """One file of one run: its episodes by step, and whether some of a step may be left out."""

    steps: Mapping[int, Sequence[Record]]
    choice: bool

    @cached_property
    def records(self) -> list[Record]:
        return [record for records in self.steps.values() for record in records]

    @cached_property
    def sizes(self) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
        """Of every measure that this file has: how large it is at every token, where it is finite."""
        found = {}
        for name in MEASURES:
            values = [v for r in self.records for turn in r["turns"] for v in turn.get(name, ()) if v is not None]
            sizes = np.abs(np.array(values, dtype=np.float64))
            if values:
                found[name] = sizes[np.isfinite(sizes)]
        return found


@dataclass(frozen=True)
class Packed:
    """index: per run a mapping with ``training`` and ``held_out`` (see ``_packed``); chunks: by the id that the index
    names, blobs."""

    index: list[dict[str, Any]]
    chunks: dict[str, str]


def dialogues(runs: Sequence[Run], budget: int) -> Packed:
    """The dialogues of these runs in at most ``budget`` characters."""
    held_out = [_source(read_lines(RunDir(run.path).samples), choice=False) for run in runs]
    training = [_source(read_lines(RunDir(run.path).episodes), choice=True) for run in runs]
    exact = sum(len(turn["pieces"]) for s in (*held_out, *training) for r in s.records for turn in r["turns"]) <= _EXACT
    first, chunks = _fit(held_out, budget // 2, exact)
    second, more = _fit(training, budget - sum(len(packed) for packed in chunks.values()), exact)
    index = [{"held_out": one, "training": other} for one, other in zip(first, second, strict=True)]
    return Packed(index, chunks | more)


def _source(lines: Sequence[Record], choice: bool) -> _Source:
    steps: dict[int, list[Record]] = {}
    for line in lines:
        steps.setdefault(line["step"], []).append(line)
    return _Source(steps, choice)


def _fit(sources: Sequence[_Source], budget: int, exact: bool) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The same share of every source, the largest that fits."""
    share = min(1.0, budget / max(1.0, _estimate(sources, exact)))
    while True:
        index: list[dict[str, Any]] = []
        chunks: dict[str, str] = {}
        for source in sources:
            about, own = _packed(source, chosen(source.steps, share, choice=source.choice), exact)
            index.append(about)
            chunks |= own
        if sum(len(packed) for packed in chunks.values()) <= budget or not chunks:
            return index, chunks
        share = 0.9 * share if share > 1e-6 else 0.0


def _estimate(sources: Sequence[_Source], exact: bool) -> float:
    """What all episodes would take, in characters, from some that are spread over the steps."""
    total = 0.0
    for source in sources:
        records = source.records
        probe = records[:: max(1, len(records) // _PROBE)]
        grid = _grid(source, exact)
        total += sum(len(blob(packed_chunk(c, grid))) for c in _chunks(probe)) * len(records) / max(1, len(probe))
    return total


def chosen(steps: Mapping[int, Sequence[Record]], share: float, *, choice: bool) -> dict[int, list[Record]]:
    """About this share of the episodes: of every step the worst, the best and a seeded draw, in their order; where that
    leaves fewer than a few (without ``choice``: fewer than all), fewer steps, evenly spread."""
    written = sum(map(len, steps.values()))
    if share >= 1.0 or not written:
        return {step: list(records) for step, records in steps.items()}
    most = max(map(len, steps.values()))
    count = min(most, max(_FEW, math.floor(share * written / len(steps)))) if choice else most
    shown = math.floor(share * written / count)
    if not shown:
        return {}
    names = list(steps)
    places = np.linspace(0, len(names) - 1, min(shown, len(names))).round().astype(int)
    return {names[i]: _some(steps[names[i]], count, names[i]) for i in places}


def _some(records: Sequence[Record], count: int, step: int) -> list[Record]:
    if count >= len(records):
        return list(records)
    order = sorted(range(len(records)), key=lambda i: value(records[i]))
    drawn = noise.permutation(len(records), "dialogues", step)
    kept = list(dict.fromkeys([order[0], order[-1], *drawn]))[:count]
    return [records[i] for i in sorted(kept)]


def _packed(
    source: _Source, kept: Mapping[int, Sequence[Record]], exact: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """The index of what is kept, and its chunks.

    The index: written, shown (episodes); all_steps; steps (those that are shown); chunk_of (of each of them); grid
    (measure -> the step its numbers are multiples of, 0: as written); full (measure -> where its colour is full). A
    measure that the run does not have is in neither.
    """
    grid = _grid(source, exact)
    chunks: dict[str, str] = {}
    chunk_of: dict[int, str] = {}
    for records in _chunks([record for step in kept.values() for record in step]):
        packed = blob(packed_chunk(records, grid))
        name = hashlib.sha256(packed.encode()).hexdigest()[:16]
        chunks[name] = packed
        chunk_of |= dict.fromkeys((record["step"] for record in records), name)
    about = {"written": len(source.records), "shown": sum(map(len, kept.values())), "all_steps": len(source.steps)}
    places = {"steps": list(chunk_of), "chunk_of": list(chunk_of.values())}
    return about | places | {"grid": grid, "full": _full(source)}, chunks


def _chunks(records: Sequence[Record]) -> Iterator[list[Record]]:
    """The records in runs of whole steps."""
    chunk: list[Record] = []
    tokens = 0
    for record in records:
        if tokens >= _CHUNK and record["step"] != chunk[-1]["step"]:
            yield chunk
            chunk, tokens = [], 0
        chunk.append(record)
        tokens += sum(len(turn["pieces"]) for turn in record["turns"])
    if chunk:
        yield chunk


def _grid(source: _Source, exact: bool) -> dict[str, float]:
    return {name: 0.0 if exact else round_step(float(sizes.max(initial=0.0))) for name, sizes in source.sizes.items()}


def _full(source: _Source) -> dict[str, float]:
    return {name: float(np.quantile(sizes, _SATURATED)) if sizes.size else 0.0 for name, sizes in source.sizes.items()}
