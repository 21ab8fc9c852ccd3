"""MAGRPO and its family: literal advantages, options, reductions, and that no two of them are ever the same."""

import inspect
import itertools
import math
import pydoc

import pytest
import torch
from lesson_cases import collated, loss_of, targets_of
from policy_cases import make_batch

from coevolve.algorithms import (
    ALGORITHMS,
    cispo,
    dapo,
    dr_grpo,
    grpo,
    gspo,
    magrpo,
    mareinforce,
    maremax,
    marloo,
    ppo,
    reinforce,
    rloo,
)
from coevolve.algorithms.group_relative import group_relative
from coevolve.collate import collate
from coevolve.types import Episode, Joint, Outputs, Problem, Row, Turn

P = Problem("p")
TEAM = {"magrpo": magrpo, "marloo": marloo, "maremax": maremax, "mareinforce": mareinforce}


def batch(credit, peers, logp=None, ref=None):
    """One-token turns with these returns and groups."""
    rows = len(credit)
    ones = torch.ones(rows, dtype=torch.long)
    found = make_batch(rows, 0).replace(
        ids_BS=torch.zeros(rows, 2, dtype=torch.long),
        start_B=ones,
        length_B=ones * 2,
        action_BT=torch.zeros(rows, 1, dtype=torch.long),
        mask_BT=torch.ones(rows, 1, dtype=torch.bool),
        logp_BT=torch.tensor(logp or [0.0] * rows)[:, None],
        credit_B=torch.tensor(credit),
        peers_B=torch.tensor(peers),
    )
    return found if ref is None else found.replace(logp_ref_BT=torch.tensor(ref)[:, None])


def advantages(algorithm, given):
    return targets_of(algorithm, given).adv_BT[:, 0].tolist()


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("magrpo", [1 / 3, 1 / 3, -2 / 3]),
        ("marloo", [0.5, 0.5, -1.0]),
        ("maremax", [0.0, 0.0, -1.0]),
        ("mareinforce", [1.0, 1.0, 0.0]),
    ],
)
def test_advantages_literal(name, want):
    assert advantages(TEAM[name](), batch([1.0, 1.0, 0.0], [0, 0, 0])) == pytest.approx(want)


def test_the_advantage_stands_at_every_token_of_the_turn_and_nowhere_else():
    given = make_batch(4, 3).replace(credit_B=torch.tensor([1.0, 0.0, 1.0, 0.0]), peers_B=torch.zeros(4).long())
    adv_BT = targets_of(magrpo(), given).adv_BT
    want_BT = torch.tensor([0.5, -0.5, 0.5, -0.5])[:, None] * given.mask_BT
    assert torch.equal(adv_BT, want_BT)


def test_the_loss_is_minus_a_log_pi_summed_over_the_response_and_averaged_over_the_group():
    # two turns of one agent, A = +-1/2: log pi = -1 - 2 = -3 and -1: -(0.5 * -3 - 0.5 * -1) / 2 = 0.5
    given = make_batch(2, 0).replace(
        mask_BT=torch.tensor([[True, True], [True, False]]),
        credit_B=torch.tensor([1.0, 0.0]),
        peers_B=torch.tensor([0, 0]),
    )
    rule = magrpo()
    out = Outputs(torch.tensor([[-1.0, -2.0], [-1.0, 99.0]]))
    loss, _ = loss_of(rule, out, given)
    assert loss.item() == pytest.approx(0.5)


def test_kl_in_the_reward_comes_off_the_return_before_it_is_compared():
    # returns 1, 1; log-ratios 0.5, -0.5 (k1), beta 2: 1 - 1 = 0 and 1 + 1 = 2, minus their mean
    given = batch([1.0, 1.0], [0, 0], logp=[-0.5, -1.0], ref=[-1.0, -0.5])
    assert advantages(magrpo(beta=2.0, kl="reward", estimator="k1"), given) == [-1.0, 1.0]
    # k2: both cost 2 * 0.125, so nothing is left
    assert advantages(magrpo(beta=2.0, kl="reward", estimator="k2"), given) == [0.0, 0.0]


