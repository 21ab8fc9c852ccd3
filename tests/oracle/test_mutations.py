"""The comparison can fail: each of these mistakes, made on purpose, is found."""

import pytest
import torch
from cases import PROTOCOLS
from compare import GROUPS, Found, average, slope
from exact import ROLES, WORTHS, expected
from sample import batch_of, estimates, everything, played
from theory import lookup

from coevolve.algorithms import marloo

BY_NAME = {protocol.name: protocol for protocol in PROTOCOLS}


@pytest.fixture(scope="module")
def sample():
    kept = {}

    def one(name):
        if name not in kept:
            kept[name] = everything(BY_NAME[name]) if BY_NAME[name].turns else played(BY_NAME[name], GROUPS // 3)
        return kept[name]

    return one


def right(sample, credit, mutate):
    """Do all agents' gradients come out, with a changed batch?"""
    rule = marloo(credit=credit)
    logp, _ = lookup(sample.tables)
    found = []
    for role in ROLES:
        batch = mutate(batch_of(sample, rule, role))
        want_S = slope(expected(sample.protocol.ways, logp, role, WORTHS[credit], 1.0), sample.tables[role])
        mean_S, error_S = average(sample, estimates(sample, rule, role, batch))
        found.append(Found(mean_S, error_S, want_S, want_S))
    return all(one.lawful for one in found)


def last_token_dropped(batch):
    """The response's last token has no gradient."""
    last_BT = torch.arange(batch.mask_BT.shape[1]) == (batch.length_B - batch.start_B - 1)[:, None]
    return batch.replace(mask_BT=batch.mask_BT & ~last_BT)


def weights_of_the_root(batch):
    """Deep turns of a tree count as much as those of its root."""
    return batch.replace(weight_B=batch.weight_B.max().expand_as(batch.weight_B))


def weights_of_the_leaves(batch):
    """All turns alike, weights of the same sum."""
    return batch.replace(weight_B=torch.ones_like(batch.weight_B))


def summed_over_partners(batch):
    """A crossed response is paid the sum over its k = 2 partners, not their mean."""
    return batch.replace(credit_B=2 * batch.credit_B)


def no_future(batch):
    """Every turn is paid its own joint only."""
    return batch.replace(credit_B=batch.reward_B)


def next_row(batch):
    """Credits slip by one row."""
    return batch.replace(credit_B=batch.credit_B.roll(1))


def minus_one_member(batch):
    """The mean of the group for that of the others."""
    size_B = torch.bincount(batch.peers_B)[batch.peers_B]
    return batch.replace(credit_B=batch.credit_B * (size_B - 1) / size_B)


MISTAKES = [
    ("chain", "team_return", last_token_dropped),
    ("chain", "team_return", next_row),
    ("chain", "own_return", minus_one_member),
    ("rounds(1), harmony", "own_return", next_row),
    ("tree(1, 3), cross", "team_return", summed_over_partners),
    ("rounds(2)", "own_return", no_future),
    ("rounds(2)", "team_return", minus_one_member),
    ("tree(2, 2), cross", "team_return", summed_over_partners),
    ("tree(2, 2), cross", "own_return", weights_of_the_root),
    ("tree(2, 2), cross", "own_return", weights_of_the_leaves),
    ("tree(2, 2), cross", "own_return", no_future),
    ("discussion(1)", "own_return", no_future),
]


@pytest.mark.parametrize(("name", "credit", "mistake"), MISTAKES, ids=lambda x: getattr(x, "__name__", x))
def test_a_mistake_is_found(sample, name, credit, mistake):
    assert not right(sample(name), credit, mistake)


@pytest.mark.parametrize(("name", "credit"), sorted({(name, credit) for name, credit, _ in MISTAKES}))
def test_and_without_it_nothing_is(sample, name, credit):
    assert right(sample(name), credit, lambda batch: batch)
