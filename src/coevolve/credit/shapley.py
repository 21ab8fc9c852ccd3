"""Shapley values: an agent's mean contribution over all orders in which agents can join the team."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from coevolve.credit.at_once import responses_of, team_reward
from coevolve.credit.difference import paid_without, without
from coevolve.settings import checked_call
from coevolve.types import Credit, Episode, Reward

_MOST = 8
"""Most agents of a team."""


@checked_call("algorithm.credit")
def shapley(*, default: str = "") -> Credit:
    """Each agent's Shapley value of the joint response: the gain in the team's reward when the agent joins, averaged
    over all orders of joining; agents that have not joined say ``default`` (Shapley 1953).

    The values sum to the reward less the reward of a team of defaults. So they divide the reward, and the gradient is
    not that of the team's reward: an agent is also credited for its contribution beside defaults. For plays in which
    all speak at once, once (``rounds``). For each joint response of N agents, 2^N - 1 further ones are scored. Raises
    ValueError for another play, and for more than eight agents.
    """

    def credit(episodes: Sequence[Episode], reward: Reward) -> list[list[float]]:
        responses = responses_of(episodes, "shapley")
        if large := [len(turns) for turns in responses if len(turns) > _MOST]:
            raise ValueError(f"credit shapley: a team of {large[0]}; want at most {_MOST}, or credit: difference")
        asked = {
            (number, *absent): (episodes[number].problem, without(turns, absent, default))
            for number, turns in enumerate(responses)
            for count in range(1, len(turns) + 1)
            for absent in itertools.combinations(range(len(turns)), count)
        }
        known = {(number,): team_reward(episode) for number, episode in enumerate(episodes)} | paid_without(
            "shapley", default, reward, asked
        )
        return [
            [_value(known, number, n, len(turns)) for n in range(len(turns))] for number, turns in enumerate(responses)
        ]

    return credit


def _value(known: dict[tuple[int, ...], float], number: int, n: int, agents: int) -> float:
    """Return the Shapley value of agent n: a sum over sets of others, each weighted by the share of orders in which
    exactly these join later."""
    others = [other for other in range(agents) if other != n]
    total = 0.0
    for count in range(agents):
        share = math.factorial(count) * math.factorial(agents - 1 - count) / math.factorial(agents)
        for later in itertools.combinations(others, count):
            total += share * (known[(number, *later)] - known[(number, *sorted((*later, n)))])
    return total