def test_a_paid_kl_is_that_of_all_the_turns_tokens():
    # log-ratios 0.5 and 0.25, and one of 1 behind which there is nothing: 1 - 2 * 0.75 and 1 - 2 * 1
    given = batch([1.0, 1.0], [0, 0]).replace(
        mask_BT=torch.tensor([[True, True], [True, False]]),
        logp_BT=torch.tensor([[-0.5, -0.5], [-1.0, 9.0]]),
        logp_ref_BT=torch.tensor([[-1.0, -0.75], [-2.0, 0.0]]),
    )
    found = targets_of(mareinforce(beta=2.0, kl="reward", estimator="k1"), given).adv_BT
    assert found.tolist() == [[-0.5, -0.5], [-1.0, 0.0]]


def test_kl_in_the_loss_is_added_with_its_weight():
    given = batch([1.0, 1.0], [0, 0], logp=[-0.5, -1.0], ref=[-1.0, -0.5])
    rule = magrpo(beta=2.0, kl="loss", estimator="k2")
    targets = targets_of(rule, given)
    loss, metrics = loss_of(rule, Outputs(given.logp_BT), given)
    assert targets.adv_BT.tolist() == [[0.0], [0.0]]
    assert metrics["loss/kl"].item() == pytest.approx(0.125)  # 0.5 ** 2 / 2
    assert loss.item() == pytest.approx(0.25)
    assert rule.reference
    assert not magrpo().reference


OPTIONS = {
    "std": ["none", "group", "agent"],
    "clip": [None, 0.2],
    "loss_aggregation": ["sequence", "turn", "token"],
    "kl": ["loss", "reward"],
    "estimator": ["k1", "k2", "k3"],
    "beta": [0.0, 0.3],
    "credit": ["team_return", {"name": "team_return", "gamma": 0.5}, "own_return"],
}


def pairs_of_turns():
    """Three members, two agents, two turns; a's own pay, b's own pay and the team's mean are all different."""
    pays = [((1.0, 0.0), (2.0, 5.0)), ((1.5, 3.0), (0.0, 1.0)), ((4.0, 0.5), (3.0, 2.0))]
    episodes = []
    for member, rounds in enumerate(pays):
        turns = [
            Turn(role, role, P, member, t, [5], [6] * (1 + member + t), [-0.5] * (1 + member + t), "", True)
            for t in range(2)
            for role in "ab"
        ]
        for turn in turns:
            turn.peers = (turn.role, turn.round)
        joints = [Joint(tuple(turns[2 * t : 2 * t + 2]), pay, t - 1 if t else None) for t, pay in enumerate(rounds)]
        episodes.append(Episode(P, member, turns, joints))
    return episodes


def gradient(rule, episodes):
    """Of agent a by its log-probabilities, which have moved: some ratios are beyond the clip, some within."""
    given = collated(episodes, rule.credit, "a")
    moved_BT = torch.linspace(-0.4, 0.4, given.mask_BT.numel()).view(given.mask_BT.shape) * given.mask_BT
    given = given.replace(logp_ref_BT=given.logp_BT - 0.3 * given.mask_BT)
    logp_BT = (given.logp_BT + moved_BT).requires_grad_()
    loss, _ = rule.objective.loss(
        Outputs(logp_BT), given, targets_of(rule, given), rule.objective.loss_aggregation(given)
    )
    (found,) = torch.autograd.grad(loss, logp_BT)
    return found


