"""Running mean and variance of a policy's credit, and two ways to rescale with them. Letters: B turns."""

from __future__ import annotations

from dataclasses import dataclass

from coevolve.late import Tensor, torch

_SCRIPT = 1e-8
"""The epsilon that the released CORY script adds to a standard deviation."""


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of all values so far; immutable."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def after(self, x_B: Tensor) -> Moments:
        """Return the moments with these values included: the parallel update of Chan et al. (1979)."""
        assert x_B.ndim == 1, x_B.shape
        x_B = x_B.double()
        n, mean = len(x_B), float(x_B.mean())
        total = self.count + n
        delta = mean - self.mean
        squares = self.squares + float((x_B - mean).square().sum()) + delta**2 * self.count * n / total
        return Moments(total, self.mean + delta * n / total, squares)

    @property
    def std(self) -> float:
        """The unbiased standard deviation; 0 before the second value."""
        return (self.squares / (self.count - 1)) ** 0.5 if self.count > 1 else 0.0

    @property
    def unit(self) -> float:
        """The standard deviation as a divisor; 1 if the values differ by rounding only."""
        return self.std if self.std > 4 * torch.finfo(torch.float32).eps * abs(self.mean) else 1.0


def scale(credit_B: Tensor, seen: Moments) -> Tensor:
    """Return credit / std: the released CORY script's score scaling. Credits all equal so far are not divided."""
    assert credit_B.ndim == 1, credit_B.shape
    return credit_B / (seen.unit + _SCRIPT)


def normalise(credit_B: Tensor, seen: Moments) -> Tensor:
    """Return (credit - mean) / std: the released CORY script's score normalisation."""
    assert credit_B.ndim == 1, credit_B.shape
    return (credit_B - seen.mean) / (seen.unit + _SCRIPT)
