"""Actors and critics over turns: what a critic reads, targets by hand, and what they come to in special cases."""

import dataclasses

import pytest
import torch
from lesson_cases import no_reward

from coevolve import Episode, Joint, Lesson, Outputs, Problem, Turn
from coevolve.algorithms import iac, maac, mareinforce
from coevolve.algorithms.turn_values import _levels
from coevolve.collate import collate, rows_of
from coevolve.engines.scripted import ScriptedEngine
from coevolve.maths.advantage import over_turns
from coevolve.plays import refereed
from coevolve.rollout import Stage, rollout
from coevolve.types import Sampling

P = Problem("p")


def turn(role, said, round=0, prompt=(5,), heard=(), member=0, asked=0):
    made = Turn(role, role, P, member, round, list(prompt), [said, 1], [-0.5, -0.25], "", True)
    made.heard, made.peers, made.asked = heard, (role, round), asked
    return made


def two_rounds(pays=((1.0, 3.0), (2.0, 4.0)), member=0):
    """a and b act at once, twice; each hears itself. The team's mean pay is 2, then 3."""
    first = [turn("a", 10, 0, [5], member=member), turn("b", 20, 0, [6], member=member)]
    second = [
        turn("a", 11, 1, [5, 10], heard=(first[0],), member=member),
        turn("b", 21, 1, [6, 20], heard=(first[1],), member=member),
    ]
    joints = [Joint(tuple(first), pays[0]), Joint(tuple(second), pays[1], after=0)]
    return Episode(P, member, [*first, *second], joints)


def lesson(rule, episodes, values, names):
    """values: policy -> what its head says before the tokens of the rows that the rule added, in their order."""
    rows = rows_of(episodes, rule.credit, no_reward)
    rows += [dataclasses.replace(row, extra=True) for row in rule.rows(episodes, rows)]
    batches = {}
    for name in names:
        batch = collate(rows, name)
        if name in values:
            value_BT = torch.full(batch.mask_BT.shape, 99.0)  # of no meaning but at the first token of an added row
            value_BT[batch.extra_B, 0] = torch.tensor(values[name])
            batch = batch.replace(value_BT=value_BT * batch.mask_BT)
        batches[name] = batch
    return Lesson(episodes, batches)


def read(rule, episode, policy):
    """The ids that a critic reads."""
    rows = rows_of([episode], rule.credit, no_reward)
    return [list(row.turn.prompt_ids) for row in rule.rows([episode], rows) if row.turn.policy == policy]


def test_what_is_read():
    episode = two_rounds()
    assert read(iac(), episode, "a") == [[5], [5, 10]]
    assert read(iac(value="q"), episode, "a") == [[5, 10, 1], [5, 10, 11, 1]]
    assert read(iac(critic={"a": "c", "b": "d"}), episode, "d") == [[6], [6, 20]]
    assert read(maac(critic="c"), episode, "c") == [[5, 6], [5, 6], [5, 10, 6, 20], [5, 10, 6, 20]]
    assert read(maac(critic="c", value="q"), episode, "c")[0] == [5, 6, 10, 1, 20, 1]
    assert read(maac(critic="c"), episode, "a") == []


def test_a_baseline_does_not_read_what_the_turn_said():
    first = turn("a", 10, prompt=[5])
    second = turn("b", 20, prompt=[6, 10], heard=(first,), asked=1)
    chain = Episode(P, 0, [first, second], [Joint((first, second), (1.0, 1.0))])
    assert read(maac(critic="c"), chain, "c") == [[5], [5, 6, 10]]
    misheard = dataclasses.replace(first, text="another")
    chain.turns[1] = second = turn("b", 20, prompt=[6, 9], heard=(misheard,), asked=1)
    chain.joints[0] = Joint((first, second), (1.0, 1.0))
    assert read(maac(critic="c"), chain, "c") == [[5], [5, 6, 9]]
    again = turn("b", 21, 1, prompt=[6, 9, 20, 7], heard=(second, "what a tool returned"), asked=2)
    called = Episode(P, 0, [first, second, again], [Joint((first, again), (1.0, 1.0))])
    assert read(maac(critic="c"), called, "c")[0] == [5]


