"""PPO put together: targets by hand, and what each KL penalty does to the gradient."""

import inspect
import math

import pytest
import torch
from lesson_cases import learnt_from, targets_of

from coevolve import a2c, cory, ppo, reinforce_pp
from coevolve.algorithms.losses import policy_gradient, with_mismatch
from coevolve.maths.advantage import gae, token_rewards
from coevolve.maths.masked import whiten
from coevolve.maths.mismatch import tis
from coevolve.types import Batch, Outputs, Targets


def batch(logp, ref, kl, credit, value=None):
    rows, tokens = len(logp), len(logp[0])
    ones = torch.ones(rows, dtype=torch.long)
    return Batch(
        ids_BS=torch.zeros(rows, tokens + 1, dtype=torch.long),
        start_B=ones,
        length_B=ones * (tokens + 1),
        action_BT=torch.zeros(rows, tokens, dtype=torch.long),
        mask_BT=torch.ones(rows, tokens, dtype=torch.bool),
        logp_BT=torch.tensor(logp),
        credit_B=torch.tensor(credit),
        reward_B=torch.tensor(credit),
        peers_B=ones,
        temperature_B=torch.ones(rows),
        weight_B=torch.ones(rows),
        role_B=ones,
        episode_B=ones,
        joint_B=ones,
        extra_B=torch.zeros(rows, dtype=torch.bool),
        roles=("a", "b"),
        kl_BT=torch.tensor(kl),
        logp_ref_BT=torch.tensor(ref),
        value_BT=torch.zeros(rows, tokens) if value is None else torch.tensor(value),
    )


def test_targets_literal():
    # gamma 1, lambda 1, values 0, eta 0.5: rewards -0.5 * 1, 3 - 0.5 * 2 -> to go 1.5, 2
    given = batch([[-1.0, -1.0]], [[-2.0, -1.5]], [[1.0, 2.0]], [3.0])
    targets = targets_of(ppo(eta=0.5, lam=1.0, whiten=False, penalty="full"), given)
    assert targets.adv_BT.tolist() == [[1.5, 2.0]]
    assert targets.return_BT.tolist() == [[1.5, 2.0]]
    # sampled: log-ratios 1, 0.5 -> rewards -0.5, 3 - 0.25 -> to go 2.25, 2.75
    sampled = targets_of(ppo(eta=0.5, lam=1.0, whiten=False, penalty="sampled"), given)
    assert sampled.adv_BT.tolist() == [[2.25, 2.75]]
    # whitened: deviations -0.25, +0.25, unbiased variance 0.125
    whitened = targets_of(ppo(eta=0.5, lam=1.0, penalty="full"), given).adv_BT
    assert whitened.tolist() == [[pytest.approx(-math.sqrt(0.5)), pytest.approx(math.sqrt(0.5))]]


def test_the_exact_penalty_literal():
    # eta 0.5, KL 1 and 2: the first token pays for the second's place, -0.5 * 2, and its own is in the loss: to go 2, 3
    given = batch([[-1.0, -1.0]], [[-2.0, -1.5]], [[1.0, 2.0]], [3.0])
    rule = ppo(eta=0.5, lam=1.0, whiten=False, penalty="exact")
    targets = targets_of(rule, given)
    assert targets.adv_BT.tolist() == [[2.0, 3.0]]
    assert targets.columns["kl_weight_B"].tolist() == [0.5]
    # and the loss is -(2 + 3) / 2 of the policy, 0.5 * (4 + 9) / 2 * 0.1 of the critic, 0.5 * (0.4 + 0.8) / 2 of the KL
    kl_BT = torch.tensor([[0.4, 0.8]], requires_grad=True)
    out = Outputs(given.logp_BT, given.value_BT, None, kl_BT)
    loss, metrics = rule.objective.loss(out, given, targets, rule.objective.loss_aggregation(given))
    assert loss.item() == pytest.approx(-2.5 + 0.325 + 0.3)
    assert metrics["loss/kl"].item() == pytest.approx(0.6)
    assert torch.autograd.grad(loss, kl_BT)[0].tolist() == [[0.25, 0.25]]
    assert rule.objective.kl
    assert not ppo(penalty="full").objective.kl


