"""The results of the comparison as markdown, as JSON, and as one line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from peers_account import Account
from peers_work import Case

from coevolve.report.wording import table_rows

BF16 = "bf16"
"""In a contender's name: its limit is that of bfloat16."""

_HEADER = (
    "contender", "s / step (range)", "x ours", "joint / s", "generate + rest, s", "tok / s of generating",
    "tok / s of the rest", "of the limit", "peak MiB (start)", "others' load",
)  # fmt: skip


@dataclass
class Row:
    """One case: per contender its account of every round, and the limits of every round (``peers_limits.limits``).

    batch: rows at a time that TRL was fastest with. memory: contender -> MiB of a process of its own.
    """

    case: Case
    accounts: dict[str, list[Account]]
    bounds: Sequence[Mapping[str, Mapping[str, float]]]
    batch: int | None
    memory: dict[str, dict[str, float]]

    def over_rounds(self, name: str, what: Callable[[Account], float]) -> float:
        return median(what(account) for account in self.accounts[name])

    def seconds(self, name: str) -> float:
        return self.over_rounds(name, lambda account: account.seconds)

    def share(
        self, name: str, spent: Callable[[Account], float], parts: Sequence[str], dtype: str = ""
    ) -> tuple[float, float]:
        """The limit of these parts of a step as a share of what they took: 1 is as fast as the machine can be.

        In the median round, and in the best: the limit is the best of its measurements, too.
        """
        dtype = dtype or ("bfloat16" if BF16 in name else "float32")
        pairs = zip(self.bounds, self.accounts[name], strict=True)
        found = [sum(bound[dtype][part] for part in parts) / spent(account) for bound, account in pairs]
        return median(found), max(found)

    def whole_share(self, name: str) -> float:
        return self.share(name, lambda account: account.seconds, ("rollout", "update"))[0]

    def verdict(self, ours: str, peers: Sequence[str]) -> str:
        """The line that --quick ends with."""
        return " ".join(f"{peer} {self.seconds(peer) / self.seconds(ours):.1f}x" for peer in peers)


def table(row: Row, ours: str) -> str:
    return markdown(_HEADER, [_line(row, name, ours) for name in row.accounts])


def _line(row: Row, name: str, ours: str) -> list[str]:
    seconds, accounts = row.seconds(name), row.accounts[name]
    low, high = (f(account.seconds for account in accounts) for f in (min, max))
    generating = row.over_rounds(name, lambda account: account.generating)
    rest = row.over_rounds(name, lambda account: account.seconds - account.generating)
    held = row.memory.get(name)
    return [
        f"{name} (batch {row.batch})" if name == "trl" else name,
        f"{seconds:.3g} ({low:.3g}-{high:.3g})",
        f"{seconds / row.seconds(ours):.2f}",
        f"{row.over_rounds(name, lambda account: row.case.joints / account.seconds):.3g}",
        f"{generating:.3g} + {rest:.3g}",
        f"{row.over_rounds(name, lambda account: account.generated / account.generating):.0f}",
        f"{row.over_rounds(name, lambda account: account.trained / (account.seconds - account.generating)):.0f}",
        f"{row.whole_share(name):.0%}",
        f"{held['peak']:.0f} ({held['start']:.0f})" if held else "-",
        f"{row.over_rounds(name, lambda account: account.busy):.2f}",
    ]


def counts(row: Row) -> str:
    """What was done, over all timed rounds: everybody the same, or the difference."""
    lines = []
    for name, accounts in row.accounts.items():
        generated, trained, idle, steps = (
            sum(getattr(account, what) for account in accounts) for what in ("generated", "trained", "idle", "steps")
        )
        padding = f", {idle} positions of padding" if idle else ""
        lines.append(
            f"{name}: {generated} tokens generated (all lengths as forced), {trained} trained{padding}, "
            f"{steps} optimiser steps"
        )
    return "\n".join(f"- {line}" for line in lines)


def overview(found: Mapping[str, Row], ours: str) -> str:
    """All rows in one table: how many times as long as ours every other contender took."""
    names = list(dict.fromkeys(name for row in found.values() for name in row.accounts))
    lines = []
    for label, row in found.items():
        ratios = [f"{row.seconds(name) / row.seconds(ours):.2f}" if name in row.accounts else "-" for name in names[1:]]
        shares = [f"{row.whole_share(name):.0%}" if name in row.accounts else "-" for name in names]
        lines.append([label, f"{row.seconds(ours):.3g}", *ratios, " / ".join(shares)])
    return markdown(
        ("row", f"{ours}, s", *(f"{name} x" for name in names[1:]), f"of the limit: {' / '.join(names)}"), lines
    )


def shares(found: Mapping[str, Row], dtypes: Mapping[str, str]) -> str:
    """Ours against the limit, part by part; without a reference and a critic nothing comes between the two."""
    header = ("case", "dtype", "rollout s", "of the limit (best)", "update s", "of the limit (best)")
    lines = []
    for label, row in found.items():
        for name, dtype in dtypes.items():
            cells = []
            for phase, part in (("generate", "rollout"), ("update", "update")):
                usual, best = row.share(name, lambda account, p=phase: account.phases[p], (part,), dtype)
                took = row.over_rounds(name, lambda account, p=phase: account.phases[p])
                cells += [f"{took:.3g}", f"{usual:.0%} ({best:.0%})"]
            lines.append([label, dtype, *cells])
    return markdown(header, lines)


def record(found: Mapping[str, Row]) -> dict[str, Any]:
    """Everything, for a file."""
    return {
        label: {
            "case": dataclasses.asdict(row.case),
            "rounds": {
                name: [{k: v for k, v in dataclasses.asdict(account).items() if k != "made"} for account in accounts]
                for name, accounts in row.accounts.items()
            },
            "limits": [dict(bound) for bound in row.bounds],
            "trl_batch": row.batch,
            "memory_mib": row.memory,
        }
        for label, row in found.items()
    }


def quiet() -> None:
    """No progress bars between the lines of a table."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return table_rows([header, ["---"] * len(header), *lines])
