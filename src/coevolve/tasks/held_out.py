"""A share of problems held out of training, drawn by a seed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from coevolve import noise
from coevolve.types import Problem


def split(problems: Sequence[Problem], share: float, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Return all problems but this share, and the share (at least one), both in the order of the rows."""
    if not 0 < share < 1:
        raise ValueError(f"task.test is {share}; want a fraction between 0 and 1")
    count = max(1, round(share * len(problems)))
    if count >= len(problems):
        raise ValueError(f"task.test: {share} of {len(problems)} rows leaves none to train on; lower it or add rows")
    held_out = set(noise.permutation(len(problems), "held out", seed)[:count])
    return (
        [problem for i, problem in enumerate(problems) if i not in held_out],
        [problem for i, problem in enumerate(problems) if i in held_out],
    )


def warn_of_shared(train: Sequence[Problem], held_out: Sequence[Problem], asked: Callable[[Problem], object]) -> None:
    """Warn of held-out problems that ask the same as a training problem. asked: problem -> what it asks; problems for
    which this is empty are left out."""
    trained = {str(asked(problem)) for problem in train}
    shared = sum(bool(what := asked(problem)) and str(what) in trained for problem in held_out)
    if shared:
        warnings.warn(
            f"{shared} of {len(held_out)} held-out problems ask what others that are trained on ask; what is measured "
            "on them is not held out",
            stacklevel=2,
        )
