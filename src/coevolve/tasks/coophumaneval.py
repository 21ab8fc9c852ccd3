"""Task ``coophumaneval``: problems that divide well between a helper and the function that calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coevolve.tasks import data
from coevolve.tasks.coding import Bounds, splits
from coevolve.tasks.coding_feedback import REPORT
from coevolve.tasks.data import Later
from coevolve.tasks.humaneval import VOICES, OfCode, problems
from coevolve.tasks.scoring import Scoring

CONTRADICTORY = tuple(f"CoopHumanEval/{number}" for number in (2, 12, 30, 45, 50))
"""Problems whose tests contradict their prompts. ``valid_date``: dates are mm-dd-yyyy in the prompt and dd-mm-yyyy in
the tests. ``is_multiply_prime``: the prompt asks for True for products of three primes, the tests want False for
45 = 3 * 3 * 5, 12 = 2 * 2 * 3 and 105 = 3 * 5 * 7. ``odd_even_sum_numbers``: the digits of 11 have an even sum, and the
tests begin at 13. ``prime_ascii_sum_words``: the tests want ``hi``, whose sum is 209 = 11 * 19. ``can_form_polygon``:
the angles of ten sides sum to 1440, and the tests want True for 1400."""


class CoopHumanEval(OfCode):
    """MAGRPO's CoopHumanEval task (arXiv 2508.04652): roles ``aux`` and ``main``, or ``coder`` alone.

    The 82 problems are ``coop_humaneval`` in the folder that COEVOLVE_DATA names, else the hub's
    OpenMLRL/CoopHumanEval. train, test: rows [first, end), end null for all that follow. drop_contradictory: leave out
    the problems whose tests contradict their prompts, ``CONTRADICTORY``, which no right answer can solve; the first two
    are among the paper's test problems. feedback, scoring, bonuses, sandbox: see ``tasks.coding.Coding``.
    ``Problem.data``, the notes, the deviations and the errors are those of ``HumanEval``.
    """

    def __init__(
        self,
        *,
        train: Bounds = (16, None),
        test: Bounds = (0, 16),
        drop_contradictory: bool = False,
        feedback: str | dict[str, Any] | Callable[..., Any] = REPORT,
        scoring: Scoring = "ours",
        bonuses: bool = True,
        sandbox: dict[str, Any] | None = None,
    ) -> None:
        learnt, held_out = splits(Later(lambda: problems(_rows(), "coophumaneval")), train, test)
        dropped = CONTRADICTORY if drop_contradictory else ()
        super().__init__(
            train=Later(lambda: [p for p in learnt if p.id not in dropped]),
            test=Later(lambda: [p for p in held_out if p.id not in dropped]),
            voices=VOICES,
            feedback=feedback,
            scoring=scoring,
            bonuses=bonuses,
            sandbox=sandbox,
        )


def _rows() -> list[data.Row]:
    return data.rows("coop_humaneval", dataset="OpenMLRL/CoopHumanEval", split="test")