class Moves:
    """A game of two rounds, in turn or at once. The referee says in a text what was said so far."""

    def __init__(self, at_once):
        self.at_once = at_once

    def prompt(self, p, role, heard):
        return f"{role} {heard[-1]}"

    def reward(self, cases):
        return [[1.0] * len(case.turns) for case in cases]

    def referee(self, p, turns):
        told = " ".join(["told", *(one.text for one in turns)])
        movers = "ab" if self.at_once else "abab"[len(turns) : len(turns) + 1]
        return [(role, told) for role in movers] if len(turns) < 4 else []


def test_a_baseline_does_not_read_what_a_text_tells_of_the_turn():
    """All moves are one joint, and b's prompt tells a's move."""

    def found(at_once):
        engine = ScriptedEngine(lambda role, problem, member, number: f"{role}{number}")
        stage = Stage({"a": "a", "b": "b"}, Moves(at_once), engine, Sampling(4))
        [episode] = rollout(refereed(), [P], stage)
        return [one.asked for one in episode.turns], [engine.read(ids) for ids in read(maac(critic="c"), episode, "c")]

    asked, prompts = found(at_once=False)
    assert asked == [0, 1, 2, 3]
    assert prompts == ["a told", "a told b told a0", "a told a told a0 b0", "a told b told a0 b0 a1"]
    asked, prompts = found(at_once=True)
    assert asked == [0, 0, 2, 2]
    assert prompts[:2] == ["a told b told"] * 2  # asked at once, they tell of nothing
    assert prompts[2:] == ["a told b told a told a0 b0", "a told b told b told a0 b0"]


def test_with_answers_everything_is_read_that_was_said():
    first = turn("a", 10, prompt=[5])
    second = turn("b", 20, prompt=[6, 10], heard=(first,))
    chain = Episode(P, 0, [first, second], [Joint((first, second), (1.0, 1.0))])
    assert read(maac(critic="c", value="q"), chain, "c") == [[5, 6, 10, 10, 1, 20, 1]] * 2


def test_what_is_read_for_a_turn_of_several_joints_or_of_none():
    """Of several it is the first one, of none the turn's own prompt."""
    answer, one, other, asking = turn("a", 10), turn("b", 20, prompt=[6]), turn("b", 21, prompt=[7]), turn("a", 12)
    asking.prompt_ids = [8]
    joints = [Joint((answer, one), (1.0, 1.0)), Joint((answer, other), (2.0, 2.0))]
    episode = Episode(P, 0, [answer, one, other, asking], joints)
    assert read(maac(critic="c"), episode, "c") == [[5, 6], [5, 6], [5, 7], [8]]
    assert read(maac(critic="c", value="q"), episode, "c")[3] == [8, 12, 1]


def test_the_defaults_of_both():
    """A value of a central critic is not held to what it was before, that of an own head is (docs/maac.md)."""
    for rule in (iac(), maac(critic="c")):
        assert {name: rule.settings[name] for name in ("value_coef", "gamma", "lam", "whiten", "clip")} == {
            "value_coef": 1.2, "gamma": 1.0, "lam": 0.0, "whiten": True, "clip": None,
        }  # fmt: skip
    assert (iac().settings["value_clip"], maac(critic="c").settings["value_clip"]) == (0.2, None)


def test_units_of_values_stay_with_the_heads():
    assert not iac().kept
    state = {"values": {"a": {"count": 2, "mean": 3.0, "squares": 8.0}}, "kl": {"a": 0.1}}
    assert iac(value_norm=True).kept(state) == {"values": state["values"]}


