"""Credit against what the agent said in other episodes: its partners' responses stay, its own is another one."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from coevolve.credit.at_once import groups_of, paid, responses_of, would_be_paid
from coevolve.settings import checked_call
from coevolve.types import Credit, Episode, Reward


@checked_call("algorithm.credit")
def counterfactual() -> Credit:
    """The pay of a joint response less its mean pay with the agent's other responses to the same problem in place of
    this one, the partners' fixed (COMA's baseline, arXiv 1705.08926, by samples instead of a critic).

    The baseline is in it and is unbiased, so the algorithm wants none: ``mareinforce``. For plays where all speak at
    once, once (``rounds``). Nothing more is sampled; of G members and N agents N G (G - 1) further joint responses are
    paid. With pay mu + A_i + B_j + C_ij its variance has no B, but C is not averaged out as ``crossed`` does: the
    variance is A + C times G / (G - 1). Raises ValueError for another play, and where a problem has one member.
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
            [paid(episodes[number]) - fmean(instead[number, n]) for n in range(len(turns))]
            for number, turns in enumerate(responses)
        ]

    return credit
