"""Training rules as values: credit + advantage + loss + KL rule. One file each, with its deviations from the paper."""

from collections.abc import Callable

from coevolve.algorithms.cory import cory
from coevolve.algorithms.ppo import ppo
from coevolve.types import Algorithm

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {"ppo": ppo, "cory": cory}

__all__ = ["ALGORITHMS", "cory", "ppo"]