def test_one_turn_ahead_by_hand():
    # own values a: 0.5, 1; b: 0.25, 2. Team's pay 2, then 3: a: 2 + 1 - 0.5, 3 - 1; b: 2 + 2 - 0.25, 3 - 2
    rule = iac(whiten=False)
    given = lesson(rule, [two_rounds()], {"a": [0.5, 1.0], "b": [0.25, 2.0]}, "ab")
    targets, _ = rule.advantage(given, {})
    assert targets["a"].adv_BT.tolist() == [[2.5, 2.5], [2.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    assert targets["b"].adv_BT[:2, 0].tolist() == [3.75, 1.0]
    assert targets["a"].return_BT[2:, 0].tolist() == [3.0, 3.0]  # its own critic's targets: 2 + 1 and 3
    assert targets["b"].return_BT[2:, 0].tolist() == [4.0, 3.0]


def test_discount_and_lambda_by_hand():
    # pay 2, then 3; values 0.5, 1; gamma 0.5, lambda 0.5: 2 + 0.5 (0.5 * 1 + 0.5 * 3) = 3
    episode = two_rounds()
    a0, a1 = (id(t) for t in episode.turns if t.role == "a")
    credit, value = {a0: 2 + 0.5 * 3, a1: 3.0}, {a0: 0.5, a1: 1.0}
    assert over_turns(episode, credit, value, 0.5, 0.5) == pytest.approx({a0: 3.0, a1: 3.0})
    # each its own pay, 1 then 2: 1 + 0.5 * 1
    rule = iac(credit="own_return", gamma=0.5, whiten=False)
    targets, _ = rule.advantage(lesson(rule, [episode], {"a": [0.5, 1.0], "b": [0.0, 0.0]}, "ab"), {})
    assert targets["a"].return_BT[2:, 0].tolist() == [1.5, 2.0]


def test_a_tree_looks_ahead_to_the_mean_of_its_branches():
    root = turn("a", 10)
    leaves = [turn("a", 11, 1, [5, 10], (root,)), turn("a", 12, 1, [5, 10], (root,))]
    joints = [Joint((root,), (1.0,)), Joint((leaves[0],), (2.0,), after=0), Joint((leaves[1],), (6.0,), after=0)]
    rule = iac(whiten=False)
    given = lesson(rule, [Episode(P, 0, [root, *leaves], joints)], {"a": [0.0, 1.0, 4.0]}, "a")
    assert rule.advantage(given, {})[0]["a"].adv_BT[:3, 0].tolist() == [3.5, 1.0, 2.0]  # 1 + (1 + 4) / 2


def test_a_turn_that_is_part_of_what_follows_it_does_not_follow_itself():
    """As where a first answer is scored alone and then with a second one, and where the later one is scored first."""
    a, b = turn("a", 10), turn("b", 11)
    joints = [Joint((a,), (2.0,)), Joint((a, b), (4.0, 4.0), after=0)]
    assert lambda_returns([a, b], joints, [5.0, 4.0], [1.0, 1.0], 1.0, 0.5) == [5.0, 4.0]
    first, second = turn("a", 10), turn("a", 11)
    joints = [Joint((second,), (2.0,)), Joint((first,), (4.0,), after=0)]
    # 4 for what was scored last; 2 + (V + G) / 2 for what it continues, in whose return 4 is already
    assert lambda_returns([first, second], joints, [4.0, 6.0], [1.0, 1.0], 1.0, 0.5) == [4.0, 6 + (1 - 4) / 2]


def test_what_follows_a_turn_that_is_scored_again_later_counts():
    # what followed its first joint was of value 5, paid 2, and nothing its second one: 4 + (3 + 0) / 2
    one, other = turn("a", 10), turn("a", 11)
    joints = [Joint((one,), (1.0,)), Joint((other,), (2.0,), after=0), Joint((one,), (3.0,))]
    assert lambda_returns([one, other], joints, [4.0, 2.0], [0.0, 5.0], 1.0, 0.0) == [5.5, 2.0]


def lambda_returns(turns, joints, credit, value, gamma, lam):
    keys = [id(one) for one in turns]
    numbers = [dict(zip(keys, each, strict=True)) for each in (credit, value)]
    found = over_turns(Episode(P, 0, turns, joints), *numbers, gamma, lam)
    return [found[key] for key in keys]


def test_between_the_critic_and_the_whole_return_all_turns_to_come_count():
    # gamma and lambda 1/2, pays 1, 2, 4, so returns 3, 4, 4; values of the second and third 1 and 2:
    # G_2 = 4, G_1 = 2 + (2 / 2 + 4 / 2) / 2 = 3.5, G_0 = 1 + (1 / 2 + 3.5 / 2) / 2 = 2.125
    turns = [turn("a", 10 + i, i) for i in range(4)]
    joints = [Joint((turns[0],), (1.0,)), Joint((turns[1],), (2.0,), 0), Joint((turns[2],), (4.0,), 1)]
    chosen_for = Joint((turns[3],), (9.0,), 0, answered=False)  # what the first joint does not answer for
    found = lambda_returns(turns, [*joints, chosen_for], [3.0, 4.0, 4.0, 9.0], [0.0, 1.0, 2.0, 7.0], 0.5, 0.5)
    assert found == [2.125, 3.5, 4.0, 9.0]


def test_a_turn_of_several_joints_looks_ahead_to_their_mean():
    # the answer stood in two joints, followed by turns of value 3, paid 2, and value 8, paid 3: 4 + (1 + 5) / 2
    answer, one, other, _ = turns = [turn("a", 10 + i, i) for i in range(4)]
    joints = [Joint((answer,), (1.0,)), Joint((answer,), (2.0,)), Joint((one,), (2.0,), 0), Joint((other,), (3.0,), 1)]
    found = lambda_returns(turns, joints, [4.0, 2.0, 3.0, 1.25], [0.0, 3.0, 8.0, 9.0], 1.0, 0.0)
    assert found == [7.0, 2.0, 3.0, 1.25]  # of no joint: what it was credited with


def test_the_whole_return_of_a_critic_that_knows_nothing_is_reinforce():
    episodes = [two_rounds(), two_rounds(((0.0, 5.0), (1.0, -2.0)), member=1)]
    rule, plain = iac(lam=1.0, gamma=0.5, whiten=False), mareinforce(credit={"name": "team_return", "gamma": 0.5})
    given = lesson(rule, episodes, {"a": [0.0] * 4, "b": [0.0] * 4}, "ab")
    without = Lesson(episodes, {n: collate(rows_of(episodes, plain.credit, no_reward), n) for n in "ab"})
    for name in "ab":
        found = rule.advantage(given, {})[0][name].adv_BT[:4]
        assert torch.equal(found, plain.advantage(without, {})[0][name].adv_BT)


def test_one_critic_of_all():
    # it reads every state once for each agent: values 0.5, 0.5, 1, 1; 2 + 1 - 0.5 for both
    rule = maac(critic="c", whiten=False)
    targets, _ = rule.advantage(lesson(rule, [two_rounds()], {"c": [0.5, 0.5, 1.0, 1.0]}, "abc"), {})
    assert targets["a"].adv_BT[:, 0].tolist() == targets["b"].adv_BT[:, 0].tolist() == [2.5, 2.0]
    assert not targets["c"].adv_BT.any()
    assert targets["c"].return_BT[:, 0].tolist() == [3.0] * 4
    assert targets["c"].metrics["explained_variance"] != targets["c"].metrics["explained_variance"]  # nothing varies


def test_how_much_a_critic_explains():
    # returns 5 and 3 in one episode, 1 and 3 in the other; of values 4, 3, 2, 3 half the spread is left in the errors
    episodes = [two_rounds(), two_rounds(((-2.0, -2.0), (3.0, 3.0)), member=1)]
    rule = maac(critic="c", lam=1.0)
    values = [v for v in (4.0, 3.0, 2.0, 3.0) for _ in "ab"]
    targets, _ = rule.advantage(lesson(rule, episodes, {"c": values}, "abc"), {})
    assert targets["c"].metrics["explained_variance"] == pytest.approx(0.75)  # errors 1, 0, -1, 0 of 2, 0, -2, 0


def test_whitened_by_role_and_round():
    episodes = [two_rounds(), two_rounds(((3.0, 5.0), (10.0, 10.0)), member=1)]
    rule = maac(critic="c", lam=1.0)
    targets, _ = rule.advantage(lesson(rule, episodes, {"c": [0.0] * 8}, "abc"), {})
    assert targets["a"].adv_BT[:, 0].tolist() == pytest.approx([-1.0, -1.0, 1.0, 1.0])


def test_a_policy_in_two_roles_is_whitened_role_by_role():
    # a is paid 1 and 3, b 10 and 30, and both are said by x, whose critic is c
    episodes = []
    for member, pays in enumerate([(1.0, 10.0), (3.0, 30.0)]):
        both = [turn(role, 10, member=member) for role in "ab"]
        for one in both:
            one.policy = "x"
        episodes.append(Episode(P, member, both, [Joint(tuple(both), pays)]))
    rule = iac(critic={"x": "c"}, lam=1.0, credit="own_return")
    targets, _ = rule.advantage(lesson(rule, episodes, {"c": [0.0] * 4}, "xc"), {})
    assert targets["x"].adv_BT[:, 0].tolist() == pytest.approx([-1.0, -1.0, 1.0, 1.0])
    assert targets["c"].return_BT[:, 0].tolist() == [1.0, 10.0, 3.0, 30.0]


def test_samples_of_one_turn_are_of_one_round():
    # of two episodes two samples each, paid 1, 3 and 5, 7: mean 4, standard deviation the root of 5
    episodes = []
    for member, pays in enumerate([(1.0, 3.0), (5.0, 7.0)]):
        samples = [turn("a", 10 + n, n, member=member) for n in range(2)]
        for one in samples:
            one.peers = ("p", "a", member, ())  # of the node that both are at
        joints = [Joint((one,), (pay,)) for one, pay in zip(samples, pays, strict=True)]
        episodes.append(Episode(P, member, samples, joints))
    rule = iac(lam=1.0)
    targets, _ = rule.advantage(lesson(rule, episodes, {"a": [0.0] * 4}, "a"), {})
    assert targets["a"].adv_BT[:4, 0].tolist() == pytest.approx([n / 5**0.5 for n in (-3, -1, 1, 3)])


def test_nodes_of_one_depth_of_a_tree_are_whitened_together():
    # a root of two samples, paid nothing, each with two continuations, paid 1, 3 and 5, 7: a critic that knows of each
    # node what it is worth leaves -1, 1 and -1, 1, whose standard deviation is 1; whitened by node it would have no say
    roots = [turn("a", 10 + n, n) for n in range(2)]
    leaves = [turn("a", 12 + n, 2 + n, prompt=[7 + n // 2]) for n in range(4)]
    for one in roots:
        one.peers = ("p", "a", 0, ())
    for n, one in enumerate(leaves):
        one.peers = ("p", "a", 0, (n // 2,))
    joints = [Joint((one,), (0.0,)) for one in roots]
    joints += [
        Joint((one,), (pay,), after=n // 2) for n, (one, pay) in enumerate(zip(leaves, (1, 3, 5, 7), strict=True))
    ]
    given = [Episode(P, 0, [*roots, *leaves], joints)]

    def of_leaves(values):
        rule = iac(lam=1.0)
        found, _ = rule.advantage(lesson(rule, given, {"a": [0.0, 0.0, *values]}, "a"), {})
        return found["a"].adv_BT[2:6, 0].tolist()

    assert of_leaves([2.0, 2.0, 6.0, 6.0]) == pytest.approx([-1.0, 1.0, -1.0, 1.0])
    assert of_leaves([0.0] * 4) == pytest.approx([n / 5**0.5 for n in (-3, -1, 1, 3)])


def test_a_sample_that_was_not_scored_is_of_the_level_of_its_peers():
    # four samples of one turn, of which the third is scored; the episode's other turn is of the next round
    samples = [turn("a", 10 + n, n) for n in range(4)]
    for one in samples:
        one.peers = ("p", "a", 0, "first")
    later = turn("a", 14, 4)
    later.peers = ("p", "a", 4)
    given = Episode(P, 0, [*samples, later], [Joint((samples[2],), (1.0,)), Joint((later,), (2.0,), after=0)])
    assert list(_levels(given).values()) == [0, 0, 0, 0, 4]


def test_a_turn_that_is_alone_in_its_role_and_round_is_not_whitened_away():
    # 2 + 1 - 0.5 and 3 - 1: less its own mean each would be 0, and one episode a step would teach an actor nothing
    rule = iac()
    given = lesson(rule, [two_rounds()], {"a": [0.5, 1.0], "b": [0.25, 2.0]}, "ab")
    assert rule.advantage(given, {})[0]["a"].adv_BT[:2, 0].tolist() == [2.5, 2.0]
    # of two episodes one ends after its first round: those of that round are whitened as ever, the other one stays
    first = [turn("a", 10, member=1), turn("b", 20, prompt=[6], member=1)]
    short = Episode(P, 1, first, [Joint(tuple(first), (0.0, 0.0))])
    values = {"a": [0.5, 1.0, 0.5], "b": [0.25, 2.0, 0.25]}
    targets, _ = rule.advantage(lesson(rule, [two_rounds(), short], values, "ab"), {})
    assert targets["a"].adv_BT[:3, 0].tolist() == [1.0, 2.0, -1.0]


def test_the_loss_by_hand():
    # rows: two turns, then two values. Policy: -(2.5 * -3 + 2 * -1) / 1 episode; values 0 and 2 against 3 and 3:
    # half of 9 + 1, and it was 0.5 and 1 before: cut off at 0.7 and 1.2, errors 2.3 and 1.8
    rule = iac(whiten=False, value_coef=2.0, value_clip=None)
    given = lesson(rule, [two_rounds()], {"a": [0.5, 1.0], "b": [0.0, 0.0]}, "ab")
    targets, batch = rule.advantage(given, {})[0]["a"], given.batches["a"]
    logp_BT = torch.tensor([[-1.0, -2.0], [-1.0, 0.0], [-7.0, 0.0], [-7.0, 0.0]])
    value_BT = torch.tensor([[50.0, 50.0], [50.0, 50.0], [0.0, 0.0], [2.0, 0.0]])
    weight_BT = rule.objective.loss_aggregation(batch)
    loss, metrics = rule.objective.loss(Outputs(logp_BT, value_BT), batch, targets, weight_BT)
    assert metrics["loss/policy"].item() == pytest.approx(9.5)
    assert metrics["loss/value"].item() == pytest.approx(5.0)
    assert loss.item() == pytest.approx(19.5)
    clipped = iac(value_clip=0.2).objective.loss
    _, metrics = clipped(Outputs(logp_BT, value_BT), batch, targets, weight_BT)
    assert metrics["loss/value"].item() == pytest.approx((9.0 + 1.8**2) / 2)  # the larger error of each
    assert rule.objective.loss(Outputs(logp_BT), batch, targets, weight_BT)[0].item() == pytest.approx(9.5)  # no head


def test_who_has_a_head():
    assert all(iac().has_critic(name) for name in "abc")
    assert [maac(critic="c").has_critic(name) for name in "abc"] == [False, False, True]
    assert [iac(critic={"a": "c", "b": "c"}).has_critic(name) for name in "abc"] == [False, False, True]
    assert not mareinforce().has_critic("a")


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="set clip, PPO's ratio, too"):
        iac(epochs=2)
    rule = iac(critic={"a": "c"})
    episode = two_rounds()
    with pytest.raises(ValueError, match="critic says nobody for policy 'b'"):
        rule.rows([episode], rows_of([episode], rule.credit, no_reward))


def test_a_frozen_partner_is_read_and_not_learnt_for():
    rule = maac(critic="c", whiten=False)
    targets, _ = rule.advantage(lesson(rule, [two_rounds()], {"c": [0.5, 0.25, 1.0, 2.0]}, "ac"), {})
    assert targets["a"].adv_BT[:, 0].tolist() == [2.5, 2.0]
    # b's: what came of them, 2 + 2 and 3. What the critic says itself would be no error, whatever it says.
    assert targets["c"].return_BT[:, 0].tolist() == [3.0, 4.0, 3.0, 3.0]
    assert targets["c"].metrics["explained_variance"] == pytest.approx(1 - 0.98046875 / 0.1875)
    rule = maac(critic="c", whiten=False, value_norm=True)
    _, state = rule.advantage(lesson(rule, [two_rounds()], {"c": [0.5, 0.25, 1.0, 2.0]}, "ac"), {})
    assert state["values"]["c"]["mean"] == pytest.approx(3.25)


def test_an_actor_whose_critic_does_not_learn_has_no_advantage():
    rule = maac(critic="c", whiten=False)
    targets, _ = rule.advantage(lesson(rule, [two_rounds()], {}, "a"), {})
    assert not targets["a"].adv_BT.any()
