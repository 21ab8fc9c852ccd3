"""Only the best of k joint responses is continued: MAGRPO's first multi-turn rollout, and best-of-k sampling."""

from __future__ import annotations

from coevolve.play import Feedback, Roles, together
from coevolve.plays.between import Several, best_scored, heard_next, notes, silence
from coevolve.settings import Count, Positive, checked_call
from coevolve.types import Play, Problem, Turn


@checked_call("play")
def best_of(n: Count, k: Several, feedback: bool | Feedback = False, weights: list[Positive] | None = None) -> Play:
    """Play n joint turns; at each, every agent samples k responses, and the best of the k joints is continued.

    A turn's return has the reward of its own joint only (later rewards would credit the chosen joint with a future that
    the others did not have). weights: the weight of each of the n turns in the gradient, 1 each if None; MAGRPO's first
    release had [1.2, 0.8]. feedback: as in ``rounds``. ``members`` are further episodes, each compared within itself
    only. Raises ValueError for n < 1, k < 2, or another number of weights.
    """
    if weights is not None and len(weights) != n:
        raise ValueError(f"play: weights are {weights}; want {n}, one per turn")
    counts = weights or [1.0] * n

    async def play(p: Problem, team: Roles) -> None:
        heard, best = silence(team), tuple[Turn, ...]()
        for turn in range(n):
            says = (team[role](*heard[role], peers=turn, weight=counts[turn] / k) for role in team for _ in range(k))
            said = await together(*says)
            joints = list(zip(*(said[first : first + k] for first in range(0, len(said), k)), strict=True))
            best = await best_scored(team, joints, best)
            if turn + 1 < n:
                heard = heard_next(heard, best, await notes(feedback, team, p, best))

    return play
