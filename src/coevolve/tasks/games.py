"""Task ``game``: two agents, two moves each, C and D, and a table of what each agent is paid.

The games are so small that the exact gradient of the expected pay is a finite sum, against which the estimators are
verified. In ``chicken`` paying everybody the team's reward changes where learning ends, in ``harmony`` it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from coevolve.types import Case, Problem, Role, Turn

MODEL = "coevolve-coin"
"""The packaged model of these games. Its tokens C, D, c and d are all moves."""

START = "c"
"""The beginning of every prompt; moves are quoted in capitals."""

_GROUPS = 64

Pays = Mapping[str, tuple[float, float]]
"""Joint move, first role's letter first ("CD") -> what each role is paid."""

Name = Literal["harmony", "chicken", "trust", "harvest"]


def _pays(cc: tuple[float, float], cd: tuple[float, float], dc: tuple[float, float], dd: tuple[float, float]) -> Pays:
    return {"CC": cc, "CD": cd, "DC": dc, "DD": dd}


GAMES: dict[Name, dict[str, Pays]] = {
    "harmony": {"": _pays((5, 5), (4, 3), (3, 4), (0, 0))},
    "chicken": {"": _pays((5, 5), (1, 6), (6, 1), (0, 0))},
    "trust": {"": _pays((3, 3), (0, 4), (1, 2), (2, 0))},
    "harvest": {
        "": _pays((1, 1), (0, 3), (3, 0), (2, 2)),
        "CC": _pays((5, 5), (1, 6), (6, 1), (0, 0)),
        "CD": _pays((2, 1), (3, 2), (0, 0), (1, 0)),
        "DC": _pays((1, 2), (0, 0), (2, 3), (0, 1)),
        "DD": _pays((0, 0), (1, 0), (0, 1), (1, 1)),
    },
}
"""Game -> joint moves so far ("" before the first) -> pays of the next joint move."""


class Game:
    """One game of ``GAMES``: all problems are the same game, and each is one group of episodes to compare.

    harmony, chicken: arXiv 2508.04652, figure "utility spaces". The team's optimum is both C. In harmony C is best
    whatever the other does; in chicken the optimum (5, 5) is no equilibrium, since D against C is paid 6. trust: for
    ``chain``; the second role hears the first one's move, and earns most by answering C with D. harvest: two turns, for
    ``rounds`` or ``tree`` with ``feedback: true``; taking (D) pays more at once and leaves less for the second turn,
    whose table depends on the first joint move.

    A response is one token (``sampling.max_new_tokens: 1``) of the model ``coevolve-coin``: C or D, in either case. The
    team has two roles. The feedback is the joint move. Each agent is rewarded with its own pay; the algorithm's credit
    decides whether it learns from that or from the team's mean.
    """

    solo = False
    asks: tuple[str, ...] = ()

    def __init__(self, *, game: Name) -> None:
        if game not in get_args(Name):
            raise ValueError(f"task: no game {game!r}; there are {', '.join(get_args(Name))}")
        self.pays = GAMES[game]
        self.train: Sequence[Problem] = [Problem(f"{game} {i}") for i in range(_GROUPS)]
        self.test: Sequence[Problem] = [Problem(f"{game} test")]

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> str:
        """Return c, then the moves and feedback that were heard: "cCCD" after the own move C and the feedback CD."""
        return START + "".join(part if isinstance(part, str) else move(part) for part in heard)

    def feedback(self, p: Problem, turns: Sequence[Turn]) -> list[str]:
        """Return the joint move, the same for every turn."""
        return [_joint(turns)] * len(turns)

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        """Return each turn's own pay. Raises ValueError for a response that is no move, or one turn too many."""
        return [list(map(float, self._matrix(case)[_joint(case.turns)])) for case in cases]

    def _matrix(self, case: Case) -> Pays:
        """Return the pays of the next joint move, given the earlier ones; a game of one turn starts anew."""
        before = "".join(map(_joint, case.history)) if len(self.pays) > 1 else ""
        if before not in self.pays:
            raise ValueError("task: this game has two turns; use `rounds` or `tree` with n: 2")
        return self.pays[before]


def move(turn: Turn) -> str:
    """Return the turn's move, C or D. Raises ValueError if it is neither."""
    said = turn.text.upper()
    if said not in ("C", "D"):
        raise ValueError(f"role {turn.role!r} said {turn.text!r}, no move; use model {MODEL} and max_new_tokens: 1")
    return said


def _joint(turns: Sequence[Turn]) -> str:
    if len(turns) != 2:
        raise ValueError(f"task: a game is for two, and {len(turns)} act together here; give `roles` two")
    return "".join(map(move, turns))
