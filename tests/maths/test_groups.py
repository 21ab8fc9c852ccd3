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


def test_leave_the_episode_out():
    # group 0 has turns of episodes 0, 1, 1: 1 - (1 + 0) / 2, and 1 - 1, 0 - 1; group 1 is of one episode; one is alone
    place = torch.tensor([0, 2, 1, 2, 2, 1])
    close(groups.less_weighted(CREDIT, PEERS, torch.ones(6), place), [0.5, 0.0, 0.0, 0.0, 0.0, -1.0])
    # by weight 1, 3 and 1: episode 0 against (3 * 1 + 1 * 0) / 4
    weight = torch.tensor([1.0, 1.0, 3.0, 1.0, 1.0, 1.0])
    close(groups.less_weighted(CREDIT, PEERS, weight, place), [0.25, 0.0, 0.0, 0.0, 0.0, -1.0])


def test_max():
    close(groups.less_max(CREDIT, PEERS), [0.0, -4.0, 0.0, 0.0, 0.0, -1.0])


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


def test_the_largest_of_a_group_says_what_is_rounding():
    # 4 * 2^-23 = 2^-21 of 2^20 for whoever is beside it, and of the 1 that is elsewhere
    credit, peers = torch.tensor([0.0, -(2.0**20), 0.0, 1.0]), torch.tensor([0, 0, 0, 1])
    close(groups.rounding(credit, peers), [0.5, 0.5, 0.5, 2.0**-21])


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


def test_weighted_leave_one_out():
    # group 0, weights 1, 1, 2 on returns 1, 1, 0: 1 - (1 + 0) / 3, twice, and 0 - 2 / 2
    weight = torch.tensor([1, 5, 1, 7, 9, 2])
    close(groups.less_weighted(CREDIT, PEERS, weight), [2 / 3, -4.0, 2 / 3, 4.0, 0.0, -1.0])


def test_equal_weights_are_leave_one_out():
    close(groups.less_weighted(CREDIT, PEERS, torch.full((6,), 3)), groups.less_others(CREDIT, PEERS).tolist())


# Three groups of two: returns (0, 2), (4, 6), (1, 3), means 1, 5, 2, each of variance 2.
THREE, PAID = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0.0, 2.0, 4.0, 6.0, 1.0, 3.0])
ALIKE, APART = torch.zeros(6, dtype=torch.long), torch.tensor([0, 0, 1, 1, 2, 2])


def test_shrunk_leave_one_out():
    # v = 2 / (2 - 1). group 0: others' means 5 and 2, 3.5 in the mean, variance 4.5 less chance 2 / 2: t = 3.5,
    # l = 2 / 5.5; 0 - 2 * 3.5 / 5.5 - 3.5 * 2 / 5.5 = -14 / 5.5 and 2 - 0 - 3.5 * 2 / 5.5 = 4 / 5.5.
    # group 1: means 1 and 2, variance 0.5 less 1: t = 0, l = 1, so 4 - 1.5, 6 - 1.5.
    # group 2: means 1 and 5, variance 8 less 1: t = 7, l = 2 / 9; 1 - 3 * 7 / 9 - 3 * 2 / 9 = -2, 3 - 7 / 9 - 6 / 9
    want = [-14 / 5.5, 4 / 5.5, 2.5, 4.5, -2.0, 14 / 9]
    close(groups.less_shrunk(PAID, THREE, ALIKE, APART), want)


def test_shrunk_towards_groups_of_other_sizes():
    # The others of (0, 3, 6) are (1, 3), (2, 4, 6) and (4, 8): means 2, 4, 6, 4 in the mean, squares 2 + 8 + 8 over
    # 1 + 2 + 1 degrees: variance 4.5, so v = 4.5 / 2; t = 4 less chance 4.5 (1/2 + 1/3 + 1/2) / 3 = 2; l = 9 / 17.
    # (8 * -4.5 + 9 * -4) / 17, (8 * 0 + 9 * -1) / 17, (8 * 4.5 + 9 * 2) / 17
    paid = torch.tensor([0.0, 3.0, 6.0, 1.0, 3.0, 2.0, 4.0, 6.0, 4.0, 8.0])
    peers = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3, 3])
    found = groups.less_shrunk(paid, peers, torch.zeros_like(peers), peers)
    close(found[:3], [-72 / 17, -9 / 17, 54 / 17])


def test_nothing_to_shrink_towards_is_leave_one_out():
    loo = groups.less_others(PAID, THREE).tolist()
    close(groups.less_shrunk(PAID, THREE, APART, APART), loo)  # no other group of the kind
    close(groups.less_shrunk(PAID, THREE, ALIKE, ALIKE), loo)  # all hang together
    # two turns are alone, and say nothing of what is usual
    found = groups.less_shrunk(PAID, torch.tensor([0, 0, 1, 1, 2, 3]), ALIKE, APART)
    close(found, [-2.0, 2.0, -2.0, 2.0, 0.0, 0.0])
    far = PAID + 1e6 * THREE  # groups that have nothing to do with each other
    torch.testing.assert_close(
        groups.less_shrunk(far, THREE, ALIKE, APART), groups.less_others(far, THREE), rtol=0, atol=1e-3
    )


def test_groups_without_any_spread_are_compared_with_themselves():
    close(groups.less_shrunk(torch.full((6,), 3.0), THREE, ALIKE, APART), [0.0] * 6)


def test_what_hangs_together():
    # rows 0, 1 share a group, 1, 2 an episode, 2, 3 a group; 4 and 5 share a group only
    peers, episodes = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 1, 1, 2, 3, 4])
    found = groups.blocks(peers, episodes).tolist()
    assert len(set(found[:4])) == len(set(found[4:])) == 1
    assert found[0] != found[4]
