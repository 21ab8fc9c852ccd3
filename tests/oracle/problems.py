"""Baselines that look across the problems of a step, by whole batches: three problems, all batches there can be.

Two members each, so 16 groups a problem and 4,096 batches, each with its probability. The problems are one game; by
``LEVELS`` it pays the same in all three, or more in some, which changes no gradient. Letters: B turns, N batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from cases import PROTOCOLS
from compare import Found, Spread, slope, spread
from exact import ROLES, expected, team
from sample import Sample, batch_of, everything, slopes
from theory import lookup
from torch import Tensor

from coevolve.algorithms.group_relative import group_relative
from coevolve.types import Algorithm, Batch

LEVELS = {"alike": (0.0, 0.0, 0.0), "apart": (0.0, 3.0, 6.0)}
"""What each problem pays besides."""

PLAY = "rounds(1), chicken"
CREDITS = ("team_return", "crossed")
BASELINES: dict[str, dict[str, Any]] = {
    "none": {"baseline": "none"},
    "loo": {"baseline": "loo"},
    "mean": {"baseline": "mean"},
    "shrunk": {"baseline": "shrunk"},
    "loo, group: role": {"baseline": "loo", "group": "role"},
    "mean, group: role": {"baseline": "mean", "group": "role"},
}
PROBLEMS, AT_ONCE = 3, 128


@cache
def sample() -> Sample:
    [protocol] = (one for one in PROTOCOLS if one.name == PLAY)
    return everything(dataclasses.replace(protocol, members=2))


def batches(batch: Batch, rows_B: Tensor, levels: Sequence[float]) -> Batch:
    """Batches as one, each with a role of its own, so that no rule looks from one into another. rows_B: of the groups,
    three to a batch."""
    place_B = torch.arange(len(rows_B))
    found = batch.select(rows_B)
    return found.replace(
        credit_B=found.credit_B + torch.tensor(levels)[place_B // 2 % PROBLEMS],
        peers_B=place_B // 2,
        episode_B=place_B,
        role_B=place_B // (2 * PROBLEMS),
    )


def estimates(rule: Algorithm, role: str, levels: Sequence[float]) -> Iterator[Tensor]:
    """Of all batches in the order of their numbers, [N, S] at a time."""
    table, batch = sample().tables[role], batch_of(sample(), rule, role)
    assert batch.episode_B[:2].tolist() == [0, 1], "members of a group lie side by side"
    every = torch.cartesian_prod(*[torch.arange(sample().groups)] * PROBLEMS)
    prompt_B, p_S = table.prompts_of(batch), table.logp_SA.detach()[:, 0].exp()
    for groups_N3 in every.split(AT_ONCE):
        rows_B = (2 * groups_N3.reshape(-1, 1) + torch.arange(2)).flatten()
        mine, where_B = batches(batch, rows_B, levels), prompt_B[rows_B]
        push_B = slopes(rule, mine, [])[:, 0] * ((mine.action_BT[:, 0] == 0).double() - p_S[where_B])
        cells = mine.role_B * len(table.prompts) + where_B
        found = torch.bincount(cells, push_B, len(groups_N3) * len(table.prompts))
        yield len(groups_N3) * found.view(len(groups_N3), -1)


@cache
def judged(credit: str, baseline: str, levels: str) -> Spread:
    """How a batch's gradient varies. credit, baseline, levels: of ``CREDITS``, ``BASELINES`` and ``LEVELS``."""
    rule, agents = group_relative(credit=credit, **BASELINES[baseline]), {}
    chances_N = torch.cartesian_prod(*[sample().chances_N] * PROBLEMS).prod(1)
    logp, _ = lookup(sample().tables)
    for role in ROLES:
        found_NS = torch.cat(list(estimates(rule, role, LEVELS[levels])))
        true_S = slope(expected(sample().protocol.ways, logp, role, team, 1.0), sample().tables[role])
        agents[role] = Found(chances_N @ found_NS, None, true_S, None, float(chances_N @ found_NS.square().sum(1)))
    found = spread(sample(), agents, credit)
    return dataclasses.replace(found, responses=PROBLEMS * found.responses, rewards=PROBLEMS * found.rewards)
