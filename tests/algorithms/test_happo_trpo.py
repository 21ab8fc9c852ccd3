"""HAPPO and the trust region: what follows from an update, by hand, and what they are for one agent."""

import inspect
import math

import pytest
import torch
from lesson_cases import paid, spoke
from policy_cases import make_batch
from test_ppo import batch

from coevolve import happo, ppo, trpo
from coevolve.algorithms.happo import joint_ratio
from coevolve.algorithms.losses import KL_WEIGHT
from coevolve.credit import crossed
from coevolve.types import Lesson, Outputs, Targets


@pytest.mark.parametrize(
    ("rule", "own"), [(happo, {"credit", "penalty"}), (trpo, {"trust", "penalty"})], ids=["happo", "trpo"]
)
def test_defaults_are_those_of_ppo_but_for_its_own(rule, own):
    """Both write their signatures out, with fewer settings than ppo's: a default that moves there moves here."""
    theirs, ours = ppo().settings, {name: p.default for name, p in inspect.signature(rule).parameters.items()}
    assert {name for name, default in ours.items() if theirs.get(name) != default} == own


def test_the_others_advantages_are_multiplied_by_the_ratio_of_the_joint():
    # ann's turns of joints 0 and 1 became e^(0.1 + 0.2) and e^-0.5 as probable; her third belongs to none
    ann = batch([[-1.0, -1.0]] * 3, [[0.0] * 2] * 3, [[0.0] * 2] * 3, [0.0] * 3)
    ann = ann.replace(
        joint_B=torch.tensor([0, 1, -1]), mask_BT=torch.tensor([[True, True], [True, False], [True, True]])
    )
    bob = batch([[-1.0]] * 4, [[0.0]] * 4, [[0.0]] * 4, [0.0] * 4).replace(joint_B=torch.tensor([1, 0, 2, -1]))
    targets = {"ann": Targets(torch.ones(3, 2)), "bob": Targets(torch.full((4, 1), 2.0))}
    logp_BT = torch.tensor([[-0.9, -0.8], [-1.5, 7.0], [-3.0, -3.0]])
    found, state = joint_ratio(Lesson([], {"ann": ann, "bob": bob}), "ann", logp_BT, targets, {"kept": 1})
    want = [2 * math.exp(-0.5), 2 * math.exp(0.3), 2.0, 2.0]
    assert found["bob"].adv_BT[:, 0].tolist() == [pytest.approx(x) for x in want]
    assert found["ann"] is targets["ann"]
    assert state == {"kept": 1}


def test_rows_that_nobody_sampled_move_nobody():
    ann = make_batch(2, 0).replace(joint_B=torch.tensor([0, 0]), extra_B=torch.tensor([False, True]))
    targets = {"ann": Targets(torch.ones(ann.mask_BT.shape)), "bob": Targets(torch.ones(ann.mask_BT.shape))}
    logp_BT = ann.logp_BT.clone()
    logp_BT[1] += 5.0
    found, _ = joint_ratio(Lesson([], {"ann": ann, "bob": ann}), "ann", logp_BT, targets, {})
    assert torch.equal(found["bob"].adv_BT, targets["bob"].adv_BT)


def test_rows_that_nobody_sampled_take_no_part_in_the_others_kl():
    """Of both agents the first row was added; ann's turn, which bob has heard, became twice as probable."""
    zero = [[0.0]] * 2
    rows = batch([[-2.0]] * 2, zero, zero, [0.0] * 2).replace(
        joint_B=torch.tensor([0, 0]), extra_B=torch.tensor([True, False])
    )
    columns = {KL_WEIGHT: torch.tensor([0.5, 0.5])}
    targets = {name: Targets(torch.ones(2, 1), columns=columns) for name in ("ann", "bob")}
    episode = paid((1.0, 1.0), spoke("x", "ann", "C"), spoke("y", "bob", "D"))
    episode.turns[1].asked = 1
    logp_BT = torch.tensor([[7.0], [-2.0 + math.log(2.0)]])
    found, _ = joint_ratio(Lesson([episode], {"ann": rows, "bob": rows}), "ann", logp_BT, targets, {})
    assert found["bob"].columns[KL_WEIGHT].tolist() == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize(("anns", "bobs"), [([0, 1], [0, 5]), ([0, 5], [0, 1])])
