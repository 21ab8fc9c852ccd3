"""Training rules as values: credit + advantage + loss + KL rule. One file each, with its deviations from the paper."""

from collections.abc import Callable

from coevolve.algorithms.cory import cory
from coevolve.algorithms.grpo import grpo, reinforce, rloo
from coevolve.algorithms.magrpo import magrpo, mareinforce, maremax, marloo
from coevolve.algorithms.ppo import ppo
from coevolve.types import Algorithm

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "ppo": ppo,
    "cory": cory,
    "magrpo": magrpo,
    "marloo": marloo,
    "maremax": maremax,
    "mareinforce": mareinforce,
    "grpo": grpo,
    "rloo": rloo,
    "reinforce": reinforce,
}

__all__ = [
    "ALGORITHMS",
    "cory",
    "grpo",
    "magrpo",
    "mareinforce",
    "maremax",
    "marloo",
    "ppo",
    "reinforce",
    "rloo",
]
