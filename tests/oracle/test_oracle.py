"""Every protocol, algorithm and credit against the exact gradient (docs/oracle.md has the table)."""

import dataclasses
import math
import re
from pathlib import Path
from statistics import NormalDist

import pytest
import table
import torch
from cases import PROTOCOLS
from compare import LIMIT, rows, slope
from exact import ROLES, best_of_moments, chance, expected, moments, own, rounds, team
from lesson_cases import collated
from sample import batch_of, described, estimates, everything, played, targets_of
from theory import lookup, sizes

from coevolve.algorithms import cory, magrpo, marloo
from coevolve.types import Outputs

HALF = {"name": "team_return", "gamma": 0.5}
BY_NAME = {protocol.name: protocol for protocol in PROTOCOLS}


def even(choice):
    return torch.tensor(math.log(0.5), dtype=torch.float64)


# The truth itself.


def test_the_expected_return_by_hand():
    # all four joint moves with chance 1/4. harmony: a gets (5 + 4 + 3 + 0) / 4, the team the same by symmetry
    ways = rounds("harmony", 1)
    assert expected(ways, even, "a", own, 1.0).item() == pytest.approx(3.0)
    assert expected(ways, even, "b", team, 1.0).item() == pytest.approx(3.0)
    # harvest, first turn: (1 + 0 + 3 + 2) / 4 = 1.5; second: (3 + 1.5 + 0.75 + 0.5) / 4 = 1.4375 for a, where
    # CC pays (5 + 1 + 6 + 0) / 4, CD (2 + 3 + 0 + 1) / 4, DC (1 + 0 + 2 + 0) / 4 and DD (0 + 1 + 0 + 1) / 4
    assert expected(rounds("harvest", 2), even, "a", own, 0.5).item() == pytest.approx(1.5 + 0.5 * 1.4375)


def test_the_exact_gradient_by_hand():
    # p (1 - p) (E[pay | C] - E[pay | D]) = 1/4 ((5 + 4) / 2 - (3 + 0) / 2) = 0.75 for a's own pay in harmony;
    # for the team's: 1/4 ((5 + 3.5) / 2 - (3.5 + 0) / 2) = 0.625
    logit = torch.zeros((), dtype=torch.float64, requires_grad=True)

    def logp(choice):
        sign = 1.0 if choice.move == "C" else -1.0
        return torch.nn.functional.logsigmoid(sign * logit) if choice.role == "a" else even(choice)

    for worth, want in ((own, 0.75), (team, 0.625)):
        (found,) = torch.autograd.grad(expected(rounds("harmony", 1), logp, "a", worth, 1.0), logit)
        assert found.item() == pytest.approx(want)


def test_the_best_of_two_by_hand():
    # pays of harvest's first turn: CC 1, CD and DC 1.5, DD 2 on average; of ties the first drawn is kept. With even
    # chances DD is the best of two with 7/16, CC only with itself, 1/16, CD and DC with 4/16 each
    found = best_of_moments(rounds("harvest", 2), even, 2)
    after = {"CC": 1 / 16, "CD": 4 / 16, "DC": 4 / 16, "DD": 7 / 16}
    for first, want in after.items():
        told = "c" + first[0] + first
        reached = sum(float(m.weight) for m in found if m.stage == 1 and m.choices[0].prompt == told)
        assert reached == pytest.approx(want)
    assert all(m.to_go == (1, 1) for m in found if [c.move for c in m.choices] == ["C", "C"] and m.stage == 0)


def test_groups_after_an_early_stop():
    # one of two ways goes on, with chance 1/2: 0 to 3 of three others are there with 1/8, 3/8, 3/8, 1/8
    protocol = dataclasses.replace(BY_NAME["rounds(2), done"], size=4)
    first = protocol.ways[0][0]
    ways = [(first,), (first, first)]
    assert sizes(protocol, ways, [0.5, 0.5], 1) == {1: 1 / 8, 2: 3 / 8, 3: 3 / 8, 4: 1 / 8}
    assert sizes(protocol, ways, [0.5, 0.5], 0)[4] == 1.0


