"""HAPPO by enumeration: when one agent has learnt, the other's gradient is that beside the one who has."""

import dataclasses

import pytest
import torch
from cases import PROTOCOLS
from compare import average, slope
from exact import WORTHS, expected
from sample import batch_of, estimates, everything
from theory import lookup

from coevolve.algorithms import happo, ppo
from coevolve.collate import collate, rows_of
from coevolve.types import Episode, Joint, Lesson, Outputs, Problem, Turn

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


@pytest.mark.parametrize("penalty", ["sampled", "exact"])
def test_the_kl_of_the_second_agent_is_beside_the_first_as_it_has_become(penalty):
    """A chain of one token each, by hand: the observer's gradient of E[r - eta log(pi / ref)] after the pioneer's
    update, which changes how often each of the observer's two prompts comes."""
    eta, before_2, after_2 = 0.7, torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.1])
    logits_22, ref_22 = (
        torch.tensor([[0.3, -0.8], [1.2, 0.1]]),
        torch.tensor([[-0.5, 0.4], [-0.2, 0.9]]).log_softmax(-1),
    )
    paid_22, firsts, seconds = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), [0, 0, 1, 1], [0, 1, 0, 1]
    logp_22 = logits_22.log_softmax(-1)
    kl_2 = (logp_22.exp() * (logp_22 - ref_22)).sum(1)
    episodes = [
        chain(a, b, before_2[a].log(), logp_22[a, b], paid_22[a, b]) for a, b in zip(firsts, seconds, strict=True)
    ]

    rule = happo(eta=eta, penalty=penalty, lam=1.0, epochs=1)
    rule = dataclasses.replace(rule, advantage=ppo(eta=eta, penalty=penalty, lam=1.0, whiten=False).advantage)
    rows = rows_of(episodes, rule.credit, None)
    first, second = (collate(rows, name) for name in ("ann", "bob"))
    known = {"value_BT": torch.zeros(4, 1)}
    first = first.replace(kl_BT=torch.zeros(4, 1), logp_ref_BT=first.logp_BT, **known)
    second = second.replace(kl_BT=kl_2[firsts, None], logp_ref_BT=ref_22[firsts, seconds][:, None], **known)
    lesson = Lesson(episodes, {"ann": first, "bob": second})
    targets, state = rule.advantage(lesson, {})
    aims = rule.follow(lesson, "ann", after_2.log()[firsts, None], targets, state)[0]["bob"]

    moving = logits_22.clone().requires_grad_()
    now_22 = moving.log_softmax(-1)
    full_2 = (now_22.exp() * (now_22 - ref_22)).sum(1)
    out = Outputs(now_22[firsts, seconds][:, None], torch.zeros(4, 1), None, full_2[firsts, None])
    chance_4 = before_2[firsts] * logp_22[firsts, seconds].exp()
    loss, _ = rule.objective.loss(out, second, aims, chance_4[:, None])
    found = torch.autograd.grad(loss, moving)[0]

    other = logits_22.clone().requires_grad_()
    now_22 = other.log_softmax(-1)
    worth = (after_2[:, None] * now_22.exp() * (paid_22 - eta * (now_22 - ref_22))).sum()
    want = torch.autograd.grad(-worth, other)[0]
    assert torch.allclose(found, want, atol=1e-6)


def chain(a, b, logp_a, logp_b, paid):
    problem = Problem("p")
    first = Turn("pioneer", "ann", problem, 0, 0, [5], [a], [float(logp_a)], "", True, reward=0.0)
    second = Turn(
        "observer", "bob", problem, 0, 0, [7 + a], [b], [float(logp_b)], "", True, reward=float(paid), asked=1
    )
    return Episode(problem, 0, [first, second], [Joint((first, second), (0.0, float(paid)))])
