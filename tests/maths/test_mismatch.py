"""Weights for turns that were sampled with other numbers: literals."""

import math

import pytest
import torch

from coevolve.maths.mismatch import icepop, sequence, tis, weight

MASK = torch.tensor([[True, True, False], [True, True, True]])
OLD = torch.tensor([[4.0, 0.5, 9.0], [0.25, 1.0, 6.0]]).log() - 2.0
SAMPLED = torch.full((2, 3), -2.0)


@pytest.mark.parametrize(
    ("bound", "want", "masked"),
    [
        (tis, [[2.0, 0.5, 1.0], [0.25, 1.0, 2.0]], 2),
        (icepop, [[4.0, 0.5, 1.0], [0.0, 1.0, 0.0]], 2),
        (sequence, [[2.0, 2.0, 1.0], [1.5, 1.5, 1.5]], 0),  # 4 * 0.5 and 0.25 * 1 * 6
    ],
)
def test_literal(bound, want, masked):
    found_BT, said = weight(OLD.clone().requires_grad_(), SAMPLED, MASK, bound)
    torch.testing.assert_close(found_BT, torch.tensor(want))
    assert not found_BT.requires_grad
    assert said["masked"].sum() == masked
    assert said["kl"][0].tolist() == pytest.approx([3 - math.log(4), -0.5 + math.log(2), 0.0], rel=1e-5)
    assert said["max"].max().item() == pytest.approx(2.0 if bound is sequence else 6.0)


def test_a_turn_beyond_the_cap_teaches_nothing():
    found_BT, said = weight(OLD, SAMPLED - 1.0, MASK, sequence)  # times e for every token: 2 e^2 and 1.5 e^3
    assert found_BT.tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    assert said["masked"].sum() == 5
    assert sequence(torch.tensor([[3.1], [2.9]]).log())[1].flatten().tolist() == [0.0, pytest.approx(2.9)]


def test_icepop_leaves_out_what_is_below_a_half_or_above_five():
    ratio_BT, mask_BT = torch.tensor([[0.49, 0.51, 4.9, 5.1]]), torch.ones(1, 4, dtype=torch.bool)
    found_BT, said = weight(ratio_BT.log() - 2.0, torch.full((1, 4), -2.0), mask_BT, icepop)
    torch.testing.assert_close(found_BT, torch.tensor([[0.0, 0.51, 4.9, 0.0]]))
    assert said["masked"].sum() == 2


def test_a_ratio_that_no_number_holds_is_left_out():
    for bound in (icepop, sequence):
        assert bound(torch.full((1, 2), 90.0))[1].tolist() == [[0.0, 0.0]]


def test_equal_numbers_have_weight_one():
    for bound in (tis, icepop, sequence):
        found_BT, said = weight(OLD, OLD, MASK, bound)
        assert (found_BT == 1).all()
        assert said["kl"].sum() == said["masked"].sum() == 0