def test_advantages_and_the_kl_in_the_loss_are_divided_by_the_same():
    # to go 2 and 3: variance 1/2; penalties 0.5 and 1: mean square 5/8; so the root of 9/8
    given = batch([[-1.0, -1.0]], [[-2.0, -1.5]], [[1.0, 2.0]], [3.0])
    targets = targets_of(ppo(eta=0.5, lam=1.0, penalty="exact"), given)
    unit = 1 / math.sqrt(9 / 8)
    assert targets.adv_BT.tolist() == [[pytest.approx(-unit / 2), pytest.approx(unit / 2)]]
    assert targets.columns["kl_weight_B"].tolist() == [pytest.approx(unit / 2)]
    equal = batch([[-1.0]] * 2, [[-1.0]] * 2, [[2.0]] * 2, [3.0, 3.0])  # nothing to choose between, and a KL
    assert targets_of(ppo(eta=0.5, penalty="exact"), equal).columns["kl_weight_B"].tolist() == [pytest.approx(0.5)] * 2


def test_the_kl_that_divides_them_is_a_mean_over_tokens_and_not_over_padding():
    # to go 3 - 0.5 * 2, 3 | 4: variance 1; penalties 0.5, 1 | 0.5: mean square 1.5 / 3; so the root of 3/2
    given = batch([[-1.0, -1.0]] * 2, [[-1.0, -1.0]] * 2, [[1.0, 2.0], [1.0, 0.0]], [3.0, 4.0])
    given = given.replace(mask_BT=torch.tensor([[True, True], [True, False]]))
    targets = targets_of(ppo(eta=0.5, lam=1.0, penalty="exact"), given)
    unit = 1 / math.sqrt(1.5)
    assert targets.adv_BT.tolist() == [[pytest.approx(-unit), pytest.approx(0.0)], [pytest.approx(unit), 0.0]]
    assert targets.columns["kl_weight_B"].tolist() == [pytest.approx(0.5 * unit)] * 2


@pytest.mark.parametrize("rule", [reinforce_pp(), *(ppo(lam=1.0, penalty=p) for p in ("full", "sampled", "exact"))])
def test_equal_pay_without_a_kl_teaches_nothing(rule):
    nothing = [[0.0] * 7] * 31
    assert not targets_of(rule, batch(nothing, nothing, nothing, [500.3] * 31)).adv_BT.any()


def test_an_adaptive_weight_is_the_losss_too():
    given = batch([[-1.0, -1.0]], [[-2.0, -1.5]], [[1.0, 2.0]], [3.0])
    rule = ppo(eta=0.5, target_kl=2.0, whiten=False, penalty="exact")
    assert learnt_from(rule, given, {"kl": {"a": 0.7}})[0].columns["kl_weight_B"].tolist() == [pytest.approx(0.7)]


def test_the_blind_penalty_says_so_and_only_where_it_counts():
    assert "docs/ppo.md" in ppo(penalty="full").caution
    assert cory(penalty="full").caution == ppo(penalty="full").caution
    assert ppo().caution == ppo(penalty="sampled").caution == ppo(eta=0.0, penalty="full").caution == ""


def test_a2c_is_ppo_without_ratio_and_whitening():
    given = batch([[-1.0]], [[-1.0]], [[0.0]], [2.0])
    rule = a2c(eta=0.0)
    # A = 2: -2 log pi = 2 at log pi -1; V = 1, R = 2: 0.5 * max(1, (0.2 - 2)^2) * 0.5; entropy 0.7 times 0.01
    out = Outputs(torch.tensor([[-1.0]]), torch.tensor([[1.0]]), torch.tensor([[0.7]]))
    loss, metrics = rule.objective.loss(out, given, targets_of(rule, given), rule.objective.loss_aggregation(given))
    assert loss.item() == pytest.approx(2 + 0.5 * 0.5 * 3.24 - 0.007)
    assert metrics["loss/entropy"].item() == pytest.approx(-0.7)
    same = a2c(clip=0.2, epochs=4, lam=0.95, value_coef=0.1, whiten=True, entropy=0.0, penalty="exact")
    assert same.settings == ppo().settings


