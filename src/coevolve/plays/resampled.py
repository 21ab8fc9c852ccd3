"""An agent's turn said several times beside the same turns of the others: groups of one agent's turn."""

from __future__ import annotations

from coevolve.play import Feedback, Roles, together
from coevolve.plays.between import Several, best_scored, heard_next, notes, silence
from coevolve.settings import Count, checked_call
from coevolve.types import Play, Problem, Turn


@checked_call("play")
def resampled(k: Several, n: Count = 1, feedback: bool | Feedback = False) -> Play:
    """n turns; at each, every agent samples k responses, and the best joint that was paid is what all hear next.

    The first responses of all are one joint. In the others one agent's response is another one and its partners' are
    the same, so that an agent's k responses differ in pay by what it said alone: with a leave-one-out baseline
    (``marloo``) and ``credit: first_joint`` the counterfactual credit of a frozen context (C3, arXiv 2603.06859), and
    over several turns sampling by agent and turn with the best going on (AT-GRPO, arXiv 2510.11062), for agents that
    act at once. N agents say N k turns at each, and N (k - 1) + 1 joints are paid. Each turn is paid its own joint
    only, as in ``best_of``; feedback: as in ``rounds``. ``members`` are further interactions, each compared within
    itself only. Raises ValueError for n < 1 or k < 2.
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
    """The first turn of every role; then, role by role, each of its other turns in place of its first."""
    first = tuple(turns[0] for turns in by_role)
    changed = ((*first[:n], other, *first[n + 1 :]) for n, turns in enumerate(by_role) for other in turns[1:])
    return [first, *changed]
