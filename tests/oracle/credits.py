"""Every credit with every baseline on every play, judged by the gradient of the team's expected pay.

The registry is what is looked at, so a new credit has its row without a word here; one that needs a setting has it in
``SETTINGS``. A play on which a credit is undefined refuses it, and that is written down too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from statistics import fmean
from typing import Any

import torch
from cases import PROTOCOLS, Protocol
from compare import Found, Spread, average, sample_of, slope, spread
from exact import ROLES, expected, longer_pay, team
from sample import Sample, batch_of, estimates
from theory import lookup
from torch import Tensor

from coevolve.algorithms import ppo
from coevolve.algorithms.group_relative import group_relative
from coevolve.credit import CREDITS
from coevolve.tasks.games import GAMES
from coevolve.types import Algorithm, Batch

BASELINES = ("none", "loo", "mean", "std: group", "max", "role", "best", "critic")
"""Five of the product, of which GRPO's is the mean with ``std: group``, two constants for each role, and a critic.

role: the role's expected credit, to which ``moving`` comes and ``group: role`` in a large batch. best: that of least
variance, which no rule can know. critic: PPO's head, which is right about every prompt. Of responses of one token
``length`` is ``loo``; ``shrunk`` looks across problems (``problems.py``)."""

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "crossed": [{}, {"shifts": 2}],
    "difference": [{"default": "D"}],
    "shapley": [{"default": "D"}],
    "team_return": [{}, {"gamma": 0.5}],
}


def specs(protocol: Protocol) -> Iterator[tuple[str, Any]]:
    """Every credit there is as a row calls it, and as an algorithm is given it."""
    for name in CREDITS:
        if name == "compared":
            yield name, {"name": name, "by": _comparator(protocol)}
            continue
        for settings in SETTINGS.get(name, [{}]):
            yield ", ".join([name, *(f"{key}: {value}" for key, value in settings.items())]), {"name": name, **settings}


def _comparator(protocol: Protocol) -> Any:
    """Who prefers what pays the team more."""

    def paid(texts: Mapping[str, str]) -> float:
        x, y = (texts[role] for role in ROLES)
        return fmean(GAMES[protocol.game][""][x + y] if protocol.game in GAMES else longer_pay(x, y))  # type: ignore[index]

    return lambda problem, first, second: paid(first) - paid(second)


@cache
def judged(name: str) -> tuple[dict[str, dict[str, Spread]], list[str]]:
    """Of a protocol: credit -> baseline -> how it does, and the credits that refuse the play."""
    [protocol] = (one for one in PROTOCOLS if one.name == name)
    sample, found, refused = sample_of(name, protocol.seed), dict[str, dict[str, Spread]](), list[str]()
    for label, spec in specs(protocol):
        try:
            found[label] = {baseline: _judged(sample, spec, baseline) for baseline in BASELINES}
        except ValueError:
            refused.append(label)
    return found, refused


def _judged(sample: Sample, spec: Any, baseline: str) -> Spread:
    agents = {role: found_of(sample, estimates_of(sample, spec, baseline, role), role) for role in ROLES}
    return spread(sample, agents, str(group_relative(baseline="none", credit=spec).settings["credit"]))


def found_of(sample: Sample, found_NS: Tensor, role: str) -> Found:
    """Every group's estimate beside the gradient of the team's expected pay."""
    logp, _ = lookup(sample.tables)
    true_S = slope(expected(sample.protocol.ways, logp, role, team, 1.0), sample.tables[role])
    square, _ = average(sample, found_NS.square().sum(1, keepdim=True))
    return Found(*average(sample, found_NS), true_S, None, float(square))


def estimates_of(sample: Sample, spec: Any, baseline: str, role: str) -> Tensor:
    """Of every group, [N, S]."""
    if baseline in ("role", "best"):
        return _with_constant(sample, spec, baseline == "best", role)
    if baseline == "critic":
        return with_critic(sample, spec, role)
    how: Any = {"baseline": "mean", "std": "group"} if baseline == "std: group" else {"baseline": baseline}
    rule = group_relative(credit=spec, **how)
    return estimates(sample, rule, role, batch_of(sample, rule, role))


def with_critic(sample: Sample, spec: Any, role: str, wrong: float = 0.0) -> Tensor:
    """PPO against a head that says, before every token, what credit is to be expected there.

    wrong: by how much it is too high, and as often as the prompt has a number.
    """
    rule = ppo(eta=0.0, whiten=False, lam=1.0, credit=spec)
    return estimates(sample, rule, role, valued(sample, rule, role, wrong))


def valued(sample: Sample, rule: Algorithm, role: str, wrong: float = 0.0) -> Batch:
    """The agent's batch with what such a head says."""
    batch, place_BT, states = batch_of(sample, rule, role), sample.places[role], len(sample.tables[role].prompts)
    chance_N = torch.ones(sample.groups) if sample.chances_N is None else sample.chances_N
    counts_BT = chance_N[place_BT // states] * batch.mask_BT
    parts = (torch.bincount((place_BT % states).flatten(), x_BT.flatten().double(), states)
             for x_BT in (counts_BT * batch.credit_B[:, None], counts_BT))  # fmt: skip
    worth_S = torch.div(*parts) + wrong * torch.arange(1, states + 1)
    return batch.replace(value_BT=worth_S.float()[place_BT % states] * batch.mask_BT)


def _with_constant(sample: Sample, spec: Any, best: bool, role: str) -> Tensor:
    """``baseline: moving`` whose past says one number: the expected credit, or that of the least mean square."""
    rule = group_relative(baseline="moving", credit=spec)
    batch = batch_of(sample, rule, role)

    def less(constant: float) -> Tensor:
        return estimates(sample, rule, role, batch, {"moving": {"": {role: [constant, 1.0]}}})

    none_NS = less(0.0)
    if best:
        ones_NS = none_NS - less(1.0)  # what a credit of 1 for everything would give
        crossing, _ = average(sample, (none_NS * ones_NS).sum(1, keepdim=True))
        square, _ = average(sample, ones_NS.square().sum(1, keepdim=True))
        return less(float(crossing / square))
    groups = sample.places[role][:, 0] // len(sample.tables[role].prompts)
    chance_B = torch.ones(len(groups)) if sample.chances_N is None else sample.chances_N[groups]
    return less(float((chance_B * batch.credit_B).sum() / chance_B.sum()))