def test_a_joint_that_only_one_of_them_is_in_moves_nobody_else(anns, bobs):
    """ann's two turns became e^0.1 and e^0.2 as probable; joint 0 is both agents'."""
    zero = [[0.0]] * 2
    ann, bob = (batch(zero, zero, zero, [0.0] * 2).replace(joint_B=torch.tensor(joints)) for joints in (anns, bobs))
    targets = {name: Targets(torch.ones(2, 1)) for name in ("ann", "bob")}
    lesson = Lesson([], {"ann": ann, "bob": bob})
    found, _ = joint_ratio(lesson, "ann", torch.tensor([[0.1], [0.2]]), targets, {})
    assert found["bob"].adv_BT[:, 0].tolist() == pytest.approx([math.exp(0.1), 1.0])


def test_happo_is_ppo_and_what_follows():
    wanted = ppo(credit="team_sum", penalty="sampled")
    assert happo().settings == {**wanted.settings, "in_turn": "happo"}
    assert happo().objective.epochs == 4
    assert happo().follow is joint_ratio


@pytest.mark.parametrize("joints", [0, 2])
def test_turns_that_are_not_of_one_joint_are_refused(joints):
    episode = paid((1.0,), spoke("x", "ann", "C"))
    episode.joints *= joints
    with pytest.raises(ValueError, match=f"a turn of role 'x' is part of {joints} joint responses; want a play in"):
        happo().advantage(Lesson([episode], {}), {})


def test_the_trust_regions_weight_follows_what_an_update_moved():
    # 1 nat more for one of two tokens: k3 = e - 1 - 1 = 0.718, of both 0.359 a token
    given, rule = batch([[-1.0, -1.0]], [[0.0] * 2], [[0.0] * 2], [0.0]), trpo(trust=0.1)
    lesson = Lesson([], {"a": given})

    def after(logp, state, trust=0.1, lesson=lesson):
        targets, state = trpo(trust=trust).advantage(lesson, state)
        return trpo(trust=trust).follow(lesson, "a", torch.tensor([logp]), targets, state)[1]["trust"]["a"]

    moved = [0.0, -1.0]
    assert after(moved, {}) == 2.0
    assert after(moved, {"trust": {"a": 8.0}}) == 16.0
    assert after(moved, {}, trust=0.36) == 1.0
    assert after(moved, {}, trust=0.6) == 0.5
    assert after([-1.0, -1.0], {"trust": {"a": 1e-4}}) == 1e-4
    one = Lesson([], {"a": given.replace(mask_BT=torch.tensor([[True, False]]))})
    assert after(moved, {}, trust=0.36, lesson=one) == 2.0  # 0.718 of the only token
    targets, _ = rule.advantage(lesson, {"trust": {"a": 8.0}})
    assert targets["a"].columns["trust_B"].tolist() == [8.0]
    assert targets["a"].metrics["trust"] == 8.0
    _, state = rule.follow(lesson, "a", torch.tensor([moved]), targets, {"trust": {"bob": 8.0}})
    assert state == {"trust": {"bob": 8.0, "a": 2.0}}  # whoever did not learn keeps its own


def test_the_trust_regions_loss_literal():
    # A = 1, ratio e^0.5 and no clip: -e^0.5; new is 0.5 above old: k3 = e^0.5 - 1 - 0.5, times 2; the critic is right
    given = batch([[-1.0]], [[-1.0]], [[0.0]], [2.0])
    targets = Targets(torch.tensor([[1.0]]), torch.tensor([[0.0]]), columns={"trust_B": torch.tensor([2.0])})
    rule, out = trpo(), Outputs(torch.tensor([[-0.5]], requires_grad=True), torch.tensor([[0.0]]))
    loss, metrics = rule.objective.loss(out, given, targets, rule.objective.loss_aggregation(given))
    moved = math.exp(0.5) - 1.5
    assert loss.item() == pytest.approx(-math.exp(0.5) + 2 * moved)
    assert metrics["loss/trust"].item() == pytest.approx(moved)
    # d/dlogp: -e^0.5 + 2 (e^0.5 - 1)
    assert torch.autograd.grad(loss, out.logp_BT)[0].item() == pytest.approx(math.exp(0.5) - 2)


