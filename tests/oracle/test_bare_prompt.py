"""Answers behind the bare prompt against the exact gradient of answering alone, by the cap of their weights.

``table.py`` prints the table with the others. All groups of two members there can be,
each with its probability; one table has all prompts of a policy. Letters: S prompts, N groups.
"""

import itertools
import math
from statistics import fmean

import torch
from compare import slope
from lesson_cases import lesson
from tabular import MOVES, TOKENS, Table

from coevolve.algorithms import hindsight, marloo
from coevolve.tasks.games import GAMES
from coevolve.types import Episode, Joint, Outputs, Problem, Turn

CAPS = (0.25, 0.5, 1.0, 1.5, 2.0, 4.0, 1e6)
SEEDS = range(12)
PROMPTS = ["c", "cC", "cD"]
PAYS = GAMES["harmony"][""]


def said(table, policy, role, prompt, move, number, member, round_=0, heard=()):
    logp = table.logp_SA[table.number[prompt]][MOVES.index(move)].item()
    ids = [TOKENS.index(token) for token in prompt]
    turn = Turn(role, policy, Problem(str(number)), member, round_, ids, [MOVES.index(move)], [logp], move, False)
    turn.peers, turn.heard = (number, role, round_), heard
    return turn, logp


def chained(tables, number, member, moves):
    """pioneer and observer, one policy; each is paid its own."""
    x, y = moves
    first, p = said(tables["ann"], "ann", "pioneer", "c", x, number, member)
    second, q = said(tables["ann"], "ann", "observer", "c" + x, y, number, member, heard=(first,))
    first.reward, second.reward = PAYS[x + y]
    return Episode(first.problem, member, [first, second], [Joint((first, second), PAYS[x + y])]), p + q


def both_again(tables, number, member, moves):
    """``hinted``: two agents alone, then each once more having heard the other."""
    x, y, u, v = moves
    a, p = said(tables["ann"], "ann", "a", "c", x, number, member)
    b, q = said(tables["bob"], "bob", "b", "c", y, number, member)
    again_a, r = said(tables["ann"], "ann", "a", "c" + y, u, number, member, 1, (b,))
    again_b, s = said(tables["bob"], "bob", "b", "c" + x, v, number, member, 1, (a,))
    joints = [Joint((one, two), PAYS[one.text + two.text]) for one, two in ((a, b), (again_a, b), (a, again_b))]
    return Episode(a.problem, member, [a, b, again_a, again_b], joints), p + q + r + s


def groups_of(make, tables, turns):
    """All groups of two members, and their probabilities [N]."""
    episodes, chances = [], []
    for number, moves in enumerate(itertools.product(itertools.product(MOVES, repeat=turns), repeat=2)):
        made = [make(tables, number, member, one) for member, one in enumerate(moves)]
        episodes += [episode for episode, _ in made]
        chances.append(math.exp(sum(logp for _, logp in made)))
    return episodes, torch.tensor(chances, dtype=torch.float64)


