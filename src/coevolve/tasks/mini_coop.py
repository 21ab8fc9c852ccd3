"""Task ``mini-coop``: generated helper-and-main problems in a small subset of Python; the package has all it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, get_args

from coevolve.tasks.coding import Coding
from coevolve.tasks.coding_feedback import REPORT, Notes
from coevolve.tasks.data import Later
from coevolve.tasks.heard import Voice
from coevolve.tasks.worlds.coop import ENTRY, Kind, wanted
from coevolve.tasks.worlds.coop_prompts import AGAIN, BESIDE, FIRST, NOTES
from coevolve.tasks.worlds.split import Split
from coevolve.types import Problem

_KINDS: tuple[Kind, ...] = get_args(Kind)
_PROBLEMS: dict[Split, Mapping[Kind, int]] = {
    "train": {"decomposable": 600, "atomic": 200},
    "test": {"decomposable": 192, "atomic": 64},
}


class MiniCoop(Coding):
    """MAGRPO's coding game (arXiv 2508.04652), small enough for ``coevolve-coop`` on a laptop.

    A problem is a function of a whole number: "f(x): add 3, then multiply by 2" (decomposable), or one such step
    (atomic), with 3 to 5 asserts. ``aux`` writes a helper of that name and ``main`` the function, which may call it; a
    ``coder`` writes all of it alone. No function of pre-training and no training problem has the whole sequence of
    steps of a held-out problem; single steps may recur. There are few functions of one step, so these repeat with other
    tests, which prompts do not show: the 64 held-out problems of that kind are 10 functions.

    kinds: which kinds of problems; by default three decomposable ones to an atomic one. bonuses, feedback, sandbox:
    as in ``Coding``; the notes are a few words, those of pre-training. Raises ValueError for an unknown kind, one given
    twice, or none.
    """

    def __init__(
        self,
        *,
        kinds: Sequence[Kind] = _KINDS,
        bonuses: bool = True,
        feedback: str | dict[str, Any] | Callable[..., Any] = REPORT,
        sandbox: dict[str, Any] | None = None,
    ) -> None:
        if not kinds or len(set(kinds)) < len(kinds) or not set(kinds) <= set(_KINDS):
            raise ValueError(f"task.kinds are {list(kinds)}; want one or more different ones of {', '.join(_KINDS)}")
        super().__init__(
            train=Later(lambda: _problems("train", kinds)),
            test=Later(lambda: _problems("test", kinds)),
            voices={role: Voice(FIRST[role], AGAIN, BESIDE[role]) for role in FIRST},
            notes=Notes(**NOTES),
            bonuses=bonuses,
            feedback=feedback,
            sandbox=sandbox,
        )


def _problems(split: Split, kinds: Sequence[Kind]) -> list[Problem]:
    found = []
    for kind in kinds:
        made = wanted(split, kind, _PROBLEMS[split][kind], Random(f"{split}/{kind}"), distinct=True)
        for number, one in enumerate(made):
            data = {"text": one.text, "entry": ENTRY, "tests": one.tests, "kind": kind}
            found.append(Problem(f"{kind}-{number}: {one.text}", data))
    Random(split).shuffle(found)  # so that the first few are of all kinds
    return found
