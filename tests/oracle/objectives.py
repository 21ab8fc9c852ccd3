"""Objectives beside every credit: which column of the tables "Credits" is theirs, and the play that tells them apart.

At the first step an objective weighs what its baseline and its credit have left over, and ratios are 1. So where a
response is one token its estimate of every group is that of a column times a factor that all groups have (Adam forgets
it); whitening takes one number off all turns besides, which in a large batch is their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from cases import PROTOCOLS
from compare import Spread, sample_of, spread
from credits import estimates_of, found_of, specs, valued
from exact import ROLES
from sample import Sample, batch_of, estimates
from torch import Tensor

from coevolve import algorithms
from coevolve.types import Algorithm

LONGER = "rounds(1), longer"
"""Where a response has one token or two."""


@dataclass(frozen=True)
class Column:
    """An algorithm without its KL, and the baseline of ``credits`` that it comes to. whitened: less one number more."""

    make: Callable[..., Algorithm]
    baseline: str
    whitened: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def estimates(self, sample: Sample, spec: Any, role: str) -> Tensor:
        """Of every group, [N, S]. Raises ValueError where the credit or the algorithm refuses the play."""
        rule = self.make(credit=spec, **self.settings)
        batch = valued(sample, rule, role) if self.baseline == "critic" else batch_of(sample, rule, role)
        return estimates(sample, rule, role, batch)


_FREE = {"eta": 0.0}
COLUMNS = {
    "reinforce": Column(algorithms.reinforce, "none"),
    "mareinforce": Column(algorithms.mareinforce, "none"),
    "rloo": Column(algorithms.rloo, "loo", settings={"beta": 0.0}),
    "marloo": Column(algorithms.marloo, "loo"),
    "magrpo": Column(algorithms.magrpo, "mean"),
    "dr_grpo": Column(algorithms.dr_grpo, "mean"),
    "maremax": Column(algorithms.maremax, "max"),
    "grpo": Column(algorithms.grpo, "std: group", settings={"beta": 0.0}),
    "dapo": Column(algorithms.dapo, "std: group"),
    "gspo": Column(algorithms.gspo, "std: group"),
    "cispo": Column(algorithms.cispo, "std: group"),
    "a2c": Column(algorithms.a2c, "critic", settings={**_FREE, "entropy": 0.0}),
    "reinforce_pp": Column(algorithms.reinforce_pp, "none", True, _FREE),
    "ppo": Column(algorithms.ppo, "critic", True, _FREE),
    "cory": Column(algorithms.cory, "critic", True, _FREE),
    "trpo": Column(algorithms.trpo, "critic", True, _FREE),
    "happo": Column(algorithms.happo, "critic", True, _FREE),
}


def apart(sample: Sample, spec: Any, column: Column, role: str) -> float:
    """How far an objective's estimates are from a multiple of its column's, as a share of their length."""
    found_NS = column.estimates(sample, spec, role)
    parts = [estimates_of(sample, spec, column.baseline, role)]
    if column.whitened:
        parts.append(ones(sample, spec, role))
    basis = torch.stack([one.flatten() for one in parts], 1)
    fitted = torch.linalg.lstsq(basis, found_NS.flatten()[:, None], driver="gelsd").solution
    if float(found_NS.norm()) == 0:
        return float(basis[:, 0].norm())
    left = (basis @ fitted)[:, 0] - found_NS.flatten()
    return float(left.norm() / found_NS.norm()) if float(fitted[0]) > 0 else 1.0


def ones(sample: Sample, spec: Any, role: str) -> Tensor:
    """What a credit of 1 for everything would give, [N, S]."""
    rule = algorithms.mareinforce(credit=spec)
    batch = batch_of(sample, rule, role)
    return estimates(sample, rule, role, batch.replace(credit_B=torch.ones_like(batch.credit_B)))


@cache
def longer() -> dict[str, dict[str, Spread]]:
    """Credit -> objective -> how it does where lengths differ, by the gradient of the team's expected pay; objectives
    that refuse the credit are left out, and credits that all refuse."""
    [protocol] = (one for one in PROTOCOLS if one.name == LONGER)
    sample = sample_of(LONGER, protocol.seed)
    every = {
        label: {name: _judged(sample, spec, column) for name, column in COLUMNS.items()}
        for label, spec in specs(protocol)
    }
    held = {label: {name: one for name, one in judged.items() if one is not None} for label, judged in every.items()}
    return {label: judged for label, judged in held.items() if judged}


def _judged(sample: Sample, spec: Any, column: Column) -> Spread | None:
    try:
        return _spread(sample, spec, column)
    except ValueError:
        return None


def _spread(sample: Sample, spec: Any, column: Column) -> Spread:
    agents = {role: found_of(sample, column.estimates(sample, spec, role), role) for role in ROLES}
    return spread(sample, agents, str(column.make(credit=spec, **column.settings).settings["credit"]))
