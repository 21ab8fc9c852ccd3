"""What each entry's expected gradient is, as a sum over moments. Nothing here knows a loss or an advantage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from cases import Entry, Protocol
from exact import Choice, Logp, Way, Worth, responses_of
from tabular import MOVES, Table
from torch import Tensor


def sizes(protocol: Protocol, ways: Sequence[Way], chances: Sequence[float], stage: int) -> dict[int, float]:
    """How many turns a turn of this stage is compared with, itself included: the others get there independently."""
    reach = sum(p for way, p in zip(ways, chances, strict=True) if len(way) > stage)
    others = protocol.size - 1
    return {1 + m: math.comb(others, m) * reach**m * (1 - reach) ** (others - m) for m in range(protocol.size)}


def kept(baseline: str, size: Mapping[int, float]) -> float:
    """What a baseline leaves of the gradient: it takes a turn's own return along, or has none to compare with."""
    share = {"none": lambda g: 1.0, "mean": lambda g: (g - 1) / g, "loo": lambda g: float(g > 1)}[baseline]
    return sum(p * share(g) for g, p in size.items())


def law(entry: Entry, protocol: Protocol, logp: Logp, reference: Logp, role: str, worth: Worth) -> Tensor:
    """A scalar whose gradient is the entry's expected gradient (at ``free``, up to its length)."""
    assert entry.baseline is not None
    expects = protocol.expects(protocol.ways, logp, entry.gamma)
    chances = _chances(protocol.ways, logp)
    keep = [kept(entry.baseline, sizes(protocol, protocol.ways, chances, stage)) for stage in range(2)]
    total, turns = 0.0 * logp(protocol.ways[0][0].choices[0]), 0.0
    for weight, stage, choices, to_go in expects:
        mine = responses_of(choices, role)
        turns += float(weight) * len(mine)
        for said in mine:
            total = total + weight * keep[stage] * worth(to_go, role) * sum(logp(c) for c in said)
            if entry.penalty is not None:
                size = keep[stage] if entry.paid else 1.0
                total = total - weight * size * entry.beta * entry.penalty(said, logp, reference)
    return total / turns if entry.turns else total


def _chances(ways: Sequence[Way], logp: Logp) -> list[float]:
    return [math.exp(sum(float(logp(c).detach()) for act in way for c in act.choices)) for way in ways]


def lookup(tables: Mapping[str, Table]) -> tuple[Logp, Logp]:
    """(log pi, log pi_0) of choices."""
    logp = {role: table.logp_SA for role, table in tables.items()}

    def find(choice: Choice) -> Tensor:
        return logp[choice.role][tables[choice.role].number[choice.prompt], MOVES.index(choice.move)]

    def reference(choice: Choice) -> Tensor:
        table = tables[choice.role]
        return table.reference_SA[table.number[choice.prompt], MOVES.index(choice.move)]

    return find, reference


def uniform(choice: Choice) -> Tensor:
    """log pi_0 of the policy that knows nothing."""
    return torch.tensor(-math.log(len(MOVES)), dtype=torch.float64)
