"""When a curve is said to have risen or fallen."""

import math

import numpy as np
import pytest

from coevolve.report.findings.ends import sentence
from coevolve.report.findings.student import limit


@pytest.mark.parametrize("steps", [20, 30, 40, 200])
def test_of_flat_runs_one_in_twenty_is_said_to_have_moved(steps):
    runs = np.random.default_rng(0).normal(size=(1000, steps))
    said = [sentence([{"reward": value} for value in run]) for run in runs]
    assert sum("rose" in one or "fell" in one for one in said) / len(runs) == pytest.approx(0.05, abs=0.02)


def test_a_clear_rise_is_told_in_short_runs_too():
    runs = np.random.default_rng(0).normal(scale=0.1, size=(50, 40)) + np.linspace(0, 2, 40)
    assert all("reward rose from" in sentence([{"reward": value} for value in run]) for run in runs)


@pytest.mark.parametrize("freedom", [*range(1, 31), 31, 60])
def test_limits_leave_a_twentieth_outside(freedom):
    """The density of Student's t, summed up to the limit."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    t = np.linspace(0, limit(freedom), 5_001)
    inside = 2 * np.trapezoid(scale * (1 + t**2 / freedom) ** (-(freedom + 1) / 2), t)
    assert inside == pytest.approx(0.95, abs=1e-4 if freedom < 31 else 0.005)
