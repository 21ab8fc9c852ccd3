"""Credit by what the team would have lost without the agent: difference rewards."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from coevolve.credit.at_once import Responses, paid, responses_of, would_be_paid
from coevolve.settings import checked_call
from coevolve.types import Credit, Episode, Reward


@checked_call("algorithm.credit")
def difference(*, default: str = "") -> Credit:
    """The pay of a joint response less its pay with ``default`` in place of what the agent said (Wolpert and Tumer,
    2001, "Optimal payoff functions for members of collectives").

    What is taken off does not depend on the agent's own response, so the gradient is that of the team's pay; any
    baseline may follow. For plays where all speak at once, once (``rounds``). A joint response of N agents has N
    further ones paid. default: a response that the task can judge; nothing, if it is not said. Raises ValueError for
    another play.
    """

    def credit(episodes: Sequence[Episode], reward: Reward) -> list[list[float]]:
        responses = responses_of(episodes, "difference")
        asked = {
            (number, n): (episodes[number].problem, without(turns, [n], default))
            for number, turns in enumerate(responses)
            for n in range(len(turns))
        }
        known = would_be_paid(reward, asked)
        return [
            [paid(episodes[number]) - known[number, n] for n in range(len(turns))]
            for number, turns in enumerate(responses)
        ]

    return credit


def without(turns: Responses, absent: Sequence[int], default: str) -> Responses:
    """The responses, with the default, which nobody sampled, in place of those at these positions."""
    said = [dataclasses.replace(turn, text=default, action_ids=(), logps=()) for turn in turns]
    return tuple(said[n] if n in absent else turn for n, turn in enumerate(turns))