def test_the_four_variants_stay_distinct_under_every_option_combination():
    episodes, found = pairs_of_turns(), {}
    for values in itertools.product(*OPTIONS.values()):
        options = dict(zip(OPTIONS, values, strict=True))
        found[str(values)] = {name: gradient(maker(**options), episodes) for name, maker in TEAM.items()}
        for one, other in itertools.combinations(TEAM, 2):
            assert not torch.allclose(found[str(values)][one], found[str(values)][other], rtol=1e-3), (
                one,
                other,
                options,
            )
    # And every option does something to MAGRPO.
    plain = tuple(choices[0] for choices in OPTIONS.values())
    for place, choices in enumerate(OPTIONS.values()):
        with_kl = list(plain)
        with_kl[list(OPTIONS).index("beta")] = 0.3
        for choice in choices[1:]:
            changed = [*with_kl]
            changed[place] = choice
            before = plain if list(OPTIONS)[place] == "beta" else tuple(with_kl)
            assert not torch.allclose(found[str(tuple(changed))]["magrpo"], found[str(before)]["magrpo"], rtol=1e-3), (
                changed
            )


def test_the_ratio_is_clipped_when_it_is_asked_for():
    # A = +-1/2, ratio 1.5 for both, clip 0.2, two one-token turns: -(1/2)(1.2) clipped, (1/2)(1.5); mean 0.075
    given = batch([1.0, 0.0], [0, 0])
    rule = magrpo(clip=0.2)
    logp = torch.full((2, 1), math.log(1.5)).requires_grad_()
    loss, metrics = rule.objective.loss(
        Outputs(logp), given, targets_of(rule, given), rule.objective.loss_aggregation(given)
    )
    assert loss.item() == pytest.approx(0.075)
    assert metrics["clip_fraction"].item() == pytest.approx(0.5)
    (found,) = torch.autograd.grad(loss, logp)
    assert found[:, 0].tolist() == pytest.approx([0.0, 0.375])  # none where clipped; 1/2 * 1.5 / 2
    # Without clip there is no ratio: -(0.5 - 0.5) log 1.5 / 2
    rule = magrpo()
    plain, metrics = rule.objective.loss(
        Outputs(logp), given, targets_of(rule, given), rule.objective.loss_aggregation(given)
    )
    assert plain.item() == pytest.approx(0.0)
    assert "clip_fraction" not in metrics


def test_epochs_and_minibatch_are_the_rules():
    rule = grpo(epochs=3, minibatch=8)
    assert (rule.objective.epochs, rule.objective.minibatch, rule.reference) == (3, 8, True)


@pytest.mark.parametrize(("name", "default"), [("magrpo", "'mean'"), ("grpo", "0.04"), ("cory", "'team_sum'")])
def test_help_is_about_the_algorithm_with_its_own_defaults(name, default):
    shown = pydoc.render_doc(ALGORITHMS[name], renderer=pydoc.plaintext)
    assert f"function {name}" in shown
    assert f"= {default}" in shown
    assert "Raises ValueError" in shown


def test_mean_is_leave_one_out_times_g_minus_one_over_g():
    given = batch([1.0, 5.0, 2.0, 7.0], [0, 0, 0, 0])
    mean, loo = advantages(magrpo(), given), advantages(marloo(), given)
    assert mean == pytest.approx([a * 3 / 4 for a in loo])


def test_grpo_without_its_options_is_magrpo():
    given = batch([1.0, 5.0, 2.0], [0, 0, 0])
    plain = grpo(std="none", clip=None, loss_aggregation="sequence", beta=0.0)
    assert plain.settings == magrpo().settings
    assert advantages(plain, given) == advantages(magrpo(), given)
    assert reinforce().settings == mareinforce().settings
    assert rloo(beta=0.0, kl="loss", estimator="k3").settings == marloo().settings


def test_what_came_after_grpo_is_grpo_with_other_settings():
    # DAPO with equal clips, every turn alike and all groups is GRPO; so are the others without what is theirs
    back = {"std": "group", "clip": 0.2, "loss_aggregation": "turn", "beta": 0.04}
    assert dapo(**back, drop_flat=False, resample=0).settings == grpo().settings
    assert gspo(**back, ratio="token").settings == cispo(**back, ratio="token").settings == grpo().settings
    assert dr_grpo(**back).settings == grpo().settings
    assert dr_grpo(clip=None).settings == magrpo().settings


