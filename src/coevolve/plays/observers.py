"""One role speaks and a second answers several times: samples of the partner's reward, to estimate its expectation."""

from __future__ import annotations

from coevolve.play import Roles, score, together
from coevolve.plays.between import Several
from coevolve.settings import checked_call
from coevolve.types import Play, Problem


@checked_call("play")
def observers(m: Several) -> Play:
    """Play a chain of two roles whose second answers m times, each answer scored together with the first role's turn.

    With ``credit: team_return`` the pioneer's credit is the mean over m answers, an estimate of E[r2 | a1] with 1 / m
    of the variance of a single one. The answers, which share their prompt, are each other's peers: one turn resampled
    in a frozen context. It costs m answers where ``chain`` costs one. If the pioneer's credit has variance s1, of which
    s2 comes from the observer's sampling, a fixed number of answers is used best at m = sqrt(s2 / (s1 - s2)), which was
    1.04 and 0.34 where it was measured, so one observer (docs/choosing.md). Raises ValueError for m < 2 and unless
    there are two roles.
    """

    async def play(p: Problem, team: Roles) -> None:
        if len(team) != 2:
            raise ValueError(f"observers is for two roles, this team has {len(team)}; use chain")
        pioneer, observer = team
        first = await team[pioneer]()
        answers = await together(*(team[observer](first, peers=0, weight=1 / m) for _ in range(m)))
        await together(*(score(team, [first, answer], after=()) for answer in answers))

    return play
