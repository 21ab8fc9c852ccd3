"""Every objective beside every credit on every play of which all groups can be listed.

The tables "Credits" have every credit with every baseline; here every algorithm is held to one of their columns, group
by group and not in the mean alone. Its KL is left out, which the credit does not touch.
"""

import dataclasses

import pytest
from cases import PROTOCOLS
from compare import CLOSE, sample_of
from credits import specs
from exact import ROLES
from objectives import COLUMNS, LONGER, Column, apart, longer

from coevolve.algorithms import ALGORITHMS, ppo
from coevolve.algorithms.ppo import _RESCALES

ELSEWHERE = {"hindsight", "iac", "maac", "madpo", "marlhf"}
"""What learns from other rows, critics or pairs; test_rules names the files where these are held to enumeration."""
SHARED = {"tree(1, 3), cross", "discussion(1)", "resampled(3)", "resampled(2, 2)", "observers(2)"}
"""Plays that put a turn into several joints, or into none, which happo refuses."""
SHORT = [one for one in PROTOCOLS if one.turns is not None and one.name != LONGER]


@pytest.mark.parametrize("protocol", SHORT, ids=[one.name for one in SHORT])
def test_an_objective_beside_a_credit_is_a_column(protocol):
    sample, held = sample_of(protocol.name, protocol.seed), 0
    for label, spec in specs(protocol):
        off = {name: _off(sample, spec, name) for name in COLUMNS}
        refused = {name for name, one in off.items() if one is None}
        some = {"happo"} if protocol.name in SHARED or label.startswith("crossed") else set()
        assert refused in (some, set(COLUMNS)), f"a credit is refused beside all, or beside none: {label}"
        assert all(one is None or one < CLOSE for one in off.values()), f"{label}: {off}"
        held += len(COLUMNS) - len(refused)
    assert held >= 5 * (len(COLUMNS) - 1)


def _off(sample, spec, name):
    """None where the credit is not for the play, or the algorithm."""
    try:
        return max(apart(sample, spec, COLUMNS[name], role) for role in ROLES)
    except ValueError:
        return None


def test_another_column_is_told_apart():
    sample = sample_of("chain", 23)
    for name, wrong in [("grpo", "mean"), ("maremax", "loo"), ("reinforce_pp", "loo")]:
        column = dataclasses.replace(COLUMNS[name], baseline=wrong)
        assert max(apart(sample, "team_return", column, role) for role in ROLES) > 0.01, name
    bare = dataclasses.replace(COLUMNS["ppo"], whitened=False)
    assert max(apart(sample, "team_return", bare, role) for role in ROLES) > 0.01


@pytest.mark.parametrize("rescale", _RESCALES)
@pytest.mark.parametrize("credit", ["team_sum", "own_reward"])
def test_a_rescaled_credit_is_a_multiple_of_it_less_one_number_at_most(rescale, credit):
    """Of which the column takes the number off where credits are centred, and there alone."""
    sample, settings = sample_of("chain", 23), {"eta": 0.0, "critic": False, "whiten": False, "rescale": rescale}
    columns = [Column(ppo, "none", whitened, settings) for whitened in (False, True)]
    less, nothing = (max(apart(sample, credit, one, role) for role in ROLES) for one in reversed(columns))
    assert less < CLOSE
    assert (nothing < CLOSE) == (rescale != "normalise")


def test_every_algorithm_is_held_to_a_column_or_elsewhere():
    assert COLUMNS.keys() | ELSEWHERE == ALGORITHMS.keys()
    assert not COLUMNS.keys() & ELSEWHERE


def test_where_lengths_differ_objectives_part():
    team = longer()["team_return"]
    assert max(team[name].angle for name in ("reinforce", "marloo", "magrpo")) < 0.01
    assert team["grpo"].angle > team["dapo"].angle > 5  # a mean over a response's tokens, and over all tokens