@pytest.mark.parametrize("protocol", [p for p in PROTOCOLS if p.expects is moments], ids=lambda p: p.name)
def test_moments_sum_to_the_gradient_of_the_expected_return(protocol):
    sample = played(protocol, 1)
    logp, _ = lookup(sample.tables)
    assert sum(chance(way, logp) for way in protocol.ways).item() == pytest.approx(1.0)
    for role in ROLES:
        parts = [
            m.weight * own(m.to_go, role) * logp(c) for m in moments(protocol.ways, logp, 1.0) for c in m.choices
            if c.role == role
        ]  # fmt: skip
        want_S = slope(expected(protocol.ways, logp, role, own, 1.0), sample.tables[role])
        assert torch.allclose(slope(torch.stack(parts).sum(), sample.tables[role]), want_S)


# The short cuts of the comparison.


def test_row_by_row_is_the_gradient_through_the_table():
    sample = played(BY_NAME["tree(2, 2), cross"], 30)
    for rule in (magrpo(credit=HALF, std="agent"), cory(eta=0.0, credit=HALF)):
        batch = batch_of(sample, rule, "b")
        by_group_NS = estimates(sample, rule, "b", batch)
        policy = sample.tables["b"]
        logp_BT = policy.logp_SA[policy.prompts_of(batch)].gather(1, batch.action_BT)
        targets, objective = targets_of(rule, batch, sample.episodes), rule.objective
        out = Outputs(logp_BT, batch.value_BT)
        loss, _ = objective.loss(out, batch, targets, objective.loss_aggregation(batch))
        assert torch.allclose(by_group_NS.mean(0), slope(-loss, policy), atol=1e-7)


def test_credits_put_in_their_place_are_those_of_collate():
    sample = played(BY_NAME["tree(2, 2), aligned"], 5)
    batch_of(sample, marloo(), "a")
    for rule in (marloo(credit=HALF), magrpo(credit="own_return")):
        want = described(sample, collated(sample.episodes, rule.credit, "a"), "a").tensors()
        found = batch_of(sample, rule, "a").tensors()
        assert found.keys() == want.keys()
        assert all(torch.equal(found[name], want[name]) for name in want)


def test_all_groups_are_there_once():
    # two members of one move each by two agents: 16 groups, whose chances add up
    protocol = dataclasses.replace(BY_NAME["rounds(1), chicken"], members=2)
    sample = everything(protocol)
    said = ["".join(t.text for e in sample.episodes[i : i + 2] for t in e.turns) for i in range(0, 32, 2)]
    assert len(set(said)) == 16
    p, q = (sample.tables[role].logp_SA[0, 0].exp().item() for role in ROLES)
    assert sample.chances_N[said.index("CCCC")].item() == pytest.approx(p * q * p * q)
    assert sample.chances_N[said.index("CDDC")].item() == pytest.approx(p * (1 - q) * (1 - p) * q)
    assert everything(BY_NAME["rounds(2), done"]).chances_N.sum().item() == pytest.approx(1.0)


# The package against the truth.


def of(name, entry):
    return next(r for r in rows() if r.protocol.name == name and r.entry.name == entry)


def every(found):
    return [one for agents in found.values() for one in agents.values()]


@pytest.mark.slow
def test_the_limit_is_strict_enough_for_all_that_is_sampled():
    sampled = [one for row in rows() for one in every(row.found) if one.error_S is not None]
    numbers = sum(one.mean_S.numel() for one in sampled)
    assert numbers > 300
    assert numbers * 2 * NormalDist().cdf(-LIMIT) < 0.01  # a right package would fail one seed in a hundred
    assert max(one.noise for one in sampled if one.law_S is not None) < 0.2  # and a wrong one would be found


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.name)
def test_the_mean_gradient_is_what_theory_says(protocol):
    known, off = 0, []
    for row in rows():
        for credit, agents in row.found.items() if row.protocol == protocol else ():
            for role, one in agents.items():
                known += one.law_S is not None
                off += [(row.entry.name, credit, role)] if one.law_S is not None and not one.lawful else []
    assert off == []
    assert known >= 2 * 2 * 16  # credits, agents, algorithms


UNBIASED = ("marloo", "mareinforce", "reinforce", "marloo, clip: 0.2", "magrpo")
EXACT = [p.name for p in PROTOCOLS if p.turns and p.name not in ("best_of(2, 2)", "resampled(2, 2)", "rounds(2), done")]