def test_reinforce_pp_takes_the_sampled_penalty_undiscounted():
    """Three tokens: whitening any two leaves their order only. Rewards -.5, -.25, 3 - 1; to go 1.25, 1.75, 2."""
    given = batch([[-1.0, -1.0, -1.0]], [[-2.0, -1.5, -3.0]], [[9.0, 9.0, 9.0]], [3.0]).replace(value_BT=None)
    adv_BT = targets_of(reinforce_pp(eta=0.5), given).adv_BT
    to_go_BT = torch.tensor([[1.25, 1.75, 2.0]])
    want_BT = (to_go_BT - to_go_BT.mean()) / to_go_BT.std()
    assert adv_BT.tolist() == [pytest.approx(want_BT[0].tolist())]


def test_reinforce_pp_is_what_is_to_come_whitened_over_the_batch():
    # k1 1 and 0.5, weight 0.5: to go 3 - 0.75 and 3 - 0.25; deviations -+0.25, variance 1/8. And no critic
    given = batch([[-1.0, -1.0]], [[-2.0, -1.5]], [[1.0, 2.0]], [3.0])
    rule = reinforce_pp(eta=0.5)
    targets = targets_of(rule, given.replace(value_BT=None))
    assert targets.adv_BT.tolist() == [[pytest.approx(-math.sqrt(0.5)), pytest.approx(math.sqrt(0.5))]]
    assert targets.return_BT is None
    assert not rule.critic
    _, metrics = rule.objective.loss(Outputs(given.logp_BT), given, targets, rule.objective.loss_aggregation(given))
    assert "loss/value" not in metrics


def test_without_a_critic_every_token_has_what_is_still_to_come():
    """A credit of 1 behind 20 tokens, and by gamma alone it is less for the first of them."""
    given = batch([[0.0] * 20], [[0.0] * 20], [[0.0] * 20], [1.0]).replace(value_BT=None)
    for gamma in (1.0, 0.9):
        adv_BT = targets_of(ppo(critic=False, eta=0.0, whiten=False, gamma=gamma), given).adv_BT
        assert adv_BT[0].tolist() == pytest.approx([gamma ** (19 - token) for token in range(20)])
    assert ppo(critic=False).settings["lam"] == reinforce_pp().settings["lam"] == 1.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clip": None}, "set clip"),
        ({"penalty": "exact", "whiten_rewards": True}, "whiten_rewards divides rewards"),
        ({"clip": [0.2, -1.0]}, "clip"),
        ({"entropy": -1.0}, "entropy"),
        ({"eta": 0.0, "target_kl": 2.0}, "target_kl multiplies eta, and eta is 0, which stays 0; set eta above 0"),
        ({"horizon": 10}, "horizon is 10, and nothing looks at it without target_kl; set target_kl, or leave horizon"),
        ({"critic": False, "lam": 0.95}, "lam is 0.95, which weighs a critic's values, and critic is false; leave lam"),
        ({"critic": False, "value_clip": 0.5}, "value_clip is 0.5, and nothing looks at it without critic: true; set"),
    ],
)
def test_settings_that_exclude_each_other_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        ppo(**wrong)


def test_defaults_that_nothing_looks_at_are_let_be():
    """A run's record has them all, and an algorithm that is another one may have others."""
    assert ppo(horizon=10000, critic=False, value_clip=0.2).settings == ppo(critic=False).settings
    assert not a2c(critic=False).critic


