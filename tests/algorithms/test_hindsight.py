"""Answers that heard somebody, learnt behind the bare prompt: by hand, what it reduces to, what it is not for."""

import math

import pytest
import torch
from lesson_cases import lesson, paid, spoke

from coevolve.algorithms import hindsight, marloo
from coevolve.measure import learnt
from coevolve.types import Outputs


def two_members(pays=((1.0, 2.0), (3.0, 6.0))):
    """The pioneer was paid 1 and 3, its observer 2 and 6."""
    episodes = []
    for member, (first_pay, second_pay) in enumerate(pays):
        first = spoke("pioneer", "ann", "C", -0.5, member=member)
        second = spoke("observer", "ann", "D", -0.75, heard=(first,), member=member)
        episodes.append(paid((first_pay, second_pay), first, second))
    return episodes


def test_by_hand():
    rule = hindsight(cap=2.0)
    made = lesson(rule, two_members())
    batch = made.batches["ann"]
    # pioneer, observer, pioneer, observer; then the observers' answers behind the pioneer's prompt
    assert batch.ids_BS.tolist() == [[5, 7, 0, 0], [5, 6, 5, 7], [5, 7, 0, 0], [5, 6, 5, 7], [5, 7, 0, 0], [5, 7, 0, 0]]
    assert batch.peers_B.tolist() == [0, 1, 0, 1, 0, 0]
    targets, _ = rule.advantage(made, {})
    adv_B = targets["ann"].adv_BT[:, 0]
    assert adv_B.tolist() == [-2.0, -4.0, 2.0, 4.0, -1.0, 5.0]  # 1 - 3, 2 - 6, ...; 2 and 6 less the other pioneer's
    logp_BT = torch.tensor([[-0.5], [-0.75], [-0.5], [-0.75], [-1.0], [0.25]], requires_grad=True)
    weight_BT = rule.objective.loss_aggregation(batch)
    assert weight_BT[:, 0].tolist() == [0.5] * 6  # two episodes
    loss, metrics = rule.objective.loss(Outputs(logp_BT), batch, targets["ann"], weight_BT)
    # e^-0.25 of the first row; e^1 = 2.7 of the second, capped at 2
    (slope_BT,) = torch.autograd.grad(loss, logp_BT)
    assert slope_BT[:, 0].tolist() == pytest.approx([1.0, 2.0, -1.0, -2.0, 0.5 * math.exp(-0.25), -5.0])
    assert metrics["capped"].item() == 0.5
    assert metrics["loss/alone"].item() == pytest.approx(0.5 * math.exp(-0.25) * -1.0 - 5.0 * 0.25)


def test_an_answer_stands_behind_the_bare_prompt_of_its_own_role():
    """Where its policy has several: y's is 9, x's is 5."""
    first, second = spoke("x", "ann", "C"), spoke("y", "ann", "D")
    second.prompt_ids = [9]
    again = spoke("y", "ann", "D", heard=(first,))
    batch = lesson(hindsight(), [paid((1.0, 2.0, 3.0), first, second, again)]).batches["ann"]
    assert batch.ids_BS[3].tolist() == [9, 7, 0, 0]
    assert batch.peers_B.tolist() == [0, 1, 1, 1]


def test_behind_the_bare_prompt_an_answer_is_compared_with_the_mean_of_the_other_pioneers():
    rule = hindsight()
    made = lesson(rule, two_members(((1.0, 2.0), (3.0, 6.0), (8.0, 4.0))))
    alone_B = rule.advantage(made, {})[0]["ann"].adv_BT[made.batches["ann"].extra_B, 0]
    assert alone_B.tolist() == [-3.5, 1.5, 2.0]  # 2 - (3 + 8) / 2, 6 - (1 + 8) / 2, 4 - (1 + 3) / 2


