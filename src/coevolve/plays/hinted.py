"""Everybody answers alone, then once more having read the others: knowledge transfer for training only."""

from __future__ import annotations

from coevolve.play import Roles, score, together
from coevolve.settings import checked_call
from coevolve.types import Play, Problem


@checked_call("play")
def hinted() -> Play:
    """All act at once without seeing each other, as in ``rounds``; then each answers again, having heard what the
    others said, and stands beside just that.

    CORY's knowledge transfer (arXiv 2410.06101) for agents that act alone when they are used (MAGRPO, arXiv
    2508.04652): a second answer knows what it has to go with, and ``hindsight`` learns it behind the prompt without the
    others' answers, where its expected gradient is that of acting alone. Only joints of first answers say what the team
    is worth alone: ``coevolve eval RUN --play rounds``. N agents say 2 N turns and are paid N + 1 joints. For credit
    use ``first_joint``: a first answer is not to be paid for what the others made of it. Raises ValueError for a
    team of one role.
    """

    async def play(p: Problem, team: Roles) -> None:
        if len(team) < 2:
            raise ValueError("hinted is for several roles, who read each other; use rounds for one")
        alone = await together(*(team[role]() for role in team))
        await score(team, alone)
        knowing = await together(*(team[one.role](*(other for other in alone if other is not one)) for one in alone))
        joints = [[*alone[:n], again, *alone[n + 1 :]] for n, again in enumerate(knowing)]
        await together(*(score(team, joint, after=()) for joint in joints))

    return play