def test_groups_without_a_signal_are_as_if_they_were_not_there():
    # group 0 pays 1 and 0, deviation 1/2: advantages +-1; group 1 is flat and half of the tokens: +-2
    given = batch([1.0, 0.0, 2.0, 2.0], [0, 0, 1, 1])
    assert advantages(dapo(), given) == pytest.approx([2.0, -2.0, 0.0, 0.0])
    logp = torch.tensor([[0.1], [0.2], [0.3], [0.4]], requires_grad=True)
    loss, _ = loss_of(dapo(), Outputs(logp), given)
    alone, _ = loss_of(dapo(), Outputs(logp[:2]), given.select(torch.tensor([0, 1])))
    assert loss.item() == pytest.approx(alone.item())
    for a, b in zip(*(torch.autograd.grad(x, logp) for x in (loss, alone)), strict=True):
        assert torch.allclose(a, b)
    # of turns of several tokens it is the tokens that are counted
    long = make_batch(4, 3).replace(credit_B=given.credit_B, peers_B=given.peers_B)
    share = long.mask_BT[:2].sum() / long.mask_BT.sum()
    assert targets_of(dapo(), long).adv_BT[0, 0].item() == pytest.approx(1 / share.item(), rel=1e-5)
    flat = batch([1.0, 1.0], [0, 0])
    assert advantages(dapo(), flat) == [0.0, 0.0]


def test_the_exact_kl_is_a_term_of_the_loss():
    given = batch([1.0, 1.0], [0, 0])
    rule = magrpo(beta=2.0, estimator="exact")
    kl = torch.tensor([[0.5], [1.0]], requires_grad=True)
    loss, metrics = loss_of(rule, Outputs(given.logp_BT, kl_BT=kl), given)
    assert loss.item() == pytest.approx(2 * 0.75)
    assert metrics["loss/kl"].item() == pytest.approx(0.75)
    assert torch.autograd.grad(loss, kl)[0].tolist() == [[1.0], [1.0]]
    assert (rule.objective.kl, rule.reference) == (True, True)
    assert not magrpo(estimator="exact").objective.kl  # at beta 0 there is none
    assert not magrpo(beta=2.0).objective.kl


def test_an_entropy_bonus_is_taken_from_the_loss():
    given = batch([1.0, 0.0], [0, 0])
    entropy = torch.tensor([[0.5], [1.0]], requires_grad=True)
    out = Outputs(given.logp_BT, entropy_BT=entropy)
    with_bonus, metrics = loss_of(magrpo(entropy=0.2), out, given)
    assert with_bonus.item() == pytest.approx(loss_of(magrpo(), out, given)[0].item() - 0.2 * 0.75)
    assert metrics["loss/entropy"].item() == pytest.approx(-0.75)
    assert torch.autograd.grad(with_bonus, entropy)[0].tolist() == [pytest.approx([-0.1]), pytest.approx([-0.1])]


def test_groups_without_a_signal_are_counted():
    # group 0 differs, group 1 is one turn, group 2 is equal
    metrics = targets_of(magrpo(), batch([1.0, 0.0, 5.0, 2.0, 2.0], [0, 0, 1, 2, 2])).metrics
    assert metrics == {"groups_of_one": pytest.approx(0.2), "groups_flat": pytest.approx(0.4)}


def test_a_paid_kl_is_no_term_of_the_loss():
    # advantages -1 and 1, as above: -(-1 * -0.5 + 1 * -1) / 2
    given = batch([1.0, 1.0], [0, 0], logp=[-0.5, -1.0], ref=[-1.0, -0.5])
    loss, metrics = loss_of(magrpo(beta=2.0, kl="reward", estimator="k1"), Outputs(given.logp_BT), given)
    assert loss.item() == pytest.approx(0.25)
    assert metrics.keys() == {"loss/policy"}


