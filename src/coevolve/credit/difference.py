"""Difference rewards: the team's reward less its reward without the agent's response."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from coevolve.credit.at_once import Key, Responses, responses_of, team_reward, would_be_paid
from coevolve.settings import checked_call
from coevolve.types import Credit, Episode, Problem, Reward


@checked_call("algorithm.credit")
def difference(*, default: str = "") -> Credit:
    """The reward of a joint response less its reward with ``default`` in place of the agent's response (Wolpert and
    Tumer, 2001, "Optimal payoff functions for members of collectives").

    What is subtracted does not depend on the agent's own response, so the gradient is that of the team's reward; any
    baseline may follow. For plays in which all speak at once, once (``rounds``). For each joint response of N agents,
    N further ones are scored. default: a text that the task can score, empty unless given. Raises ValueError for
    another play.
    """

    def credit(episodes: Sequence[Episode], reward: Reward) -> list[list[float]]:
        responses = responses_of(episodes, "difference")
        asked = {
            (number, n): (episodes[number].problem, without(turns, [n], default))
            for number, turns in enumerate(responses)
            for n in range(len(turns))
        }
        known = paid_without("difference", default, reward, asked)
        return [
            [team_reward(episodes[number]) - known[number, n] for n in range(len(turns))]
            for number, turns in enumerate(responses)
        ]

    return credit


def paid_without(
    rule: str, default: str, reward: Reward, asked: Mapping[Key, tuple[Problem, Responses]]
) -> dict[Key, float]:
    """Return ``would_be_paid`` of joint responses with the default text. Raises ValueError, naming the rule and the
    default, where the task cannot score them."""
    try:
        return would_be_paid(reward, asked)
    except ValueError as error:
        raise ValueError(
            f"credit {rule} asks what its default {default!r} would be paid in place of a response, and "
            f"credit: {{name: {rule}, default: ...}} sets another: {error}"
        ) from error


def without(turns: Responses, absent: Sequence[int], default: str) -> Responses:
    """Return the responses with the default text, as turns without tokens, at these positions."""
    said = [dataclasses.replace(turn, text=default, action_ids=(), logps=()) for turn in turns]
    return tuple(said[n] if n in absent else turn for n, turn in enumerate(turns))
