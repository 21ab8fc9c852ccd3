"""The mean gradient of the package against the truth, for every protocol, algorithm, credit and agent.

Letters: S prompts; see ``sample``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from cases import PROTOCOLS, Entry, Protocol, entries
from exact import ROLES, WORTHS, expected, total_kl
from sample import Sample, batch_of, estimates, everything, played
from tabular import Table
from theory import law, lookup
from torch import Tensor

GROUPS = 1500
"""Groups that are drawn where there are too many to have them all."""

CLOSE = 1e-5
"""Share of its length by which an exact gradient may be off: credits and log-ratios are float32."""

LIMIT = 5.0
"""Standard errors by which a sampled gradient may be off; a test counts what that allows for."""


@dataclass(frozen=True)
class Found:
    """The mean gradient over groups, the gradient of the objective, and what theory expects (None: it is not known).

    error_S: standard error of the mean; None where the groups were all there are.
    """

    mean_S: Tensor
    error_S: Tensor | None
    true_S: Tensor
    law_S: Tensor | None

    @property
    def bias(self) -> float:
        return float((self.mean_S - self.true_S).norm() / self.true_S.norm())

    @property
    def noise(self) -> float:
        """What the bias of an unbiased estimator would come to, for want of samples."""
        return 0.0 if self.error_S is None else float(self.error_S.norm() / self.true_S.norm())

    @property
    def angle(self) -> float:
        """Between the mean and the objective's gradient, in degrees."""
        cosine = torch.dot(self.mean_S, self.true_S) / (self.mean_S.norm() * self.true_S.norm())
        return math.degrees(math.acos(max(-1.0, min(1.0, float(cosine)))))

    @property
    def lawful(self) -> bool:
        """Is the mean what theory expects?"""
        assert self.law_S is not None
        if self.error_S is not None:
            return distance(self.mean_S, self.law_S, self.error_S) < LIMIT
        return bool((self.mean_S - self.law_S).norm() < CLOSE * self.law_S.norm())


def distance(mean_S: Tensor, want_S: Tensor, error_S: Tensor) -> float:
    """The largest |mean - want| in standard errors; infinite where something is off that does not vary."""
    apart_S = (mean_S - want_S).abs()
    return float(torch.where(apart_S < 1e-6, 0.0, apart_S / error_S).max())


def slope(scalar: Tensor, table: Table) -> Tensor:
    """The gradient of a scalar by the logits of C, [S]."""
    (found_SA,) = torch.autograd.grad(scalar, table.logits_SA, retain_graph=True)
    return found_SA[:, 0]


def average(sample: Sample, found_NS: Tensor) -> tuple[Tensor, Tensor | None]:
    """The mean over groups and its standard error, None if they were all there are."""
    if sample.chances_N is not None:
        return sample.chances_N @ found_NS, None
    return found_NS.mean(0), found_NS.std(0) / math.sqrt(len(found_NS))


def compare(sample: Sample, entry: Entry, credit: str, role: str) -> Found:
    """One algorithm and credit of one agent."""
    algorithm = entry.made(credit)
    mean_S, error_S = average(sample, estimates(sample, algorithm, role, batch_of(sample, algorithm, role)))
    table, worth = sample.tables[role], WORTHS[entry.credits[credit]]
    logp, reference = lookup(sample.tables)
    objective = expected(sample.protocol.ways, logp, role, worth, entry.gamma)
    objective = objective - entry.beta * total_kl(sample.protocol.ways, logp, reference, role)
    law_S = None
    if entry.baseline is not None:
        law_S = slope(law(entry, sample.protocol, logp, reference, role, worth), table)
        uneven = len({len(way) for way in sample.protocol.ways}) > 1  # then the batch decides by how much is divided
        if entry.free or (entry.turns and uneven):
            law_S = law_S * torch.dot(mean_S, law_S) / law_S.square().sum()
    return Found(mean_S, error_S, slope(objective, table), law_S)


@dataclass(frozen=True)
class Row:
    """One protocol and algorithm: by credit and agent, what was found."""

    protocol: Protocol
    entry: Entry
    found: Mapping[str, Mapping[str, Found]]


@lru_cache(maxsize=1)
def rows() -> list[Row]:
    """Everything, once per process."""
    table = []
    for protocol in PROTOCOLS:
        sample = everything(protocol) if protocol.turns else played(protocol, GROUPS)
        for entry in entries(protocol):
            found = {credit: {role: compare(sample, entry, credit, role) for role in ROLES} for credit in entry.credits}
            table.append(Row(protocol, entry, found))
    return table
