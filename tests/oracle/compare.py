"""The mean gradient of the package against the truth, for every protocol, algorithm, credit and agent.

Letters: S prompts; see ``sample``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import torch
from cases import ENTRIES, PROTOCOLS, Entry, Protocol, entries
from exact import ROLES, WORTHS, expected, total_kl
from sample import Sample, batch_of, estimates, everything, played
from tabular import Table
from theory import law, lookup, uniform
from torch import Tensor

from coevolve.late import collector_off

GROUPS = 1500
"""Groups that are drawn where there are too many to have them all."""

CLOSE = 1e-5
"""Share of its length by which an exact gradient may be off: credits and log-ratios are float32."""

LIMIT = 5.0
"""Standard errors by which a sampled gradient may be off; a test counts what that allows for."""


@dataclass(frozen=True)
class Found:
    """The mean gradient over groups, the gradient of the objective, and what theory expects (None: it is not known).

    error_S: standard error of the mean; None where the groups were all there are. square: the mean squared length of a
    group's gradient.
    """

    mean_S: Tensor
    error_S: Tensor | None
    true_S: Tensor
    law_S: Tensor | None
    square: float = 0.0

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
    found_NS = estimates(sample, algorithm, role, batch_of(sample, algorithm, role))
    mean_S, error_S = average(sample, found_NS)
    table, worth = sample.tables[role], WORTHS[entry.credits[credit]]
    logp, reference = lookup(sample.tables)
    reference = uniform if entry.uniform else reference
    objective = expected(sample.protocol.ways, logp, role, worth, entry.gamma)
    objective = objective - entry.beta * total_kl(sample.protocol.ways, logp, reference, role)
    law_S = None
    if entry.baseline is not None:
        law_S = slope(law(entry, sample.protocol, logp, reference, role, worth), table)
        uneven = len({len(way) for way in sample.protocol.ways}) > 1  # then the batch decides by how much is divided
        if entry.free or (entry.turns and uneven):
            law_S = law_S * torch.dot(mean_S, law_S) / law_S.square().sum()
    square, _ = average(sample, found_NS.square().sum(1, keepdim=True))
    return Found(mean_S, error_S, slope(objective, table), law_S, float(square))


@dataclass(frozen=True)
class Spread:
    """How a group's gradient of the whole team varies about its mean, beside plain MAGRPO's.

    size: of the mean, along the true gradient, as a share of that. noise: the variance (the trace of the covariance)
    over the square of that length, so that a factor, which Adam forgets, changes nothing; infinite where the mean does
    not go the gradient's way. cosine: of the mean's angle. responses, rewards: what a group costs.
    """

    size: float
    cosine: float
    noise: float
    responses: float
    rewards: float

    @property
    def angle(self) -> float:
        return math.degrees(math.acos(max(-1.0, min(1.0, self.cosine))))

    def beside(self, plain: Spread) -> tuple[float, float]:
        """The noise over MAGRPO's, of as many responses and of as many rewards."""
        ratio = self.noise / plain.noise
        return ratio * self.responses / plain.responses, ratio * self.rewards / plain.rewards

    def cosine_of(self, responses: int) -> float:
        """E[estimate] . g over |g| and the root of E|estimate|^2, the estimate being the mean of so many responses."""
        if math.isinf(self.noise):
            return min(0.0, self.cosine)
        return 1 / math.sqrt(1 / self.cosine**2 + self.noise * self.responses / responses)


def spread(sample: Sample, agents: Mapping[str, Found], credit: str) -> Spread:
    """Of all agents' gradients as one. credit: as ``sample.credits`` has it."""
    means, truths = ([getattr(one, name) for one in agents.values()] for name in ("mean_S", "true_S"))
    mean, true = torch.cat(means), torch.cat(truths)
    along, square = float(torch.dot(mean, true)), sum(one.square for one in agents.values())
    size = along / float(true.square().sum())
    variance = max(0.0, square - float(mean.square().sum()))
    right = size > CLOSE
    return Spread(
        size,
        along / float(mean.norm() * true.norm()) if float(mean.norm()) > 0 else 0.0,
        variance / (size**2 * float(true.square().sum())) if right else math.inf,
        *costs(sample, credit),
    )


def costs(sample: Sample, credit: str) -> tuple[float, float]:
    """Responses and rewards of a group in the mean; what the credit has paid besides is alike in all groups."""
    if not sample.costs:
        group = torch.tensor([int(episode.problem.id) for episode in sample.episodes])
        for parts in ([e.turns for e in sample.episodes], [e.joints for e in sample.episodes]):
            count_N = torch.bincount(group, torch.tensor([float(len(one)) for one in parts]).double(), sample.groups)
            sample.costs += (float(average(sample, count_N[:, None])[0]),)
    turns, joints = sample.costs
    return turns, joints + sample.asked[credit] / sample.groups


@dataclass(frozen=True)
class Row:
    """One protocol and algorithm: by credit and agent, what was found; how the team's credit varies."""

    protocol: Protocol
    entry: Entry
    found: Mapping[str, Mapping[str, Found]]
    spread: Spread


@lru_cache(maxsize=1)
def rows() -> list[Row]:
    """Everything, once per process."""
    with collector_off():  # millions of small objects that stay
        return _rows()


def _rows() -> list[Row]:
    table = []
    for protocol in PROTOCOLS:
        sample = sample_of(protocol.name, protocol.seed)
        for entry in entries(protocol):
            found = {credit: {role: compare(sample, entry, credit, role) for role in ROLES} for credit in entry.credits}
            key = str(entry.made("team").settings["credit"])
            table.append(Row(protocol, entry, found, spread(sample, found["team"], key)))
    return table


@cache
def sample_of(name: str, seed: int) -> Sample:
    """All groups of a protocol, or many."""
    protocol = replace(next(one for one in PROTOCOLS if one.name == name), seed=seed)
    return everything(protocol) if protocol.turns else played(protocol, GROUPS)


@cache
def plain(name: str, seed: int) -> Spread:
    """MAGRPO in this protocol."""
    sample = sample_of(name, seed)
    found = {role: compare(sample, ENTRIES[0], "team", role) for role in ROLES}
    return spread(sample, found, "team_return")


def plain_of(protocol: Protocol) -> Spread:
    """MAGRPO where the protocol's ways are gone with nothing said again."""
    return plain(protocol.plainly or protocol.name, protocol.seed)
