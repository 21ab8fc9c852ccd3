"""Running statistics against the statistics of everything at once."""

import pytest
import torch

from coevolve.maths.moments import Moments, normalise, scale


def test_running_equals_all_at_once():
    torch.manual_seed(0)
    parts = [torch.randn(n) * 3 + 5 for n in (4, 1, 7)]
    seen = Moments()
    for part in parts:
        seen = seen.after(part)
    everything = torch.cat(parts)
    assert seen.count == 12
    assert seen.mean == pytest.approx(everything.mean().item(), rel=1e-6)
    assert seen.std == pytest.approx(everything.std().item(), rel=1e-6)


def test_rescaling_literals():
    seen = Moments().after(torch.tensor([1.0, 3.0, 5.0]))  # mean 3, unbiased std 2
    assert scale(torch.tensor([4.0]), seen).tolist() == [pytest.approx(2.0)]
    assert normalise(torch.tensor([4.0]), seen).tolist() == [pytest.approx(0.5)]


def test_credits_that_were_all_equal_are_not_divided():
    for equal in ([1.0] * 8, [1.0], [0.0, 0.0], [500.3, 500.3 + 2.0**-15]):
        credit = torch.tensor(equal)
        seen = Moments().after(credit)
        assert scale(credit, seen).tolist() == credit.tolist()
        assert normalise(credit, seen).tolist() == pytest.approx([0.0] * len(equal), abs=1e-4)
