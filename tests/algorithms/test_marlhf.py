"""A reward model beside the agents: by hand, what it reduces to, what it is not for."""

import dataclasses
import itertools
import math

import pytest
import torch
from lesson_cases import lesson, paid, spoke

from coevolve.algorithms import ALGORITHMS, dapo, maac, madpo, magrpo, marlhf
from coevolve.algorithms.marlhf import AGENTS
from coevolve.recipe.components import component
from coevolve.types import Lesson, Outputs


def two_members():
    """(C, C) is paid 5, (D, C) 3."""
    return [
        paid((pay, pay), spoke("x", "ann", text, member=m), spoke("y", "bob", "C", member=m))
        for m, (text, pay) in enumerate([("C", 5.0), ("D", 3.0)])
    ]


def scored(rule, episodes, scores):
    """The lesson, in which the judge's value head says these."""
    given = lesson(rule, episodes)
    value_BT = torch.tensor(scores)[:, None]
    batches = {n: b.replace(value_BT=value_BT if n == "judge" else 0 * b.logp_BT) for n, b in given.batches.items()}
    return Lesson(given.episodes, batches)


def test_by_hand():
    rule = marlhf(judge="judge")
    given = scored(rule, two_members(), [0.25, 1.0])
    judge = given.batches["judge"]
    # the first agent's prompt, what both said, and a token that nobody said
    assert judge.ids_BS.tolist() == [[5, 7, 7, 7]] * 2
    assert judge.start_B.tolist() == [3, 3]
    assert judge.extra_B.all()
    assert judge.credit_B.tolist() == [5.0, 3.0]
    targets, state = rule.advantage(given, rule.start)
    assert targets["ann"].adv_BT[:, 0].tolist() == targets["bob"].adv_BT[:, 0].tolist() == [-0.375, 0.375]
    assert targets["judge"].metrics == {"pairs": 1.0, "agreed": 0.0}
    assert state == {"step": 1, "agents": {}}
    value_BT = torch.tensor([[0.25], [1.0]], requires_grad=True)
    weight_BT = rule.objective.loss_aggregation(judge)
    loss, _ = rule.objective.loss(Outputs(judge.logp_BT, value_BT), judge, targets["judge"], weight_BT)
    assert loss.item() == pytest.approx(math.log1p(math.exp(0.75)))
    want = 1 / (1 + math.exp(-0.75))
    assert torch.autograd.grad(loss, value_BT)[0][:, 0].tolist() == pytest.approx([-want, want])


def test_the_judge_reads_the_first_prompt_and_then_what_everybody_said():
    first = spoke("x", "ann", "C")
    first.action_ids, first.logps = [10, 11], [0.0, 0.0]
    second = spoke("y", "bob", "D", heard=(first,))  # behind a longer prompt
    second.action_ids = [20]
    other = spoke("x", "ann", "C", member=1)
    other.peers = ("elsewhere",)  # whoever the agents are compared with, the judge compares members of the problem
    members = [paid((1.0, 1.0), first, second), paid((1.0, 1.0), other, spoke("y", "bob", "D", member=1))]
    judge = lesson(marlhf(judge="judge"), members).batches["judge"]
    assert judge.ids_BS.tolist() == [[5, 10, 11, 20, 20], [5, 7, 7, 7, 0]]
    assert judge.start_B.tolist() == [4, 3]
    assert judge.peers_B.tolist() == [0, 0]


def test_what_a_judge_says_is_not_rounded_as_large_rewards_are():
    rule, episodes = marlhf(judge="judge", agents={"name": "magrpo", "std": "group"}), two_members()
    for episode in episodes:
        episode.joints[0] = dataclasses.replace(episode.joints[0], rewards=(1e12, 1e12))
    targets, _ = rule.advantage(scored(rule, episodes, [0.25, 1.0]), rule.start)
    assert targets["ann"].adv_BT[:, 0].tolist() == [-1.0, 1.0]


def test_a_joint_response_is_preferred_by_what_all_its_roles_are_paid():
    """The second one is wrong at first and right in the end: paid -1 and 5, beside 1 and 1. Whose pay is whose is no
    preference, whatever the order of a sum does to its last bit."""
    rule = marlhf(judge="judge", agents="ppo", pairs=None)  # credit: own_reward
    pays = [(1.0, 1.0), (-1.0, 5.0)]
    episodes = [
        paid(two, spoke("x", "ann", "C", member=m), spoke("y", "bob", "C", member=m)) for m, two in enumerate(pays)
    ]
    given = scored_with_reference(rule, episodes, [0.0, 1.0])
    assert given.batches["judge"].credit_B.tolist() == [1.0, 2.0]
    assert rule.advantage(given, rule.start)[0]["judge"].metrics == {"pairs": 1.0, "agreed": 1.0}
    names = ("ann", "bob", "cleo")
    for pays in (itertools.permutations((0.1, 0.2, -0.3)), 2 * [(0.1, 0.1, 0.1)]):
        episodes = [paid(three, *(spoke(name, name, "C", member=m) for name in names)) for m, three in enumerate(pays)]
        [credit] = set(lesson(rule, episodes).batches["judge"].credit_B.double().tolist())
    assert credit == torch.tensor(0.1).item()


