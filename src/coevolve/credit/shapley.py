"""Credit by an agent's mean contribution over the orders in which the team could have come together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from coevolve.credit.at_once import paid, responses_of, would_be_paid
from coevolve.credit.difference import without
from coevolve.settings import checked_call
from coevolve.types import Credit, Episode, Reward

_MOST = 8
"""Agents of a team at most."""


@checked_call("algorithm.credit")
def shapley(*, default: str = "") -> Credit:
    """Each agent's Shapley value of the joint response: what the team is paid more when it joins, in the mean over all
    orders; whoever is not there yet says ``default`` (Shapley 1953).

    The values add up to the pay less what the team of defaults is paid. So this divides the pay, and its gradient is
    not that of the team's pay: an agent is also paid for what it would have earned beside defaults. For plays where all
    speak at once, once (``rounds``). A joint response of N agents has 2^N - 1 further ones paid. Raises ValueError for
    another play, and for more than eight agents.
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
        known = {(number,): paid(episode) for number, episode in enumerate(episodes)} | would_be_paid(reward, asked)
        return [
            [_value(known, number, n, len(turns)) for n in range(len(turns))] for number, turns in enumerate(responses)
        ]

    return credit


def _value(known: dict[tuple[int, ...], float], number: int, n: int, agents: int) -> float:
    """The mean over orders, a set of others at a time: all orders in which just these come later."""
    others = [other for other in range(agents) if other != n]
    total = 0.0
    for count in range(agents):
        share = math.factorial(count) * math.factorial(agents - 1 - count) / math.factorial(agents)
        for later in itertools.combinations(others, count):
            total += share * (known[(number, *later)] - known[(number, *sorted((*later, n)))])
    return total