@pytest.mark.parametrize("name", EXACT)
def test_the_gradient_is_that_of_the_expected_return(name):
    size = BY_NAME[name].size
    for entry in UNBIASED:
        factor = (size - 1) / size if entry == "magrpo" else 1.0
        for one in every(of(name, entry).found):
            assert torch.allclose(one.mean_S, factor * one.true_S, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["chain", "rounds(1), harmony", "rounds(1), chicken", "tree(1, 3), cross"])
def test_which_kl_is_the_gradient_of_the_kl_after_one_move(name):
    for right in ("marloo, k2 in loss", "marloo, k1 in reward", "rloo"):
        assert all(one.bias < 1e-5 for one in every(of(name, right).found))
    for wrong in ("k1 in loss", "k3 in loss", "k2 in reward", "k3 in reward"):
        assert max(one.bias for one in every(of(name, f"marloo, {wrong}").found)) > 0.05


def test_of_several_turns_the_kl_has_no_eye_for_the_states_it_leads_to():
    for name in ("rounds(2)", "tree(2, 2), aligned", "discussion(1)"):
        for entry in ("marloo, k2 in loss", "marloo, k1 in reward"):
            assert max(one.bias for one in every(of(name, entry).found)) > 0.1


@pytest.mark.parametrize("entry", ["maremax", "marloo, std: group", "grpo"])
@pytest.mark.parametrize("name", ["rounds(2)", "tree(2, 2), aligned", "discussion(1)"])
def test_some_algorithms_go_another_way(name, entry):
    assert max(one.angle for one in every(of(name, entry).found)) > 5


def test_an_early_stop_biases_whoever_compares():
    stop = "rounds(2), done"
    assert all(one.bias < 1e-5 for one in every(of(stop, "mareinforce").found))
    assert all(one.bias > 0.02 and one.angle > 1 for one in every(of(stop, "marloo").found))


def test_the_best_of_several_ignores_the_future():
    assert of("best_of(2, 2)", "marloo").found["team"]["a"].angle > 90  # what pays at once is to take


def test_paying_only_what_comes_later_is_wrong_where_the_past_pays_by_the_future():
    assert of("chain", "cory, to_go").found["team"]["b"].angle > 90
    assert of("chain", "cory, to_go").found["team"]["a"].bias < 1e-5
    assert of("chain", "ppo, no whitening").found["team"]["b"].bias < 1e-5


@pytest.mark.slow
def test_the_documented_tables_are_the_printed_ones():
    docs = Path(__file__).parents[2] / "docs"
    for page, lines in (("oracle.md", table.summary()), ("oracle-tables.md", table.everything())):
        text = (docs / page).read_text("utf-8").split("\n")
        printed = sections(lines)
        said = {title: rows_ for title, rows_ in sections(text).items() if title in printed}
        assert said.keys() == printed.keys()
        for title, rows_ in printed.items():
            assert [NUMBER.sub("#", row) for row in said[title]] == [NUMBER.sub("#", row) for row in rows_]
            for row, found in zip(said[title], rows_, strict=True):
                apart = zip(map(float, NUMBER.findall(row)), map(float, NUMBER.findall(found)), strict=True)
                assert all(abs(one - other) <= 0.011 * max(1, abs(other)) or abs(one - other) == 1
                           for one, other in apart)  # fmt: skip


NUMBER = re.compile(r"-?\b\d+(?:\.\d+)?\b")
"""What is compared up to its last digit, which is rounding's on another processor."""


HEADS = ("algorithm", "credit", "baseline", "cap")
SAMPLED = {protocol.name for protocol in PROTOCOLS if not protocol.turns}


def sections(lines):
    """Section -> its rows: names and laws, and the numbers that no sampling is in; and what is refused."""
    found, title = {}, ""
    for line in lines:
        title = line if line.startswith("#") else title
        cells = line.strip("| ").split(" | ")
        if title.startswith("### ") and line.startswith("| ") and cells[0] not in HEADS:
            known = 1 if title.startswith("### Credits: ") else 2
            sampled = title.removeprefix("### ").removeprefix("Credits: ") in SAMPLED
            found.setdefault(title, []).append(" | ".join(cells[: known if sampled else None]))
        if line.startswith("Refused: "):
            found[title].append(line)
    return found
