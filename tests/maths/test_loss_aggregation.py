"""How much a token counts: literals over turns of unequal length and weight."""

import pytest
import torch
from policy_cases import make_batch

from coevolve.maths.loss_aggregation import LOSS_AGGREGATIONS, per_sequence, per_token, per_turn


def batch(*weights):
    """Turns of two tokens and one token."""
    mask = torch.tensor([[True, True], [True, False]])
    return make_batch(2, 0).replace(mask_BT=mask, weight_B=torch.tensor(weights))


def test_literals():
    even = batch(1.0, 1.0)
    torch.testing.assert_close(per_token(even), torch.tensor([[1 / 3, 1 / 3], [1 / 3, 0]]))
    torch.testing.assert_close(per_turn(even), torch.tensor([[1 / 4, 1 / 4], [1 / 2, 0]]))
    torch.testing.assert_close(per_sequence(even), torch.tensor([[1 / 2, 1 / 2], [1 / 2, 0]]))


def test_weights_literal():
    # token: 3, 3, 1 of 7;  turn: 3/4 over two tokens, 1/4 over one;  sequence: 3/2 a token, 1/2
    uneven = batch(3.0, 1.0)
    torch.testing.assert_close(per_token(uneven), torch.tensor([[3 / 7, 3 / 7], [1 / 7, 0]]))
    torch.testing.assert_close(per_turn(uneven), torch.tensor([[3 / 8, 3 / 8], [1 / 4, 0]]))
    torch.testing.assert_close(per_sequence(uneven), torch.tensor([[3 / 2, 3 / 2], [1 / 2, 0]]))


@pytest.mark.parametrize("name", LOSS_AGGREGATIONS)
def test_padding_weighs_nothing(name):
    given = make_batch(6, 1)
    assert (LOSS_AGGREGATIONS[name](given)[~given.mask_BT] == 0).all()


@pytest.mark.parametrize("name", LOSS_AGGREGATIONS)
def test_turns_that_count_for_nothing_weigh_nothing(name):
    assert LOSS_AGGREGATIONS[name](batch(0.0, 0.0)).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    without_tokens = batch(1.0, 1.0).replace(mask_BT=torch.tensor([[True, True], [False, False]]))
    assert LOSS_AGGREGATIONS[name](without_tokens)[1].tolist() == [0.0, 0.0]
