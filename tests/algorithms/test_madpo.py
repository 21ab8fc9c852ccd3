"""DPO on joint responses: by hand, what it reduces to, which pairs there are, what it is not for."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from lesson_cases import lesson, paid, spoke
from torch.nn.functional import logsigmoid

from coevolve.algorithms import madpo
from coevolve.maths.preferences import pair_weights, preferred
from coevolve.types import Lesson, Outputs


def pairs(pays=(5.0, 3.0)):
    """Two members: (C, C) is paid 5 and (D, C) 3; log pi, sampled, of each turn."""
    one = paid((pays[0],) * 2, spoke("x", "ann", "C", -0.5), spoke("y", "bob", "C", -0.25))
    other = paid((pays[1],) * 2, spoke("x", "ann", "D", -1.0, member=1), spoke("y", "bob", "C", -0.75, member=1))
    return [one, other]


def learnt(rule, episodes, logps, reference=-0.5):
    """ann's loss, with these log-probabilities by now, and its gradient by them."""
    given = lesson(rule, episodes)
    batches = {n: b.replace(logp_ref_BT=torch.full_like(b.logp_BT, reference)) for n, b in given.batches.items()}
    targets, state = rule.advantage(Lesson(given.episodes, batches), {"kept": 1})
    assert state == {"kept": 1}
    logp_BT = torch.tensor(logps).reshape(len(logps), -1).requires_grad_()
    weight_BT = rule.objective.loss_aggregation(batches["ann"])
    loss, metrics = rule.objective.loss(Outputs(logp_BT), batches["ann"], targets["ann"], weight_BT)
    return SimpleNamespace(
        loss=loss.item(), slope=torch.autograd.grad(loss, logp_BT)[0][:, 0].tolist(), aims=targets["ann"], said=metrics
    )


def test_the_margin_of_a_pair_is_everybodys():
    # bob's log-ratios are 0.25 and -0.25, his part of the margin 0.5; ann's are 1 and 0 by now, her part 1
    found = learnt(madpo(beta=0.5), pairs(), [0.5, -0.5])
    assert found.aims.columns["others_B"].tolist() == [0.25, -0.25]
    assert found.aims.adv_BT.tolist() == [[1.0], [-1.0]]
    assert found.loss == pytest.approx(math.log1p(math.exp(-0.5 * 1.5)))
    want = 0.5 / (1 + math.exp(0.75))  # beta sigmoid(-beta margin)
    assert found.slope == pytest.approx([-want, want])
    assert found.said["preferred"].item() == 1.0


def test_a_partner_that_does_not_learn_is_part_of_the_team():
    # bob is frozen: his log-likelihoods -0.25 and -0.75 count as they are, and beside a reference, himself, not at all
    for reference, want in ((False, [-0.25, -0.75]), (True, [0.0, 0.0])):
        rule = madpo(reference=reference)
        given = lesson(rule, pairs())
        ann = given.batches["ann"].replace(logp_ref_BT=given.batches["ann"].logp_BT)
        targets, _ = rule.advantage(Lesson(given.episodes, {"ann": ann}), rule.start)
        assert targets["ann"].columns["others_B"].tolist() == want


def test_a_partner_without_log_probabilities_wants_a_reference():
    episodes = pairs()
    nobody_knows = [
        dataclasses.replace(
            episode,
            turns=[dataclasses.replace(t, logps=[math.nan]) if t.policy == "bob" else t for t in episode.turns],
        )
        for episode in episodes
    ]
    given = lesson(madpo(reference=False), episodes)
    alone = Lesson(nobody_knows, {"ann": given.batches["ann"]})
    with pytest.raises(ValueError, match=r"policy 'bob' said by its log-probabilities, and its engine has none"):
        madpo(reference=False).advantage(alone, {})
    ann = given.batches["ann"].replace(logp_ref_BT=given.batches["ann"].logp_BT)
    targets, _ = madpo().advantage(Lesson(nobody_knows, {"ann": ann}), {})
    assert targets["ann"].columns["others_B"].tolist() == [0.0, 0.0]  # beside a reference nobody asks for them


def test_one_policy_in_both_roles_takes_the_joint_step():
    """That of two policies which say the same, added up."""
    episodes = pairs()
    for episode in episodes:
        episode.turns[1].policy = "ann"
    rule = madpo(beta=0.5)
    both = learnt(rule, episodes, [-0.5, -0.25, -1.0, -0.75])
    one = learnt(rule, pairs(), [-0.5, -1.0])
    assert both.slope == pytest.approx([one.slope[0], one.slope[0], one.slope[1], one.slope[1]])
    assert both.loss == pytest.approx(2 * one.loss)


def test_an_agents_own_margin():
    found = learnt(madpo(beta=0.5, margin="own"), pairs(), [0.5, -0.5])
    assert found.loss == pytest.approx(math.log1p(math.exp(-0.5 * 1.0)))


def test_a_response_of_several_tokens_is_their_product():
    # ann's log-ratios are 0.4 + 0.3 of two tokens and -0.1 of one, behind which there is nothing: a margin of 0.8
    episodes = pairs()
    episodes[0].turns[0].action_ids, episodes[0].turns[0].logps = [7, 8], [-0.5, -0.5]
    found = learnt(madpo(beta=0.5, margin="own"), episodes, [[-0.1, -0.2], [-0.6, 9.0]])
    assert found.loss == pytest.approx(math.log1p(math.exp(-0.5 * 0.8)))
    want = 0.5 / (1 + math.exp(0.4))
    assert found.slope == pytest.approx([-want, want])