def test_the_order_of_a_sum_is_no_preference_of_the_judge():
    """0.1 + 0.2 - 0.3 = 5.6e-17 and 0.2 - 0.3 + 0.1 = 2.8e-17: both sums are 0 but for the order of their terms."""
    rule = marlhf(judge="judge", agents={"name": "magrpo", "credit": "team_sum"})
    episodes = [
        paid(three, *(spoke(name, name, "C", member=m) for name in ("ann", "bob", "cleo")))
        for m, three in enumerate([(0.1, 0.2, -0.3), (0.2, -0.3, 0.1)])
    ]
    given = scored(rule, episodes, [0.25, 1.0])
    judge, targets = given.batches["judge"], rule.advantage(given, rule.start)[0]["judge"]
    assert targets.metrics == {"pairs": 0.0, "agreed": 0.0}
    out = Outputs(judge.logp_BT, torch.tensor([[0.25], [1.0]]))
    assert rule.objective.loss(out, judge, targets, rule.objective.loss_aggregation(judge))[0] == 0


def test_a_judge_who_says_the_reward_is_the_reward():
    rule, plain = marlhf(judge="judge"), magrpo()
    given = scored(rule, two_members(), [5.0, 3.0])
    targets, _ = rule.advantage(given, rule.start)
    want, _ = plain.advantage(lesson(plain, two_members()), {})
    assert all(torch.equal(targets[name].adv_BT, want[name].adv_BT) for name in want)
    logp_BT = given.batches["ann"].logp_BT
    weight_BT = rule.objective.loss_aggregation(given.batches["ann"])
    losses = [
        one.objective.loss(Outputs(logp_BT), given.batches["ann"], targets["ann"], weight_BT)[0]
        for one in (rule, plain)
    ]
    assert torch.equal(*losses)


@pytest.mark.parametrize("agents", ["magrpo", {"name": "ppo", "target_kl": 1.0}, {"name": "rloo", "beta": 1.0}])
def test_agents_wait_while_the_judge_warms_up(agents):
    """They have no targets, so no optimiser of theirs moves, and what their algorithm carries on stays as it was."""
    rule = marlhf(judge="judge", agents=agents, warmup=1)
    given = scored_with_reference(rule, two_members(), [5.0, 3.0])
    targets, state = rule.advantage(given, rule.start)
    assert list(targets) == ["judge"]
    assert state == {"step": 1, "agents": rule.start["agents"]}
    targets, state = rule.advantage(given, state)
    assert set(targets) == {"ann", "bob", "judge"}
    batch = given.batches["ann"]
    logp_BT = batch.logp_BT.clone().requires_grad_()
    out = Outputs(logp_BT, batch.value_BT, batch.kl_BT, batch.kl_BT)
    loss, _ = rule.objective.loss(out, batch, targets["ann"], rule.objective.loss_aggregation(batch))
    assert torch.autograd.grad(loss, logp_BT)[0].any()


@pytest.mark.parametrize("agents", ["magrpo", {"name": "magrpo", "std": "team"}, {"name": "ppo", "value_norm": True}])
def test_a_judge_of_agents_that_are_frozen_learns_alone(agents):
    rule = marlhf(judge="judge", agents=agents)
    given = scored_with_reference(rule, two_members(), [0.25, 1.0])
    targets, _ = rule.advantage(Lesson(given.episodes, {"judge": given.batches["judge"]}), rule.start)
    assert list(targets) == ["judge"]


def test_agents_with_critics_of_their_own_learn_from_the_judge():
    # the heads say 0: the advantage of a turn is the judge's score, and the critic's rows are to say it
    rule = marlhf(judge="judge", agents={"name": "iac", "whiten": False})
    targets, _ = rule.advantage(scored(rule, two_members(), [0.25, 1.0]), rule.start)
    assert targets["ann"].adv_BT[:, 0].tolist() == [0.25, 1.0, 0.0, 0.0]
    assert targets["ann"].return_BT[:, 0].tolist() == [0.0, 0.0, 0.25, 1.0]
    with pytest.raises(ValueError, match="whose critics are other policies, cannot learn from a judge yet; want one"):
        marlhf(judge="judge", agents=maac(critic="ann"))


