"""HAPPO by enumeration: when one agent has learnt, the other's gradient is that beside the one who has."""

import dataclasses

import pytest
import torch
from cases import PROTOCOLS
from compare import average, slope
from exact import WORTHS, expected
from sample import batch_of, estimates, everything
from theory import lookup

from coevolve.algorithms import happo
from coevolve.types import Lesson

BY_NAME = {protocol.name: protocol for protocol in PROTOCOLS}


@pytest.mark.parametrize("name", ["rounds(1), chicken", "chain"])
def test_the_second_agent_learns_beside_the_first_as_it_has_become(name):
    sample, rule = everything(BY_NAME[name]), happo(eta=0.0)
    rule = dataclasses.replace(rule, advantage=plain(rule))
    batches = {role: batch_of(sample, rule, role) for role in "ab"}
    lesson = Lesson(sample.episodes, batches)
    targets, state = rule.advantage(lesson, {})
    before = sample.tables["a"].logits_SA
    moved = (before + torch.tensor([1.0, 0.0])).detach().requires_grad_()  # a has learnt to move C

    batch, table = batches["a"], sample.tables["a"]
    logp_BT = moved.log_softmax(-1)[table.prompts_of(batch)].gather(1, batch.action_BT)
    after, _ = rule.follow(lesson, "a", logp_BT, targets, state)
    assert torch.equal(after["a"].adv_BT, targets["a"].adv_BT)

    def found(aims):
        second = dataclasses.replace(rule, advantage=lambda lesson, state: ({"": aims}, state))
        return average(sample, estimates(sample, second, "b", batches["b"]))[0]

    table.logits_SA = moved
    logp, _ = lookup(sample.tables)
    want_S = slope(expected(sample.protocol.ways, logp, "b", WORTHS["team_sum"], 1.0), sample.tables["b"])
    assert float((found(after["b"]) - want_S).norm()) < 1e-5 * float(want_S.norm())
    assert float((found(targets["b"]) - want_S).norm()) > 0.05 * float(want_S.norm())


def plain(rule):
    """Its advantages as they are, not whitened: this is about what multiplies them."""

    def advantage(lesson, state):
        targets, state = rule.advantage(lesson, state)
        made = {
            name: dataclasses.replace(
                aims, adv_BT=lesson.batches[name].credit_B[:, None] * lesson.batches[name].mask_BT
            )
            for name, aims in targets.items()
        }
        return made, state

    return advantage