def test_without_a_reference_likelihoods_are_compared_as_they_are():
    rule = madpo(beta=0.5, reference=False)
    assert not rule.reference
    found = learnt(rule, pairs(), [-0.1, -1.6])
    assert found.loss == pytest.approx(math.log1p(math.exp(-0.5 * (1.5 + 0.5))))  # bob: -0.25 + 0.75


def test_one_agent_is_dpo():
    """The formula of the paper, on two problems, of which the second is answered by three members."""
    said = [("p", 2.0, -0.5), ("p", 1.0, -1.0), ("q", 0.0, -0.25), ("q", 4.0, -2.0), ("q", 1.0, -1.5)]
    episodes = [
        paid((pay,), spoke("x", "ann", "C", logp, problem=problem, member=member))
        for member, (problem, pay, logp) in enumerate(said)
    ]
    now = [-0.4, -1.2, -0.3, -1.0, -1.1]
    found = learnt(madpo(beta=0.2), episodes, now)
    margins = torch.tensor([now[0] - now[1], now[3] - now[2]])  # chosen less rejected; the references cancel
    each = -logsigmoid(0.2 * margins)
    assert found.loss == pytest.approx((2 * each[0] + 3 * each[1]).item() / 5)  # rows of a problem
    every = learnt(madpo(beta=0.2, pairs=None), episodes, now)
    more = -logsigmoid(0.2 * torch.tensor([now[3] - now[2], now[4] - now[2], now[3] - now[4]]))
    assert every.loss == pytest.approx((2 * each[0] + 3 * more.mean()).item() / 5)


def test_a_tie_teaches_nothing_and_rounding_is_a_tie():
    for pays in ((3.0, 3.0), (0.1 + 0.2, 0.3)):
        found = learnt(madpo(), pairs(pays), [0.5, -0.5])
        assert found.slope == [0.0, 0.0]
        assert "preferred" not in found.said  # nobody is, and nothing is wrong about it


def sums_of_0():
    """0.1 + 0.2 - 0.3 = 5.6e-17 and 0.2 - 0.3 + 0.1 = 2.8e-17: both sums are 0 but for the order of their terms."""
    return [
        paid(three, *(spoke(role, role, "C", member=m) for role in ("ann", "bob", "cleo")))
        for m, three in enumerate([(0.1, 0.2, -0.3), (0.2, -0.3, 0.1)])
    ]


def test_the_order_of_a_sum_is_no_preference():
    credit_B, peers_B = torch.tensor([0.1 + 0.2 - 0.3, 0.2 - 0.3 + 0.1]), torch.tensor([0, 0])
    assert preferred(credit_B, peers_B, None).tolist() == [
        [False, True],
        [False, False],
    ]  # nobody said of what they are
    assert preferred(credit_B, peers_B, None, torch.tensor([0.6, 0.6])).tolist() == [[False, False], [False, False]]
    # 2^-52 * 4096 * 0.6 = 5.5e-13
    small_B = torch.tensor([0.0, 5.6e-13])
    assert preferred(small_B, peers_B, None, torch.tensor([0.6, 0.6])).tolist() == [[False, False], [True, False]]
    found = learnt(madpo(credit="team_sum"), sums_of_0(), [0.5, -0.5])
    assert found.slope == [0.0, 0.0]
    assert found.aims.columns["paired_B"].tolist() == [0.0, 0.0]


def test_ties_are_not_counted_as_wrong():
    ties = [paid((1.0,), spoke("x", "ann", "C", problem="q", member=m)) for m in range(3)]
    assert learnt(madpo(), [*pairs(), *ties], [0.5, -0.5, 0.0, 0.0, 0.0]).said["preferred"].item() == pytest.approx(1.0)
    assert learnt(madpo(), [*pairs(), *ties], [-0.9, 0.5, 0.0, 0.0, 0.0]).said["preferred"].item() == 0.0


def test_which_pairs_of_a_group():
    credit_B, peers_B = torch.tensor([1.0, 3.0, 2.0, 7.0, 7.0]), torch.tensor([0, 0, 0, 1, 1])

    def found(most):
        return preferred(credit_B, peers_B, most).nonzero().tolist()

    assert found(None) == [[1, 0], [1, 2], [2, 0]]
    assert found(1) == [[1, 0]]
    assert found(2) == [[1, 0], [1, 2]]  # of equal differences the first
    assert found(9) == found(None)
    weights_B = pair_weights(preferred(credit_B, peers_B, 2), peers_B, torch.full((5,), 0.2))
    assert weights_B.tolist()[:3] == pytest.approx([0.3] * 3)


def test_pairs_are_kept_whole():
    rule = madpo(minibatch=3)
    assert (rule.objective.minibatch, rule.objective.together) == (3, "peers")


def test_what_it_is_not_for():
    twice = pairs()
    twice[0].joints *= 2
    with pytest.raises(
        ValueError, match="madpo: problem 'p' has 2 joint responses of 2 turns; want one joint response"
    ):
        learnt(madpo(), twice, [0.5, -0.5])
    with pytest.raises(ValueError, match="madpo: no problem has two joint responses to compare; set members"):
        learnt(madpo(), pairs()[:1], [0.5])
