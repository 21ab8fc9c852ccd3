"""Roles speak one after the other, each hearing all before: with (pioneer, observer) it is CORY, with one role PPO."""

from __future__ import annotations

from coevolve.play import Roles, score, speaks_once
from coevolve.settings import checked_call
from coevolve.types import Play, Problem, Turn


@checked_call("play")
def chain(transfer: bool = True) -> Play:
    """Let roles speak in order, each hearing all turns before, and score them together at the end.

    transfer=False is CORY's ablation "no knowledge transfer" (arXiv 2410.06101, section 4.3): no role hears another.
    """

    @speaks_once
    async def play(p: Problem, team: Roles) -> None:
        said: list[Turn] = []
        for role in team:
            said.append(await team[role](*(said if transfer else ())))
        await score(team, said)

    return play
