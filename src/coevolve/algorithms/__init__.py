"""Training algorithms as values: credit + advantage + loss + KL rule. Deviations from papers: in the file or docs/."""

from collections.abc import Callable

from coevolve.algorithms.actor_critic import iac, maac
from coevolve.algorithms.cory import cory
from coevolve.algorithms.grpo import cispo, dapo, dr_grpo, grpo, gspo, reinforce, rloo
from coevolve.algorithms.happo import happo
from coevolve.algorithms.hindsight import hindsight
from coevolve.algorithms.madpo import madpo
from coevolve.algorithms.magrpo import magrpo, mareinforce, maremax, marloo
from coevolve.algorithms.marlhf import marlhf
from coevolve.algorithms.ppo import a2c, ppo, reinforce_pp
from coevolve.algorithms.trpo import trpo
from coevolve.types import Algorithm

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "ppo": ppo,
    "a2c": a2c,
    "reinforce_pp": reinforce_pp,
    "cory": cory,
    "happo": happo,
    "trpo": trpo,
    "magrpo": magrpo,
    "marloo": marloo,
    "maremax": maremax,
    "mareinforce": mareinforce,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
    "gspo": gspo,
    "cispo": cispo,
    "rloo": rloo,
    "reinforce": reinforce,
    "hindsight": hindsight,
    "madpo": madpo,
    "marlhf": marlhf,
    "iac": iac,
    "maac": maac,
}

__all__ = [
    "ALGORITHMS",
    "a2c",
    "cispo",
    "cory",
    "dapo",
    "dr_grpo",
    "grpo",
    "gspo",
    "happo",
    "hindsight",
    "iac",
    "maac",
    "madpo",
    "magrpo",
    "mareinforce",
    "maremax",
    "marlhf",
    "marloo",
    "ppo",
    "reinforce",
    "reinforce_pp",
    "rloo",
    "trpo",
]
