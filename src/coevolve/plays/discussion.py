"""All roles answer, then revise having heard all answers: MAGRPO's discussion baseline, here also for training."""

from __future__ import annotations

from coevolve.play import Roles, score, together
from coevolve.settings import Count, checked_call
from coevolve.types import Play, Problem, Turn


@checked_call("play")
def discussion(n: Count = 1) -> Play:
    """Play a round of answers and n rounds of revision, before each of which a role hears the last turns of all roles.

    Only the last round is scored, and its return is that of all rounds (``credit.team_return``). n=1 is the one-round
    discussion of MAGRPO's paper (arXiv 2508.04652, baselines). Raises ValueError for n < 1.
    """

    async def play(p: Problem, team: Roles) -> None:
        acts: list[Turn] = []
        for _ in range(1 + n):
            acts = await together(*(team[role](*acts) for role in team))
        await score(team, acts)

    return play