@pytest.mark.parametrize(("moved", "advantage", "slope"), [(2.0, 1.0, -math.exp(2.0)), (-3.0, -1.0, math.exp(-3.0))])
def test_the_trust_region_clips_no_ratio(moved, advantage, slope):
    given, rule = batch([[-4.0]], [[-4.0]], [[0.0]], [2.0]), trpo()
    targets = Targets(torch.tensor([[advantage]]), torch.tensor([[0.0]]), columns={"trust_B": torch.tensor([0.0])})
    logp = torch.tensor([[-4.0 + moved]], requires_grad=True)
    loss, _ = rule.objective.loss(
        Outputs(logp, torch.tensor([[0.0]])), given, targets, rule.objective.loss_aggregation(given)
    )
    loss.backward()
    assert logp.grad.item() == pytest.approx(slope)


def test_where_it_came_from_the_trust_region_is_ppo_and_so_is_happo():
    # no policy has moved: no KL, and no ratio to clip
    given = batch([[-1.0, -2.0]], [[0.5, 0.25]], [[0.0, 0.0]], [2.0])
    found = []
    for rule in (trpo(eta=0.0), happo(eta=0.0, credit="own_reward"), ppo(eta=0.0, penalty="sampled")):
        targets, _ = rule.advantage(Lesson([], {"a": given}), rule.start)
        out = Outputs(given.logp_BT.clone().requires_grad_(), torch.zeros(1, 2))
        loss, _ = rule.objective.loss(out, given, targets["a"], rule.objective.loss_aggregation(given))
        found.append(torch.autograd.grad(loss, out.logp_BT)[0])
    assert found[2].any()
    assert torch.allclose(found[0], found[2])
    assert torch.allclose(found[1], found[2])


def test_a_trust_region_of_one_step_is_refused():
    # in a batch's first step nothing has moved: d k3 / d logp = 1 - e^0 = 0
    with pytest.raises(ValueError, match="no gradient in the first optimiser step on a batch; set epochs to at least"):
        trpo(epochs=1)
    assert trpo(epochs=1, minibatch=8).objective.minibatch == 8


@pytest.mark.parametrize("wrong", [{"trust": 0.0}, {"epochs": 0}, {"clip": 0.2}])
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        trpo(**wrong)


@pytest.mark.parametrize(("asked", "want"), [(1, 1.0), (0, 0.5)], ids=["chain", "at once"])
def test_the_others_kl_in_the_loss_follows_the_turns_that_its_prompt_may_tell_of(asked, want):
    """ann's turn became twice as probable; of the second episode it stayed. Advantages of both plays are doubled."""
    ann = batch([[-2.0]] * 2, [[0.0]] * 2, [[0.0]] * 2, [0.0] * 2).replace(joint_B=torch.tensor([0, 1]))
    columns = {KL_WEIGHT: torch.tensor([0.5, 0.5]), "trust_B": torch.tensor([3.0, 3.0])}
    targets = {name: Targets(torch.ones(2, 1), columns=columns) for name in ("ann", "bob")}
    episodes = [paid((1.0, 1.0), spoke("x", "ann", "C"), spoke("y", "bob", "D")) for _ in range(2)]
    for episode in episodes:
        episode.turns[1].asked = asked
    logp_BT = torch.tensor([[-2.0 + math.log(2.0)], [-2.0]])
    found, _ = joint_ratio(Lesson(episodes, {"ann": ann, "bob": ann}), "ann", logp_BT, targets, {})
    assert found["bob"].columns[KL_WEIGHT].tolist() == pytest.approx([want, 0.5])
    assert found["bob"].columns["trust_B"].tolist() == [3.0, 3.0]
    assert found["bob"].adv_BT[:, 0].tolist() == pytest.approx([2.0, 1.0])
    assert found["ann"] is targets["ann"]


@pytest.mark.parametrize("credit", ["crossed", {"name": "crossed", "shifts": 2}, crossed()])
def test_a_credit_of_several_partners_is_refused(credit):
    with pytest.raises(ValueError, match=r"algorithm.credit: crossed is a mean over all partners .* take team_mean"):
        happo(credit=credit)
