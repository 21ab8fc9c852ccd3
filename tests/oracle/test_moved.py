"""Ratios off the first step: when a policy has moved, what it learns from what it said before, by enumeration.

One agent's logits are others than those that sampled; its partner's are the same. The ratio, as a factor of the loss or
as a weight, makes up for it, so that the gradient is that of the expected pay where the policy is now; without one it
is not, and a clip takes some of it away.
"""

import pytest
import torch
from cases import PROTOCOLS
from compare import CLOSE, slope
from exact import ROLES, expected, team
from sample import batch_of, everything, targets_of
from theory import lookup

from coevolve.algorithms import marloo
from coevolve.maths.losses import RATIOS
from coevolve.types import Outputs

WIDE = (1.0, 1e9)
BY_NAME = {protocol.name: protocol for protocol in PROTOCOLS}


def off(name, role, rule):
    """Of the gradient's length."""
    sample = everything(BY_NAME[name])
    batch, table = batch_of(sample, rule, role), sample.tables[role]
    group_B = sample.places[role][:, 0] // len(table.prompts)
    targets = targets_of(rule, batch, sample.episodes)
    table.logits_SA = (table.logits_SA + torch.tensor([1.0, -0.5])).detach().requires_grad_()
    logp_BT = table.logits_SA.log_softmax(-1)[table.prompts_of(batch)].gather(1, batch.action_BT)
    weight_BT = rule.objective.loss_aggregation(batch) * (sample.chances_N[group_B] * sample.groups)[:, None]
    loss, _ = rule.objective.loss(Outputs(logp_BT), batch, targets, weight_BT)
    logp, _ = lookup(sample.tables)
    want_S = slope(expected(sample.protocol.ways, logp, role, team, 1.0), table)
    return float((slope(-loss, table) - want_S).norm() / want_S.norm())


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", ["rounds(1), chicken", "chain"])
def test_ratios_are_right_where_the_policy_is_now(name, role):
    for ratio in RATIOS:
        assert off(name, role, marloo(clip=WIDE, ratio=ratio)) < CLOSE
        assert off(name, role, marloo(clip=0.2, ratio=ratio)) > 0.05
    assert off(name, role, marloo()) > 0.05
