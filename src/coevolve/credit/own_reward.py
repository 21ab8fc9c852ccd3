"""Credit that is each turn's own reward."""

from __future__ import annotations

from coevolve.credit.by_episode import by_episode, paid
from coevolve.settings import checked_call
from coevolve.types import Credit


@checked_call("algorithm.credit")
def own_reward() -> Credit:
    """Each turn's own reward, for independent learners."""
    return by_episode(paid)