def expected_gradient(penalty):
    """Of one token from pi = softmax(z) with the penalty as its only reward, summed over both tokens."""
    z = torch.tensor([1.0, 0.0], requires_grad=True)
    logp, ref = z.log_softmax(0), torch.tensor([0.5, 0.5]).log()
    kl = (logp.exp() * (logp - ref)).sum().item()
    total = 0.0
    for token in range(2):
        given = batch([[logp[token].item()]], [[ref[token].item()]], [[kl]], [0.0])
        adv = targets_of(ppo(eta=1.0, whiten=False, penalty=penalty), given).adv_BT
        total = total + logp[token].exp().detach() * adv.item() * logp[token]
    total.backward()
    return z.grad


def test_only_the_sampled_penalty_has_the_gradient_of_the_kl():
    z = torch.tensor([1.0, 0.0], requires_grad=True)
    logp = z.log_softmax(0)
    (-(logp.exp() * (logp - math.log(0.5))).sum()).backward()
    assert torch.allclose(expected_gradient("sampled"), z.grad, atol=1e-6)
    assert torch.allclose(expected_gradient("full"), torch.zeros(2), atol=1e-6)
    assert z.grad.abs().max() > 0.1


def test_cory_is_ppo_with_the_sum_of_the_team():
    assert cory().settings == ppo(credit="team_sum").settings
    assert cory().objective.epochs == 4


@pytest.mark.parametrize(
    "wrong", [{"epochs": 0}, {"minibatch": 0}, {"eta": -1.0}, {"lam": 1.5}, {"clip": -0.1}, {"horizon": 0}]
)
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        cory(**wrong)


def test_whitened_rewards_literal():
    # token rewards as above: -0.5 and 2, mean 0.75, deviations +-1.25, unbiased variance 3.125: 0.75 +- 0.5 sqrt(2)
    given = batch([[-1.0, -1.0]], [[-2.0, -1.5]], [[1.0, 2.0]], [3.0])
    targets = targets_of(ppo(eta=0.5, lam=1.0, whiten=False, whiten_rewards=True, penalty="full"), given)
    last = 0.75 + math.sqrt(0.5)
    assert targets.adv_BT.tolist() == [[pytest.approx(1.5), pytest.approx(last)]]
    assert targets.return_BT.tolist() == [[pytest.approx(1.5), pytest.approx(last)]]
    off = ppo(eta=0.5, lam=1.0, whiten=False, penalty="full")
    assert targets_of(off, given).adv_BT.tolist() == [[1.5, 2.0]]


def test_whitened_rewards_do_not_leak_out_of_the_padding():
    # rewards -0.5 and 2 | 3.5: mean 5/3, deviations -13/6, 1/3, 11/6, variance (169 + 4 + 121) / 36 / 2 = 49/12
    given = batch([[-1.0, -1.0]] * 2, [[-1.0, -1.0]] * 2, [[1.0, 2.0], [1.0, 9.0]], [3.0, 4.0])
    given = given.replace(mask_BT=torch.tensor([[True, True], [True, False]]))
    adv_BT = targets_of(ppo(eta=0.5, lam=1.0, whiten=False, whiten_rewards=True, penalty="full"), given).adv_BT
    std = math.sqrt(49 / 12)
    first, second, third = (5 / 3 + deviation / std for deviation in (-13 / 6, 1 / 3, 11 / 6))
    assert adv_BT.tolist() == [[pytest.approx(first + second), pytest.approx(second)], [pytest.approx(third), 0.0]]


def scores(rule, credit, before=()):
    """What a rule makes of credits, one-token turns without a penalty, after it has seen these; and its state."""
    state = {}
    for credits in (before, credit) if before else (credit,):
        rows = [[0.0]] * len(credits)
        targets, state = learnt_from(rule, batch(rows, rows, rows, credits), state)
    return targets.adv_BT[:, 0].tolist(), targets.metrics, state