def test_one_ratio_for_a_whole_turn():
    # A = 1/2 and -1/2; tokens moved by log 4 and 0: one ratio of 2 for both, -(1/2 (2 + 2) - 1/2) / 2. Each its own
    # would be -(1/2 (4 + 1) - 1/2) / 2
    given = batch([1.0, 0.0], [0, 0]).replace(
        mask_BT=torch.tensor([[True, True], [True, False]]), logp_BT=torch.zeros(2, 2)
    )
    out = Outputs(torch.tensor([[math.log(4), 0.0], [0.0, 9.0]]))
    for ratio, want in (("turn", -0.75), ("token", -1.0)):
        loss, _ = loss_of(magrpo(clip=(0.9, 9.0), ratio=ratio), out, given)
        assert loss.item() == pytest.approx(want)


def test_a_mismatch_weighs_the_policy_gradient_and_not_what_is_added_to_it():
    """Sampled at -1; now -1 - log 2, a ratio of 1/2, and -1: advantages 1/2 and -1/2, weights 1/4 and 1/2."""
    given = batch([1.0, 0.0], [0, 0], logp=[-1.0, -1.0], ref=[-2.0 - math.log(2), 0.0])
    now_BT = torch.tensor([[-1.0 - math.log(2)], [-1.0]])
    rule = magrpo(mismatch="tis", beta=2.0, estimator="k2", entropy=0.2)
    loss, metrics = loss_of(rule, Outputs(now_BT, entropy_BT=torch.tensor([[0.5], [1.0]])), given)
    policy = (1 + math.log(2)) / 8 - 1 / 4
    assert metrics["loss/policy"].item() == pytest.approx(policy)
    assert metrics["loss/kl"].item() == pytest.approx(0.5)  # log-ratios 1 and -1
    assert metrics["loss/entropy"].item() == pytest.approx(-0.75)
    assert loss.item() == pytest.approx(policy + 2 * 0.5 - 0.2 * 0.75)


@pytest.mark.parametrize(("mismatch", "weight"), [("none", 1), ("tis", 2), ("icepop", 4), ("sequence", 0)])
def test_each_mismatch_is_its_own_bound(mismatch, weight):
    # sampled at -3, now log 4 more likely; paid 1 against nothing, of two turns of which the other is paid 0
    given = batch([1.0, 0.0], [0, 0], logp=[-3.0, -3.0])
    _, metrics = loss_of(mareinforce(mismatch=mismatch), Outputs(given.logp_BT + math.log(4)), given)
    assert metrics["loss/policy"].item() == pytest.approx((3 - math.log(4)) / 2 * weight)


@pytest.mark.parametrize("make", [magrpo, ppo])
def test_a_batch_that_is_reused_is_scored_by_the_learner_first_where_samplers_differ(make):
    """In a batch's only step what the learner says now is what it said before."""
    once = {"clip": 0.2, "epochs": 1}
    assert make(**{**once, "epochs": 2}, mismatch="tis").logp_old
    assert make(**once, minibatch=4, mismatch="tis").logp_old
    assert not make(**once, mismatch="tis").logp_old
    assert not make(**{**once, "epochs": 2}, minibatch=4).logp_old  # nothing to make up for


@pytest.mark.parametrize("name", ["magrpo", "marloo", "maremax", "grpo", "rloo"])
def test_a_batch_of_groups_of_one_is_an_error_that_says_what_to_do(name):
    with pytest.raises(ValueError, match="set members to at least 2"):
        targets_of(ALGORITHMS[name](beta=0.0), batch([1.0, 2.0], [0, 1]))


def test_without_a_baseline_one_is_enough():
    targets = targets_of(mareinforce(), batch([1.0, 2.0], [0, 1]))
    assert targets.adv_BT[:, 0].tolist() == [1.0, 2.0]
    assert targets.metrics == {}  # nothing to warn of


