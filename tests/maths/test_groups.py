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


ONE_GROUP = torch.zeros(3, dtype=torch.long)


def flat(credit, paid=None):
    peers = torch.zeros(len(credit), dtype=torch.long)
    [first, *rest] = groups.flat(torch.tensor(credit), peers, None if paid is None else torch.tensor(paid)).tolist()
    assert all(one == first for one in rest)
    return first


@pytest.mark.parametrize(
    "credit",
    [
        [0.0, 1e-6, 0.0],
        [1e-6, 2e-6, 3e-6],
        [0.5, 0.5 + 1e-6],
        [0.7, 0.7 + 1e-6, 0.7],  # 14 steps of float32
        [1e6, 1e6 + 1, 1e6 + 2],
        [-1e6, -1e6 + 1],
        [1e12, -1e12],
        [1e-30, 2e-30],
        [1.0, 1 + 5 * 2**-23],  # one step of float32 more than rounding may be
        [0.0, 1e-17],  # of rewards as small as that
    ],
)
def test_small_but_honest_differences_are_no_rounding(credit):
    assert not flat(credit)


@pytest.mark.parametrize(
    "credit",
    [
        [0.0, 0.0],
        [3.0],
        [0.7, 0.7 + 1e-7],
        [0.1 + 0.2, 0.3],
        [1e6, 1e6 + 0.25],
        [-1e6, -1e6 - 0.25],
        [1e12, 1e12],
        [1.0, 1 + 4 * 2**-23],
    ],
)
def test_rounding_is_flat(credit):
    assert flat(credit)


def test_sums_of_rewards_know_how_large_these_were():
    # 0.1 + 0.2 - 0.3 and 0.2 - 0.3 + 0.1, both 0, of rewards of 0.6 in all: eps 2.2e-16 * 4096 * 0.6 = 5.5e-13
    noise = [0.1 + 0.2 - 0.3, 0.2 - 0.3 + 0.1]
    assert noise[0] != noise[1]
    assert not flat(noise)  # nobody said what they were summed from
    assert flat(noise, [0.6, 0.6])
    assert flat([0.0, 5.4e-13], [0.6, 0.6])
    assert not flat([0.0, 5.5e-13], [0.6, 0.6])
    assert not flat([0.0, 1e-6], [0.6, 0.6])
    assert not flat([0.0, 1e-6], [1e6, 0.0])  # 9.1e-7
    assert flat([0.0, 1e-6], [0.0, 1.2e6])  # the largest of the group counts: 1.1e-6


def test_only_its_own_group_says_what_is_flat():
    credit, peers = torch.tensor([0.0, 1e-6, 5.0, 7.0]), torch.tensor([0, 0, 1, 1])
    assert groups.flat(credit, peers, torch.tensor([1.0, 1.0, 1e9, 1e9])).tolist() == [False] * 4
    assert groups.flat(credit, peers, torch.tensor([1e9, 1.0, 1.0, 1.0])).tolist() == [True, True, False, False]


@pytest.mark.parametrize("scale", [groups.group_std, groups.agent_std])
def test_sums_of_nothing_are_not_blown_up(scale):
    noise = torch.tensor([5.551115123125783e-17, 2.7755575615628914e-17, 0.0])
    close(scale(noise, ONE_GROUP, torch.full((3,), 0.6)), [1.0, 1.0, 1.0])


@pytest.mark.parametrize("scale", [groups.group_std, groups.agent_std])
def test_the_smallest_returns_are_not_divided_by_zero(scale):
    peers = torch.zeros(2, dtype=torch.long)
    torch.testing.assert_close(scale(torch.tensor([0.0, 2e-30]), peers), torch.full((2,), 1e-30), rtol=1e-5, atol=0)
    close(scale(torch.tensor([0.0, 1e-44]), peers), [1.0, 1.0])


def test_far_from_zero():
    # in float32 the sum of these 33 loses what tells them apart: 1e6 + 0 to 32, mean 1e6 + 16
    credit, peers = 1e6 + torch.arange(33.0), torch.zeros(33, dtype=torch.long)
    assert groups.less_mean(credit, peers).tolist() == [float(i - 16) for i in range(33)]
    assert groups.less_max(credit, peers).tolist() == [float(i - 32) for i in range(33)]
    # mean square of -16 to 16: 2 (1 + 4 + ... + 256) / 33 = 2992 / 33
    close(groups.group_std(credit, peers), [math.sqrt(2992 / 33)] * 33)