def test_scores_are_clipped_after_they_were_rescaled():
    plain = {"eta": 0.0, "whiten": False}
    assert scores(ppo(score_clip=2.0, **plain), [3.0, -5.0, 1.0])[0] == [2.0, -2.0, 1.0]
    credit = [1.0, 3.0, 5.0]  # mean 3, std 2
    found, metrics, state = scores(ppo(score_clip=0.5, rescale="normalise", **plain), credit)
    assert found == [-0.5, 0.0, 0.5]
    assert metrics["credit"] == pytest.approx(0.0)
    assert state["moments"]["a"] == {"count": 3, "mean": 3.0, "squares": 8.0}
    assert scores(ppo(score_clip=2.0, rescale="scale", **plain), credit)[0] == pytest.approx([0.5, 1.5, 2.0])


def test_statistics_run_on():
    # of 1, 3, 5 and then 3, 3, 3, 3: mean 3, variance 8 / 6
    found, _, state = scores(ppo(rescale="scale", eta=0.0, whiten=False), [3.0] * 4, before=[1.0, 3.0, 5.0])
    assert found == pytest.approx([3 / math.sqrt(8 / 6)] * 4)
    assert state["moments"]["a"]["count"] == 7


def test_statistics_of_who_did_not_speak_stay():
    before = {"moments": {"b": {"count": 3, "mean": 3.0, "squares": 8.0}}}
    _, state = learnt_from(ppo(rescale="scale"), batch([[0.0]], [[0.0]], [[0.0]], [1.0]), before)
    assert state["moments"].keys() == {"a", "b"}
    assert state["moments"]["b"] == {"count": 3, "mean": 3.0, "squares": 8.0}


def test_the_weight_of_the_penalty_follows_the_kl():
    given = batch([[-1.0, -1.0]], [[-2.0, -1.5]], [[1.0, 2.0]], [3.0])  # 3 nats a turn, wanted 2: at most 0.2 more
    targets, state = learnt_from(ppo(eta=0.5, target_kl=2.0, horizon=10), given)
    assert targets.eta == 0.5
    assert state == {"kl": {"a": pytest.approx(0.5 * (1 + 0.2 * 1 / 10))}}
    assert learnt_from(ppo(eta=0.5, target_kl=2.0, horizon=10), given, {"kl": {"a": 0.7}})[0].eta == 0.7
    _, state = learnt_from(ppo(eta=0.5, target_kl=2.0, horizon=10), given, {"kl": {"b": 0.7}})
    assert state == {"kl": {"b": 0.7, "a": pytest.approx(0.51)}}  # whoever did not speak keeps its own


@pytest.mark.parametrize(
    ("nats", "later"),
    [
        ([3.0, 3.0], 0.52),  # a turn, half more than wanted: 0.5 * (1 + 0.2 * 2 / 10)
        ([1.0, 3.4], 0.51),  # 2.2 in the mean: 0.5 * (1 + 0.1 * 2 / 10)
    ],
)
def test_the_weight_of_the_penalty_follows_the_mean_kl_of_as_many_turns(nats, later):
    given = batch([[-1.0] * 2] * 2, [[-1.0] * 2] * 2, [[one / 4, 3 * one / 4] for one in nats], [3.0, 3.0])
    _, state = learnt_from(ppo(eta=0.5, target_kl=2.0, horizon=10), given)
    assert state == {"kl": {"a": pytest.approx(later)}}


def test_without_these_options_nothing_is_done_to_a_reward():
    assert scores(ppo(eta=0.0, whiten=False), [30.0, -50.0])[::2] == ([30.0, -50.0], {})
    assert ppo().settings["score_clip"] is None
    torch.manual_seed(0)
    rows = [torch.randn(3, 4).tolist() for _ in range(4)]
    given = batch(*rows[:3], [1.0, -2.0, 0.5], rows[3])
    adv_BT, return_BT = gae(
        token_rewards(given.credit_B, given.kl_BT, given.mask_BT, 0.3), given.value_BT, given.mask_BT, 1.0, 0.95
    )
    targets = targets_of(ppo(penalty="full"), given)
    assert torch.equal(targets.return_BT, return_BT)
    assert torch.equal(targets.adv_BT, whiten(adv_BT, given.mask_BT))