def ascents(rule, episodes, table, policy):
    """Every group's estimate, [N, S]: what the rows of its two episodes add to the objective's gradient, and their
    part that stands behind the bare prompt though it was not sampled there."""
    given = lesson(rule, episodes)
    batch = given.batches[policy]
    targets, _ = rule.advantage(given, {})
    logp_BT = table.logp_SA[table.prompts_of(batch)].gather(1, batch.action_BT)
    leaf_BT = logp_BT.detach().requires_grad_()
    loss, _ = rule.objective.loss(Outputs(leaf_BT), batch, targets[policy], rule.objective.loss_aggregation(batch))
    (push_BT,) = torch.autograd.grad(-loss, leaf_BT)
    prompt_B, groups = table.prompts_of(batch), len(episodes) // 2
    p_B = table.logp_SA.detach()[prompt_B, 0].exp()
    place_B = (batch.episode_B // 2) * len(table.prompts) + prompt_B
    score_B = push_BT[:, 0] * ((batch.action_BT[:, 0] == 0).double() - p_B) * groups

    def of(score_B):
        return torch.bincount(place_B, score_B, groups * len(table.prompts)).view(groups, -1)

    return of(score_B), of(score_B * batch.extra_B)


def alone(logp, partner=None):
    """A scalar whose gradient is that of an answer to the bare prompt, beside a partner who stays as it is."""
    total = torch.zeros((), dtype=torch.float64)
    for x, y in itertools.product(range(2), repeat=2):
        beside = (partner if partner is not None else logp["c"])[x].exp().detach()
        total = total + beside * PAYS[MOVES[x] + MOVES[y]][1] * logp["c"][y].exp()
    return total


def found(cap, seed):
    """(bias, variance) of the rows behind the bare prompt; variance against that of as many turns sampled alone."""
    table = Table(PROMPTS, seed)
    logp = {prompt: table.logp_SA[number] for prompt, number in table.number.items()}
    episodes, chances_N = groups_of(chained, {"ann": table}, 2)
    whole_NS, extra_NS = ascents(hindsight(cap=cap), episodes, table, "ann")
    true_S, mean_S = slope(alone(logp), table), chances_N @ extra_NS
    return float((mean_S - true_S).norm() / true_S.norm()), spread(chances_N, extra_NS) / spread(
        chances_N, (whole_NS - extra_NS)[:, :1]
    )


def spread(chances_N, found_NS):
    return float(chances_N @ found_NS.square().sum(1) - (chances_N @ found_NS).square().sum())


def table():
    """The lines of docs/oracle-tables.md and docs/hindsight.md."""
    lines = ["| cap | bias of an answer alone | variance beside the pioneer's |", "|---|---:|---:|"]
    for cap in CAPS:
        bias, variance = (fmean(column) for column in zip(*(found(cap, seed) for seed in SEEDS), strict=True))
        lines.append(f"| {'none' if cap == CAPS[-1] else f'{cap:g}'} | {100 * bias:.0f} % | {variance:.2f} |")
    return lines


def test_without_a_cap_it_is_the_gradient_of_answering_alone():
    assert max(found(CAPS[-1], seed)[0] for seed in SEEDS) < 1e-5


def test_the_cap_trades_bias_for_variance():
    biases, variances = zip(
        *([fmean(x) for x in zip(*(found(cap, s) for s in SEEDS), strict=True)] for cap in CAPS), strict=True
    )
    assert list(biases) == sorted(biases, reverse=True)
    assert list(variances) == sorted(variances)
    assert biases[0] > 0.5


def test_the_other_rows_are_leave_one_out_of_its_own_pay():
    one = Table(PROMPTS, 3)
    episodes, _ = groups_of(chained, {"ann": one}, 2)
    whole_NS, extra_NS = ascents(hindsight(cap=2.0), episodes, one, "ann")
    plain_NS, nothing_NS = ascents(marloo(credit="own_reward"), episodes, one, "ann")
    assert torch.allclose(whole_NS - extra_NS, plain_NS)
    assert not nothing_NS.any()
    assert torch.equal(ascents(hindsight(cap=0), episodes, one, "ann")[0], plain_NS)


def test_hinted_answers_have_the_gradient_of_acting_alone():
    """By the team's pay, that of ``rounds``; the answers as they were said have that of answering a hint."""
    tables = {"ann": Table(PROMPTS, 3), "bob": Table(PROMPTS, 4)}
    episodes, chances_N = groups_of(both_again, tables, 4)
    whole_NS, extra_NS = ascents(hindsight(cap=1e6, credit="first_joint"), episodes, tables["ann"], "ann")
    mine, other = (t.logp_SA for t in tables.values())
    wanted = torch.zeros((), dtype=torch.float64)
    for x, y in itertools.product(range(2), repeat=2):
        pay = fmean(PAYS[MOVES[x] + MOVES[y]])
        wanted = wanted + mine[0, x].exp() * other[0, y].exp().detach() * pay
    true_S = slope(wanted, tables["ann"])
    assert torch.allclose(chances_N @ extra_NS, true_S, rtol=1e-5)
    assert torch.allclose((chances_N @ (whole_NS - extra_NS))[:1], true_S[:1], rtol=1e-5)  # and the first answers', too
    told = torch.zeros((), dtype=torch.float64)
    for y, u in itertools.product(range(2), repeat=2):
        told = told + other[0, y].exp().detach() * fmean(PAYS[MOVES[u] + MOVES[y]]) * mine[1 + y, u].exp()
    assert torch.allclose((chances_N @ whole_NS)[1:], slope(told, tables["ann"])[1:], rtol=1e-5)
