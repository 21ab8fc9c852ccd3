"""A share of problems held out of training, drawn by a seed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from coevolve import noise
from coevolve.types import Problem

Asked = Callable[[Problem], object]
"""What a problem asks; problems that ask the same are one, whatever their ids."""


def split(problems: Sequence[Problem], share: float, seed: int, asked: Asked) -> tuple[list[Problem], list[Problem]]:
    """All but this share, and the share (at least one), both in the order of the rows.

    Problems that ask the same are on the same side, so that nothing held out is trained on. Raises ValueError for a
    share that leaves nothing on a side.
    """
    if not 0 < share < 1:
        raise ValueError(f"task.test is {share}; want a file, a hub data set, or a fraction between 0 and 1")
    alike: dict[str, list[Problem]] = {}
    for problem in problems:
        alike.setdefault(repr(asked(problem)), []).append(problem)
    count = max(1, round(share * len(alike)))
    if count >= len(alike):
        told = "rows" if len(alike) == len(problems) else f"different rows, among {len(problems)},"
        raise ValueError(f"task.test: {share} of {len(alike)} {told} leaves none to train on; lower it or add rows")
    places = noise.permutation(len(alike), "held out", seed)[:count]
    asks = list(alike)
    kept_apart = {id(problem) for place in places for problem in alike[asks[place]]}
    return (
        [problem for problem in problems if id(problem) not in kept_apart],
        [problem for problem in problems if id(problem) in kept_apart],
    )


def warn_of_shared(train: Sequence[Problem], held_out: Sequence[Problem], asked: Asked) -> None:
    """Warn where problems of a test set of its own are trained on, too."""
    trained = {repr(asked(problem)) for problem in train}
    if shared := sum(repr(asked(problem)) in trained for problem in held_out):
        warnings.warn(
            f"{shared} of {len(held_out)} held-out problems are trained on, too: a row of task.data asks the same. "
            "What is measured on them is not held out",
            stacklevel=2,
        )