def test_defaults_are_the_papers_but_for_the_penalty():
    found = {
        name: parameter.default for name, parameter in inspect.signature(ppo).parameters.items() if name != "minibatch"
    }
    assert found == {
        "eta": 0.3, "target_kl": None, "horizon": 10000, "gamma": 1.0, "lam": None, "clip": 0.2, "value_clip": 0.2,
        "value_coef": 0.1, "value_norm": False, "epochs": 4, "score_clip": None, "whiten_rewards": False,
        "whiten": True, "credit": "own_reward", "rescale": "none", "loss_aggregation": "token", "penalty": "exact",
        "entropy": 0.0, "critic": True, "mismatch": "none",
    }  # fmt: skip
    assert ppo().settings["lam"] == 0.95


def test_the_loss_literal():
    # one token, A = 1, ratio e^0.5 = 1.65 beyond the clip of 0.2: policy -1.2. V = 1, before 0, R = 2: V is clipped to
    # 0.2: 0.5 * max((1 - 2)^2, (0.2 - 2)^2) = 0.5 * 3.24 = 1.62, and a tenth of it counts: -1.2 + 0.162
    given = batch([[-1.0]], [[-1.0]], [[0.0]], [2.0])
    rule, targets = ppo(eta=0.0), Targets(torch.tensor([[1.0]]), torch.tensor([[2.0]]))
    out = Outputs(torch.tensor([[-0.5]]), torch.tensor([[1.0]]))
    loss, metrics = rule.objective.loss(out, given, targets, rule.objective.loss_aggregation(given))
    assert loss.item() == pytest.approx(-1.2 + 0.162)
    assert metrics["loss/value"].item() == pytest.approx(1.62)
    assert metrics["loss/policy"].item() == pytest.approx(-1.2)


def test_token_rewards_are_what_the_paper_says():
    got = token_rewards(torch.tensor([3.0]), torch.tensor([[1.0, 2.0]]), torch.ones(1, 2, dtype=torch.bool), 0.3)
    assert got.tolist() == [[pytest.approx(-0.3), pytest.approx(2.4)]]


def test_what_was_sampled_elsewhere_counts_by_its_ratio_and_what_nobody_sampled_as_it_is():
    # sampled at -1.5, -1 by the learner: e^0.5. The second row is one that a rule added, and nobody sampled it so
    given = batch([[-1.5], [-9.0]], [[0.0]] * 2, [[0.0]] * 2, [0.0] * 2).replace(
        extra_B=torch.tensor([False, True]), logp_old_BT=torch.tensor([[-1.0], [-0.3]])
    )
    targets, weight_BT = Targets(torch.tensor([[1.0], [2.0]])), torch.tensor([[0.5], [0.5]])
    out = Outputs(torch.tensor([[-0.2], [-0.3]]))
    loss, metrics = with_mismatch(policy_gradient(), tis)(out, given, targets, weight_BT)
    assert loss.item() == pytest.approx(0.5 * 0.2 * math.exp(0.5) + 0.5 * 2 * 0.3)
    assert metrics["mismatch/kl"].item() == pytest.approx(0.5 * (math.exp(0.5) - 1.5))
    assert metrics["mismatch/masked"].item() == 0.0
    assert metrics["mismatch/max"].item() == pytest.approx(math.exp(0.5))
    # the ratio in the loss is to what the learner said: e^0.8, clipped at 1.2, and 1
    loss, _ = with_mismatch(policy_gradient(0.2), tis)(out, given, targets, weight_BT)
    assert loss.item() == pytest.approx(-0.5 * 1.2 * math.exp(0.5) - 0.5 * 2)
    # of the only step on a batch the learner's is what it says now: e^1.3, beyond the cap of 2
    loss, metrics = with_mismatch(policy_gradient(), tis)(out, given.replace(logp_old_BT=None), targets, weight_BT)
    assert loss.item() == pytest.approx(0.5 * 0.2 * 2 + 0.5 * 2 * 0.3)
    assert metrics["mismatch/masked"].item() == 0.5