def test_a_smaller_weight_is_the_ratio_of_whole_answers():
    rule, episodes = hindsight(cap=2.0), two_members()
    episodes[1].turns[1].action_ids, episodes[1].turns[1].logps = [7, 8], [-0.75, -0.5]
    made = lesson(rule, episodes)
    batch = made.batches["ann"]
    targets, _ = rule.advantage(made, {})
    logp_BT = batch.logp_BT.clone()
    logp_BT[5] -= torch.tensor([0.5, -0.25])
    logp_BT[:5, 1] = 9.0  # where there is no token
    logp_BT[3, 1] = -0.5
    logp_BT.requires_grad_()
    loss, _ = rule.objective.loss(Outputs(logp_BT), batch, targets["ann"], rule.objective.loss_aggregation(batch))
    slope_BT = torch.autograd.grad(loss, logp_BT)[0]
    assert slope_BT[5].tolist() == pytest.approx([-0.5 * 5 * math.exp(0.25 - 0.5)] * 2)
    assert slope_BT[4].tolist() == pytest.approx([0.5, 0.0])


def test_a_cap_of_nothing_is_leave_one_out():
    rule, plain = hindsight(cap=0.0, clip=0.2), marloo(credit="own_reward", clip=0.2)
    assert rule.rows is None
    found = [r.advantage(lesson(r, two_members()), {})[0]["ann"].adv_BT for r in (rule, plain)]
    assert torch.equal(*found)
    assert rule.objective.loss.func is plain.objective.loss.func


def test_what_was_not_sampled_has_no_part_in_the_kl():
    rule = hindsight()
    made = lesson(rule, two_members())
    batch = made.batches["ann"]
    targets, _ = rule.advantage(made, {})
    kl_BT = torch.tensor([[1.0], [2.0], [3.0], [4.0], [90.0], [90.0]])
    assert learnt(batch.replace(kl_BT=kl_BT), targets["ann"])["kl"] == pytest.approx(2.5)


def test_where_there_is_nothing_to_stand_behind():
    rule = hindsight()
    with pytest.raises(ValueError, match="hindsight: nobody has heard anybody; want a play in which somebody reads"):
        lesson(rule, [paid((1.0, 2.0), spoke("x", "ann", "C"), spoke("y", "ann", "D"))])
    first = spoke("x", "ann", "C")
    with pytest.raises(ValueError, match="hindsight: nobody has heard anybody"):  # itself, and nobody else
        lesson(rule, [paid((1.0, 2.0), first, spoke("x", "ann", "D", heard=(first,)))])
    first = spoke("pioneer", "ann", "C")
    apart = paid((1.0, 2.0), first, spoke("observer", "bob", "D", heard=(first,)))
    with pytest.raises(ValueError, match="policy 'bob', role 'observer', spoke on problem 'p' only after it had heard"):
        lesson(rule, [apart])


def test_a_turn_is_alone_though_an_added_row_is_in_its_group():
    with pytest.raises(ValueError, match=r"every turn is alone in its group.* set members to at least 2"):
        hindsight().advantage(lesson(hindsight(), two_members()[:1]), {})


def test_the_kl_is_of_the_turns_as_they_were_sampled():
    rule, plain = hindsight(beta=0.5), hindsight()
    assert rule.reference
    assert not plain.reference
    made = lesson(rule, two_members())
    batch = made.batches["ann"]
    batch = batch.replace(logp_ref_BT=batch.logp_BT - torch.tensor([[1.0], [0.0], [3.0], [0.0], [9.0], [9.0]]))
    targets = rule.advantage(made, {})[0]["ann"]
    weight_BT = rule.objective.loss_aggregation(batch)
    found = [one.objective.loss(Outputs(batch.logp_BT), batch, targets, weight_BT)[0].item() for one in (rule, plain)]
    # beta (1/2 1^2 + 1/2 3^2) over two episodes; nothing of the rows behind the bare prompt
    assert found[0] - found[1] == pytest.approx(0.5 * 5.0 / 2)
