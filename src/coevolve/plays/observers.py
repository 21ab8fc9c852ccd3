"""One speaks, and another one answers several times having heard it: the expected reward of a partner, by samples."""

from __future__ import annotations

from coevolve.play import Roles, score, together
from coevolve.plays.between import Several
from coevolve.settings import checked_call
from coevolve.types import Play, Problem


@checked_call("play")
def observers(m: Several) -> Play:
    """A chain of two whose second role answers m times, each answer paid together with the first one's.

    With ``credit: team_return`` the pioneer answers for the mean over its observers instead of one of them, an estimate
    of E[r2 | a1] with a variance of a sample / m; the observers, who share what they heard, are each other's peers: a
    frozen context in which one turn is said again. It costs m answers where ``chain`` costs one. With a pioneer's
    credit of variance s1, s2 of which is the observer's luck, as many answers say most at m = sqrt(s2 / (s1 - s2)),
    which was 1.04 and 0.34 where it was measured, so one observer (docs/choosing.md). Raises ValueError for m < 2 and
    for other than two roles.
    """

    async def play(p: Problem, team: Roles) -> None:
        if len(team) != 2:
            raise ValueError(f"observers is for two roles, this team has {len(team)}; use chain")
        pioneer, observer = team
        first = await team[pioneer]()
        answers = await together(*(team[observer](first, peers=0, weight=1 / m) for _ in range(m)))
        await together(*(score(team, [first, answer], after=()) for answer in answers))

    return play