def test_one_problem_of_one_member_is_no_group_either():
    with pytest.raises(ValueError, match="set members to at least 2"):
        targets_of(magrpo(), batch([3.0], [0]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beta": -1.0}, "beta"),
        ({"epochs": 2}, "set clip"),
        ({"minibatch": 4}, "set clip"),
        ({"epochs": 0, "clip": 0.2}, "epochs"),
        ({"clip": 0.0}, "clip"),
        ({"ratio": "turn"}, "set clip"),
        ({"beta": 1.0, "kl": "reward", "estimator": "exact"}, "as a reward it has no gradient"),
        (
            {"beta": 1.0, "kl": "reward", "drop_flat": True},
            "with kl: reward their KL too; set kl: loss and no k1, or drop_flat",
        ),
        ({"baseline": "shrunk", "group": "role"}, "group: role leaves no others; set baseline: loo, or group: peers"),
        ({"decay": 0.5}, "decay is 0.5, and nothing looks at it without baseline: moving; set baseline: moving, or"),
    ],
)
def test_settings_out_of_range_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        magrpo(**wrong)


def test_the_single_agent_names_are_settings_of_one_builder():
    for name in (*TEAM, "grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce"):
        assert inspect.signature(ALGORITHMS[name]).parameters.keys() == inspect.signature(magrpo).parameters.keys()


@pytest.mark.parametrize("loss_aggregation", ["sequence", "turn", "token"])
@pytest.mark.parametrize("std", ["none", "group", "agent"])
def test_flat_groups_that_are_dropped_are_as_if_not_there(std, loss_aggregation):
    """What every token comes to in the loss, of long turns that were paid alike and of others."""
    rule = group_relative(baseline="mean", std=std, loss_aggregation=loss_aggregation, drop_flat=True)
    batch = make_batch(6, seed=5).replace(
        credit_B=torch.tensor([1.0, 1.0, 1.0, 0.0, 2.0, 5.0]), peers_B=torch.tensor([0, 0, 0, 1, 1, 1])
    )
    alone = batch.select(torch.tensor([3, 4, 5]))
    counts = [targets_of(rule, one).adv_BT * rule.objective.loss_aggregation(one) for one in (batch, alone)]
    width = alone.mask_BT.shape[1]
    assert torch.allclose(counts[0][3:, :width], counts[1])
    assert counts[1].any()
    assert not counts[0][:3].any()


@pytest.mark.parametrize("loss_aggregation", ["sequence", "turn", "token"])
def test_a_round_that_is_dropped_is_as_if_not_there(loss_aggregation):
    """Four episodes of two rounds, of which the second was paid alike in all: as many episodes, half the turns."""
    rule = group_relative(baseline="mean", loss_aggregation=loss_aggregation, drop_flat=True)
    turns = [Turn("a", "a", P, m, r, [5], [6], [0.0], "", True, peers=r) for m in range(4) for r in range(2)]
    rows = [Row(turn, [float(turn.member), 1.0][turn.round], turn.member) for turn in turns]
    both, first = collate(rows, "a"), collate([row for row in rows if row.turn.round == 0], "a")
    found, wanted = (targets_of(rule, one).adv_BT * rule.objective.loss_aggregation(one) for one in (both, first))
    assert found[0::2].tolist() == wanted.tolist() == [[-0.375], [-0.125], [0.125], [0.375]]
    assert not found[1::2].any()


def test_groups_that_are_left_are_numbered_without_gaps():
    rule = group_relative(baseline="length", drop_flat=True)
    batch = make_batch(6, seed=5).replace(
        credit_B=torch.tensor([1.0, 1.0, 0.0, 2.0, 1.0, 5.0]), peers_B=torch.tensor([0, 0, 1, 1, 2, 2])
    )
    adv_BT = targets_of(rule, batch).adv_BT
    assert not adv_BT[:2].any()
    assert all(adv_BT[row].any() for row in range(2, 6))


def test_one_scale_for_the_team_is_not_of_turns_that_are_dropped():
    with pytest.raises(ValueError, match="drop_flat leaves turns out, and std: team divides by those of all"):
        group_relative(baseline="mean", std="team", drop_flat=True)


@pytest.mark.parametrize("baseline", ["none", "moving"])
def test_groups_that_have_an_advantage_are_not_dropped(baseline):
    """Equal returns are flat, and against nothing, or the past, they are not 0."""
    assert all(advantages(group_relative(baseline=baseline), batch([1.0, 1.0], [0, 0])))
    for make in (dapo, lambda **settings: group_relative(drop_flat=True, **settings)):
        with pytest.raises(ValueError, match=f"with baseline {baseline} they have an advantage; set baseline") as error:
            make(baseline=baseline)
        assert "\n" not in str(error.value)


