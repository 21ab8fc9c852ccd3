"""All agents act at once, turn by turn, without seeing each other: MAGRPO (arXiv 2508.04652, algorithm 1)."""

from __future__ import annotations

from coevolve.play import Feedback, Roles, score, speaks_once, together
from coevolve.plays.between import Done, Threshold, heard_next, notes, silence, stops
from coevolve.settings import Count, checked_call
from coevolve.types import Play, Problem


@checked_call("play")
def rounds(n: Count = 1, feedback: bool | Feedback = False, done: Threshold | Done | None = None) -> Play:
    """Play n joint turns, each scored. The ``members`` of a problem are the group in which turns are compared.

    An agent hears its own turns and, after each, a note. feedback: where notes come from: the task's feedback (True), a
    function ``(problem, turns) -> texts``, or empty notes (False). done: a mean reward above which, or a function of
    the joint's rewards by which, the episode ends early. Raises ValueError for n < 1.
    """
    is_done = stops(done)

    async def play(p: Problem, team: Roles) -> None:
        heard = silence(team)
        for turn in range(n):
            acts = await together(*(team[role](*heard[role]) for role in team))
            rewards = await score(team, acts)
            if turn + 1 == n or is_done(rewards):
                return
            heard = heard_next(heard, acts, await notes(feedback, team, p, acts))

    return speaks_once(play) if n == 1 else play
