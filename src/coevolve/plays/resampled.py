"""Each agent's response is resampled with the others' fixed: groups that differ in one agent's turn only."""

from __future__ import annotations

from coevolve.play import Feedback, Roles, together
from coevolve.plays.between import Several, best_scored, heard_next, notes, silence
from coevolve.settings import Count, checked_call
from coevolve.types import Play, Problem, Turn


@checked_call("play")
def resampled(k: Several, n: Count = 1, feedback: bool | Feedback = False) -> Play:
    """Play n joint turns; at each, every agent samples k responses, and the best of the scored joints is continued.

    The first responses of all agents are one joint. In each other joint one agent's response is replaced by another of
    its k, with its partners' the same, so that the rewards of an agent's k responses differ by its own response only:
    with a leave-one-out baseline (``marloo``) and ``credit: first_joint`` this is the counterfactual credit of a frozen
    context (C3, arXiv 2603.06859), and with several turns sampling per agent and turn with the best continued (AT-GRPO,
    arXiv 2510.11062), for agents that act at once. Per joint turn N agents sample N k turns, and N (k - 1) + 1 joints
    are scored. A return has the reward of its own joint only, as in ``best_of``; feedback: as in ``rounds``.
    ``members`` are further episodes, each compared within itself only. Raises ValueError for n < 1 or k < 2.
    """

    async def play(p: Problem, team: Roles) -> None:
        heard, best = silence(team), tuple[Turn, ...]()
        for turn in range(n):
            said = await together(
                *(team[role](*heard[role], peers=turn, weight=1 / k) for role in team for _ in range(k))
            )
            by_role = [said[first : first + k] for first in range(0, len(said), k)]
            joints = _one_changed([tuple(turns) for turns in by_role])
            best = await best_scored(team, joints, best)
            if turn + 1 < n:
                heard = heard_next(heard, best, await notes(feedback, team, p, best))

    return play


def _one_changed(by_role: list[tuple[Turn, ...]]) -> list[tuple[Turn, ...]]:
    """Return the joint of all first turns; then, role by role, that joint with each of the role's other turns."""
    first = tuple(turns[0] for turns in by_role)
    changed = ((*first[:n], other, *first[n + 1 :]) for n, turns in enumerate(by_role) for other in turns[1:])
    return [first, *changed]