def test_groups_that_are_drawn_towards_others_are_not_dropped():
    with pytest.raises(ValueError, match="with baseline shrunk they have an advantage"):
        group_relative(baseline="shrunk", drop_flat=True)


@pytest.mark.parametrize("baseline", ["loo", "length"])
def test_what_is_left_of_a_role_may_be_of_one_episode(baseline):
    rule = group_relative(baseline=baseline, group="role", drop_flat=True)
    given = batch([1.0, 1.0, 1.0, 0.0, 2.0], [0] * 5).replace(
        role_B=torch.tensor([0, 0, 0, 1, 1]), roles=("a", "b"), episode_B=torch.tensor([0, 1, 2, 3, 3])
    )
    assert advantages(rule, given) == [0.0] * 5
    with pytest.raises(ValueError, match="all turns of a policy at this step are of one"):
        targets_of(rule, given.replace(episode_B=torch.zeros(5, dtype=torch.long)))


def test_a_kl_that_is_hardly_felt_is_cautioned():
    assert "estimator: k1 in the loss does not hold" in magrpo(beta=0.1, estimator="k1").caution
    assert "estimator: k3 as a reward hardly holds" in marloo(beta=0.1, kl="reward").caution
    for felt in (marloo(kl="reward"), marloo(beta=0.1), marloo(beta=0.1, kl="reward", estimator="k1"), rloo(beta=0.1)):
        assert felt.caution == ""


@pytest.mark.parametrize("std", ["group", "agent"])
def test_a_paid_kl_that_is_divided_by_its_own_spread_is_cautioned(std):
    # equal returns, log-ratios 1 and -1: -beta and +beta, less their mean 0, divided by beta
    given = batch([3.0, 3.0], [0, 0], logp=[-1.0, -2.0], ref=[-2.0, -1.0])
    for beta in (0.5, 0.125):
        rule = magrpo(std=std, beta=beta, kl="reward", estimator="k1")
        assert advantages(rule, given) == [-1.0, 1.0]
        assert f"std: {std} divides returns less their KL" in rule.caution
    for apart in ({"std": "none"}, {"std": "team"}, {"beta": 0.0}):
        assert magrpo(**{"std": std, "beta": 0.5, "kl": "reward", "estimator": "k1", **apart}).caution == ""
    assert magrpo(std=std, beta=0.5).caution == ""


def test_of_a_team_that_is_paid_alike_a_paid_kl_is_not_divided_by_its_own_spread():
    given = batch([3.0, 3.0], [0, 0], logp=[-1.0, -2.0], ref=[-2.0, -1.0])
    assert advantages(magrpo(std="team", beta=0.5, kl="reward", estimator="k1"), given) == [-0.5, 0.5]


@pytest.mark.parametrize("make", [marloo, grpo, dr_grpo])
def test_turns_that_count_for_nothing_teach_nothing(make):
    given = batch([1.0, 0.0], [0, 0]).replace(weight_B=torch.zeros(2))
    logp = torch.tensor([[0.1], [0.2]], requires_grad=True)
    loss, _ = loss_of(make(beta=0.0), Outputs(logp), given)
    assert torch.autograd.grad(loss, logp)[0].tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("std", ["group", "agent", "team"])
def test_who_divides_by_a_spread_what_was_not_centred_is_cautioned(std):
    given = batch([1.0, 1.001, 1.0], [0, 0, 0])
    for baseline in ("none", "moving"):
        rule = group_relative(baseline=baseline, std=std)
        assert min(advantages(rule, given)) > 2e3
        assert f"std: {std} divides" in rule.caution
        assert f"baseline: {baseline} does not" in rule.caution
        assert group_relative(baseline=baseline).caution == ""
    centred = marloo(std=std)
    assert max(map(abs, advantages(centred, given))) < 3
    assert centred.caution == ""
