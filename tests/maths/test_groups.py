"""Baselines and scales of groups, in numbers."""

import math

import pytest
import torch

from coevolve.maths import groups

# Groups 0, 1, 0, 1, 2, 0: returns (1, 1, 0) in group 0, (4, 8) in group 1, 5 alone.
PEERS = torch.tensor([0, 1, 0, 1, 2, 0])
CREDIT = torch.tensor([1.0, 4.0, 1.0, 8.0, 5.0, 0.0])


def close(got, want):
    torch.testing.assert_close(got, torch.tensor(want))


def test_mean():
    close(groups.less_mean(CREDIT, PEERS), [1 / 3, -2.0, 1 / 3, 2.0, 0.0, -2 / 3])


def test_leave_one_out():
    # group 0: 1 - (1 + 0) / 2 = 1/2 twice, 0 - 1 = -1; group 1: 4 - 8, 8 - 4; alone: nothing to compare with
    close(groups.less_others(CREDIT, PEERS), [0.5, -4.0, 0.5, 4.0, 0.0, -1.0])


def test_max():
    close(groups.less_max(CREDIT, PEERS), [0.0, -4.0, 0.0, 0.0, 0.0, -1.0])


def test_none():
    close(groups.as_it_is(CREDIT, PEERS), CREDIT.tolist())


def test_group_std():
    # group 0: deviations 1/3, 1/3, -2/3, mean square 2/9; group 1: 2; alone: 1
    std = math.sqrt(2) / 3
    close(groups.group_std(CREDIT, PEERS), [std, 2.0, std, 2.0, 1.0, std])


def test_agent_std():
    # squares of the deviations 1/9, 4, 1/9, 4, 4/9 (one turn is alone): sum 78/9, mean of five 78/45
    close(groups.agent_std(CREDIT, PEERS), [math.sqrt(78 / 45)] * 6)


@pytest.mark.parametrize("scale", [groups.group_std, groups.agent_std])
def test_rounding_noise_is_not_blown_up(scale):
    noise = torch.tensor([0.7, 0.7 + 1e-7, 0.7])
    close(scale(noise, torch.zeros(3, dtype=torch.long)), [1.0, 1.0, 1.0])


def test_a_small_but_real_difference_counts():
    # half a per mille apart: std 0.00025
    credit = torch.tensor([1.0, 1.0005])
    std = groups.group_std(credit, torch.zeros(2, dtype=torch.long))
    torch.testing.assert_close(std, torch.full((2,), 0.00025), rtol=1e-3, atol=0)