def test_any_algorithm_of_a_recipe():
    rule = component(
        {"name": "marlhf", "agents": {"name": "ppo", "eta": 0.5}, "judge": "cleo"}, ALGORITHMS, "algorithm"
    )
    assert rule.reference and rule.critic
    assert rule.settings["agents"]["eta"] == 0.5
    assert rule.objective.together == "peers"
    with pytest.raises(ValueError, match=r"algorithm\.agents: unknown name 'magrop'"):
        marlhf(judge="judge", agents="magrop")


NOT_PAID = {
    "marlhf": "is it itself",
    "madpo": "learns from an order, and needs no judge",
    "maac": "has a critic by name",
    "happo": "in turn",
    "trpo": "in turn",
}
"""Algorithms that agents cannot learn by from a judge, and why."""


def test_agents_learn_by_every_other_algorithm():
    assert AGENTS.keys() | NOT_PAID.keys() == ALGORITHMS.keys()
    assert not AGENTS.keys() & NOT_PAID.keys()
    for name in AGENTS:
        agents = {"name": name, "cap": 0} if name == "hindsight" else name  # nobody reads anybody here
        rule = marlhf(judge="judge", agents=agents)
        targets, _ = rule.advantage(scored_with_reference(rule, two_members(), [0.25, 1.0]), rule.start)
        assert not torch.equal(targets["ann"].adv_BT[0], targets["ann"].adv_BT[1])  # by the judge's scores


def scored_with_reference(rule, episodes, scores):
    """``scored``, and a reference that is the policy itself."""
    given = scored(rule, episodes, scores)
    zero = {n: torch.zeros_like(b.logp_BT) for n, b in given.batches.items()}
    batches = {n: b.replace(logp_ref_BT=b.logp_BT, kl_BT=zero[n]) for n, b in given.batches.items()}
    return Lesson(given.episodes, batches)


def test_problems_are_not_played_again_by_what_the_agents_do_not_learn_from():
    rule = marlhf(judge="judge", agents="dapo")
    assert dapo().resample > 0 == rule.resample == rule.settings["agents"]["resample"]


def test_what_it_is_not_for():
    rule = marlhf(judge="judge")
    given = lesson(rule, two_members())
    with pytest.raises(
        ValueError, match="the judge, policy 'judge', does not learn; give it other weights than frozen"
    ):
        rule.advantage(Lesson(given.episodes, {"ann": given.batches["ann"]}), rule.start)
    with pytest.raises(ValueError, match="the judge, policy 'bob', plays the role 'y'; it is to read alone"):
        lesson(marlhf(judge="bob"), two_members())
    with pytest.raises(ValueError, match="marlhf: no problem has two joint responses to compare; set members to at le"):
        lesson(rule, two_members()[:1])
    with pytest.raises(ValueError, match=r"algorithm.agents: .* from pairs of turns \(madpo\)"):
        marlhf(judge="judge", agents=madpo())
    twice = two_members()
    twice[0].joints *= 2
    with pytest.raises(ValueError, match="marlhf: problem 'p' has 2 joint responses"):
        lesson(rule, twice)


def test_of_a_group_so_many_pairs_are_judged():
    """Paid 5, 3 and 0: of three pairs the one of the largest difference, the first over the last."""
    episodes = [paid((pay,), spoke("x", "ann", "C", member=m)) for m, pay in enumerate([5.0, 3.0, 0.0])]
    for pairs, count, want in ((1, 1.0, 3.0), (None, 3.0, 1.0)):
        rule = marlhf(judge="judge", pairs=pairs)
        given = scored(rule, episodes, [0.5, 1.0, 0.25])
        judge, targets = given.batches["judge"], rule.advantage(given, rule.start)[0]["judge"]
        assert targets.metrics["pairs"] == count
        value_BT = torch.tensor([[0.5], [1.0], [0.25]])
        loss, _ = rule.objective.loss(
            Outputs(judge.logp_BT, value_BT), judge, targets, rule.objective.loss_aggregation(judge)
        )
        margins = [0.25] if pairs else [0.25, -0.5, 0.75]
        assert loss.item() == pytest.approx(want * sum(math.log1p(math.exp(-margin)) for margin in margins) / 3)


def test_agents_that_wait_themselves_wait_behind_their_judge():
    waiting = dataclasses.replace(magrpo(), warmup=5)
    assert marlhf(judge="judge", agents=waiting, warmup=3).warmup == 8
