"""The dialogues of runs as a page carries them: as many as fit, in chunks that are opened one by one.

Held-out problems (``samples.jsonl``) come first, in whole steps. Of the training episodes (``episodes.jsonl``) each
step shows its worst, its best, and others drawn by a fixed seed; if even a few of every step are too many, steps are
left out evenly. The index has the number of episodes shown and of those written.
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
"""The numbers that a record has for every token."""

_EXACT = 200_000  # with at most so many tokens on a page, their numbers are kept exactly as written
_CHUNK = 12_000  # tokens after which a chunk ends, with its step
_PROBE = 256  # episodes whose packed size is used to estimate how many fit
_FEW = 4  # fewest training episodes that a step shows
_SATURATED = 0.98  # quantile of a measure at which its colour is full


@dataclass(frozen=True)
class _Source:
    """A file of a run: its episodes by step. choice: whether some episodes of a step may be left out."""

    steps: Mapping[int, Sequence[Record]]
    choice: bool

    @cached_property
    def records(self) -> list[Record]:
        return [record for records in self.steps.values() for record in records]

    @cached_property
    def sizes(self) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
        """Measure -> its absolute value at every token where it is finite, for the measures that this file has."""
        found = {}
        for name in MEASURES:
            values = [v for r in self.records for turn in r["turns"] for v in turn.get(name, ()) if v is not None]
            sizes = np.abs(np.array(values, dtype=np.float64))
            if values:
                found[name] = sizes[np.isfinite(sizes)]
        return found


@dataclass(frozen=True)
class Packed:
    """Packed dialogues. index: per run a mapping with ``training`` and ``held_out`` (see ``_packed``). chunks: id, as
    in the index, -> blob."""

    index: list[dict[str, Any]]
    chunks: dict[str, str]


def dialogues(runs: Sequence[Run], budget: int) -> Packed:
    """Pack the dialogues of these runs into at most ``budget`` characters."""
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
    """Pack the same share of every source, about the largest that fits; returns the index and the chunks."""
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
    """Estimate the packed size of all episodes, in characters, from a sample that is spread over the steps."""
    total = 0.0
    for source in sources:
        records = source.records
        probe = records[:: max(1, len(records) // _PROBE)]
        grid = _grid(source, exact)
        total += sum(len(blob(packed_chunk(c, grid))) for c in _chunks(probe)) * len(records) / max(1, len(probe))
    return total


def chosen(steps: Mapping[int, Sequence[Record]], share: float, *, choice: bool) -> dict[int, list[Record]]:
    """Choose about this share of the episodes: of every step the worst, the best and a seeded draw, in their order. If
    that would be fewer than ``_FEW`` per step (without ``choice``: fewer than all), take fewer steps, evenly spread; of
    one step, the last."""
    written = sum(map(len, steps.values()))
    if share >= 1.0 or not written:
        return {step: list(records) for step, records in steps.items()}
    most = max(map(len, steps.values()))
    count = min(most, max(_FEW, math.floor(share * written / len(steps)))) if choice else most
    shown = math.floor(share * written / count)
    if not shown:
        return {}
    names = list(steps)
    places = np.linspace(len(names) - 1, 0, min(shown, len(names))).round().astype(int)
    return {names[i]: _some(steps[names[i]], count, names[i]) for i in reversed(places)}


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
    """Pack the kept episodes; returns their index and their chunks.

    The index: written, shown (numbers of episodes); all_steps (number of steps); steps (those that are shown); chunk_of
    (the chunk of each of these); grid (measure -> the unit that its numbers are multiples of, 0: as written); full
    (measure -> the value at which its colour is full). Measures that the run does not have are in neither.
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
    """Yield the records in chunks of whole steps."""
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
