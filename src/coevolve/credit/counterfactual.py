"""Counterfactual credit: the reward less the mean reward with other responses of the agent, its partners' fixed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from coevolve.credit.at_once import groups_of, responses_of, team_reward, would_be_paid
from coevolve.settings import checked_call
from coevolve.types import Credit, Episode, Reward


@checked_call("algorithm.credit")
def counterfactual() -> Credit:
    """The reward of a joint response less its mean reward with the agent's other responses to the same problem in place
    of this one, the partners' fixed (COMA's baseline, arXiv 1705.08926, by samples instead of a critic).

    It includes its baseline, which is unbiased, so use an algorithm without one: ``mareinforce``. For plays in which
    all speak at once, once (``rounds``). Samples no further turns; with G members and N agents the reward is called for
    N G (G - 1) further joint responses. With reward mu + A_i + B_j + C_ij the variance has no B, but C is not averaged
    out as in ``crossed``: it is A + C times G / (G - 1). Raises ValueError for another play, and for a problem with one
    member.
    """

    def credit(episodes: Sequence[Episode], reward: Reward) -> list[list[float]]:
        responses = responses_of(episodes, "counterfactual")
        groups = groups_of(episodes)
        if alone := [group for group in groups if len(group) == 1]:
            problem = episodes[alone[0][0]].problem.id
            raise ValueError(f"credit counterfactual: problem {problem!r} has one member; want members of at least 2")
        asked = {
            (number, n, other): (
                episodes[number].problem,
                (*responses[number][:n], responses[other][n], *responses[number][n + 1 :]),
            )
            for group in groups
            for number in group
            for n in range(len(responses[number]))
            for other in group
            if other != number
        }
        known = would_be_paid(reward, asked)
        instead: dict[tuple[int, int], list[float]] = {}
        for (number, n, _), found in known.items():
            instead.setdefault((number, n), []).append(found)
        return [
            [team_reward(episodes[number]) - fmean(instead[number, n]) for n in range(len(turns))]
            for number, turns in enumerate(responses)
        ]

    return credit
