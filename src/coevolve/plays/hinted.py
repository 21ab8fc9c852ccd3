"""All roles answer alone, then again having heard the others: knowledge transfer for training only."""

from __future__ import annotations

from coevolve.play import Roles, score, together
from coevolve.settings import checked_call
from coevolve.types import Play, Problem


@checked_call("play")
def hinted() -> Play:
    """Let all roles answer at once, as in ``rounds``, then each again having heard the others' first answers; a second
    answer is scored together with the others' first ones.

    CORY's knowledge transfer (arXiv 2410.06101) for agents that act alone when they are used (MAGRPO, arXiv
    2508.04652): a second answer knows the answers it is combined with, and ``hindsight`` learns it after the prompt
    without these, where its expected gradient is that of acting alone. Only joints of first answers measure the team
    acting alone: ``coevolve eval RUN --play rounds``. N agents have 2 N turns and N + 1 joints. For credit use
    ``first_joint``: a first answer should not get the rewards of others' second answers. Raises ValueError for a team
    of one role.
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
