"""One after the other, each hearing all before: one role is PPO, (pioneer, observer) is CORY, N roles a chain."""

from __future__ import annotations

from coevolve.play import Roles, score, speaks_once
from coevolve.settings import checked_call
from coevolve.types import Play, Problem, Turn


@checked_call("play")
def chain(transfer: bool = True) -> Play:
    """Roles speak in order and are scored together at the end.

    transfer=False is CORY's ablation "no knowledge transfer" (arXiv 2410.06101, section 4.3): nobody hears anybody.
    """

    @speaks_once
    async def play(p: Problem, team: Roles) -> None:
        said: list[Turn] = []
        for role in team:
            said.append(await team[role](*(said if transfer else ())))
        await score(team, said)

    return play
