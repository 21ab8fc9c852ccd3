"""Everybody answers, then revises having read everybody: the paper's discussion baseline, trainable here."""

from __future__ import annotations

from coevolve.play import Roles, score, together
from coevolve.settings import Count, checked_call
from coevolve.types import Play, Problem, Turn


@checked_call("play")
def discussion(n: Count = 1) -> Play:
    """A round of answers and n rounds of revision, in each of which an agent hears the last turns of all, its own too.

    The last round is scored, and all rounds answer for it (``credit.team_return``). n=1 is the paper's one-round
    discussion (arXiv 2508.04652, baselines). Raises ValueError for n < 1.
    """

    async def play(p: Problem, team: Roles) -> None:
        acts: list[Turn] = []
        for _ in range(1 + n):
            acts = await together(*(team[role](*acts) for role in team))
        await score(team, acts)

    return play
