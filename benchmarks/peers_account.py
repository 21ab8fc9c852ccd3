"""How a contender is forced to its lengths, and the account of what it did: tokens, steps, seconds, memory, load."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peers_work import Case
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import LogitsProcessorList


@dataclass
class Account:
    """What one step of a contender took and did.

    seconds: of the step; generating: of those, inside its generation. made: [B, T] tokens as they left ``generate``
    (or ragged rows), to be counted after the clock has stopped. trained: tokens of responses in its loss. idle: other
    positions in its loss, which is padding. steps: of its optimisers. phases: what the contender itself says. busy:
    cores that other processes used meanwhile.
    """

    seconds: float = 0.0
    generating: float = 0.0
    made: list[tuple[Sequence[Sequence[int]] | Tensor, Tensor]] = field(default_factory=list)
    generated: int = 0
    trained: int = 0
    idle: int = 0
    steps: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    busy: float = 0.0

    def check(self, case: Case, who: str) -> None:
        """Count what was generated. Raises AssertionError unless every response is as long as it had to be."""
        for rows, length_B in self.made:
            found = [_until(list(map(int, row)), case.end) for row in rows]
            assert found == length_B.tolist(), f"{who}: lengths {found}, not the forced {length_B.tolist()}"
            self.generated += sum(found)
        self.made.clear()


def _until(row: list[int], end: int) -> int:
    """Tokens up to and with the first end; one more than the row has if there is none, so that it cannot pass."""
    return row.index(end) + 1 if end in row else len(row) + 1


class EndsAt:
    """A logits processor of transformers: row b samples the end as its token ``length_B[b]``, and not before."""

    def __init__(self, length_B: Tensor, end: int) -> None:
        self.end, self.start = end, -1
        self.rows_at: dict[int, Tensor] = {
            int(n): (length_B == n).nonzero()[:, 0].to(length_B.device) for n in length_B.unique()
        }

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.start < 0:
            self.start = input_ids.shape[1]
        scores[:, self.end] = -torch.inf
        rows = self.rows_at.get(input_ids.shape[1] - self.start + 1)
        if rows is not None:
            scores[rows] = -torch.inf
            scores[rows, self.end] = 0.0
        return scores


class ForcedGenerate:
    """Stands in for a model's ``generate``: the rows of the n-th call end as the n-th entry of ``waiting`` says."""

    def __init__(self, model: Any, case: Case) -> None:
        self.generate, self.case = model.generate, case
        self.waiting: deque[Tensor] = deque()
        self.account = Account()
        model.generate = self

    def __call__(self, **settings: Any) -> Any:
        length_B = self.waiting.popleft()
        start = time.perf_counter()
        found = self.generate(**settings, logits_processor=LogitsProcessorList([EndsAt(length_B, self.case.end)]))
        self.account.generating += time.perf_counter() - start
        rows_BS = found if isinstance(found, Tensor) else found.sequences
        self.account.made.append((rows_BS[:, settings["input_ids"].shape[1] :], length_B))
        return found


class OptimiserSteps:
    """Counts the steps of every torch optimiser in this process."""

    def __init__(self) -> None:
        self.count = 0
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self.count += 1


STEPS = OptimiserSteps()


class Load:
    """Cores that others keep busy while this process and those it has started work; nan where there is no /proc."""

    def __init__(self) -> None:
        self.wall, self.others = time.perf_counter(), _others()

    def cores(self) -> float:
        return max(0.0, _others() - self.others) / (time.perf_counter() - self.wall)


def _others() -> float:
    """CPU seconds that all processes but this one and its children have used since the machine started."""
    tick = os.sysconf("SC_CLK_TCK")
    try:
        line = Path("/proc/stat").read_text("utf-8").splitlines()[0].split()[1:]
        ours = sum(_ticks(child) for child in _children()) / tick
    except OSError:
        return float("nan")
    user, nice, system, _idle, _iowait, irq, soft, *_ = (int(ticks) for ticks in line)
    mine = os.times()
    return (user + nice + system + irq + soft) / tick - ours - sum(mine[:4])


def _children() -> list[str]:
    """Processes that this one has started and that still run."""
    found = []
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += path.read_text("utf-8").split()
    return found


def _ticks(process: str) -> int:
    """What the process has computed, in ticks of the clock; behind its name, which may hold spaces, in brackets."""
    user, system = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


def peak_mib() -> dict[str, float]:
    """Resident memory now and at its highest, in MiB, with what processes that this one has started hold of their own.

    Empty where there is no /proc. Not ``getrusage``: a child inherits its parent's peak there.
    """
    try:
        mine = _kib("self")
    except OSError:
        return {}
    found = {"now": mine["VmRSS"], "peak": mine["VmHWM"]}
    for child in _children():
        with suppress(OSError):  # it has ended
            theirs = _kib(child)
            for key, name in (("now", "VmRSS"), ("peak", "VmHWM")):  # libraries and weights are the same memory as here
                found[key] += theirs[name] - theirs["RssFile"] - theirs["RssShmem"]
    return {key: kib / 1024 for key, kib in found.items()}


def _kib(process: str) -> Counter[str]:
    lines = Path(f"/proc/{process}/status").read_text("utf-8").splitlines()
    return Counter({line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("Vm", "Rss"))})
