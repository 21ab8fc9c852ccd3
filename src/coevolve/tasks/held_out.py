"""A share of problems held out of training, drawn by a seed."""

from __future__ import annotations

from collections.abc import Sequence

from coevolve import noise
from coevolve.types import Problem


def split(problems: Sequence[Problem], share: float, seed: int) -> tuple[list[Problem], list[Problem]]:
    """All but this share, and the share (at least one), both in the order of the rows."""
    if not 0 < share < 1:
        raise ValueError(f"task.test is {share}; want a file, a hub data set, or a fraction between 0 and 1")
    count = max(1, round(share * len(problems)))
    if count >= len(problems):
        raise ValueError(f"task.test: {share} of {len(problems)} rows leaves none to train on; lower it or add rows")
    held_out = set(noise.permutation(len(problems), "held out", seed)[:count])
    return (
        [problem for i, problem in enumerate(problems) if i not in held_out],
        [problem for i, problem in enumerate(problems) if i in held_out],
    )
