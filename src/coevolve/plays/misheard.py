"""A chain of two roles whose second sometimes hears wrong numbers: it measures what a wrong reference costs."""

from __future__ import annotations

import dataclasses
import re
from random import Random

from coevolve.play import Roles, score, speaks_once
from coevolve.settings import Fraction, checked_call
from coevolve.types import Play, Problem, Turn


@checked_call("play")
def misheard(rate: Fraction) -> Play:
    """Play ``chain`` with two roles, but with this probability replace every digit that the second role hears.

    CORY claims that a reference helps although it is sometimes wrong (arXiv 2410.06101, section 3.3): rate 0 is
    ``chain``, and with rate 1 no number is ever heard unchanged. For tasks whose answers are numbers. Raises ValueError
    unless there are two roles.
    """

    @speaks_once
    async def play(p: Problem, team: Roles) -> None:
        if len(team) != 2:
            raise ValueError(f"misheard is for two roles, this team has {len(team)}; use chain")
        pioneer, observer = team
        first = await team[pioneer]()
        second = await team[observer](_heard(first, rate, Random(team.seed)))
        await score(team, [first, second])

    return play


def _heard(turn: Turn, rate: float, rng: Random) -> Turn:
    """Return the turn, or with probability ``rate`` a copy in which every digit is another one."""
    if rng.random() >= rate:
        return turn
    text = re.sub("[0-9]", lambda digit: str((int(digit[0]) + rng.randint(1, 9)) % 10), turn.text)
    return dataclasses.replace(turn, text=text)
