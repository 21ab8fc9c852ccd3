"""Diagnosis of casts: the same policies in other roles, and each policy alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from coevolve.diagnose.paired import Numbers
from coevolve.diagnose.scene import Row, Scene, condition
from coevolve.evaluate import team_name
from coevolve.plays import chain
from coevolve.types import PolicyName, Role

_EVERY_ORDER = 3
"""Number of roles up to which every permutation is tried; with more, only the cyclic shifts."""


def alone(scene: Scene, base_PM: Numbers) -> Iterator[Row]:
    """Yield a row for each policy alone in the first role, hearing nothing; none where the task is not ``solo``."""
    if len(scene.cast) == 1 or not getattr(scene.task, "solo", True):
        return
    first = next(iter(scene.cast))
    for name in dict.fromkeys(scene.cast.values()):
        found = condition(replace(scene, play=chain(), cast={first: name}), base_PM)
        yield {"kind": "alone", "setting": "alone", "role": first, "policy": name, **found}


def swapped(scene: Scene, base_PM: Numbers) -> Iterator[Row]:
    """Yield a row for every other assignment of the team's policies to its roles."""
    for cast in permutations(scene.cast):
        found = condition(replace(scene, cast=cast), base_PM)
        yield {"kind": "swap", "setting": _seats(cast), "role": "all", "policy": team_name(cast), **found}


def permutations(cast: Mapping[Role, PolicyName]) -> list[dict[Role, PolicyName]]:
    """Return every other cast of these policies: all permutations up to three roles, cyclic shifts of more."""
    names = list(cast.values())
    if len(names) <= _EVERY_ORDER:
        orders = list(itertools.permutations(names))
    else:
        orders = [(*names[shift:], *names[:shift]) for shift in range(len(names))]
    return [dict(zip(cast, order, strict=True)) for order in dict.fromkeys(orders) if list(order) != names]


def _seats(cast: Mapping[Role, PolicyName]) -> str:
    return ", ".join(f"{role}={policy}" for role, policy in cast.items())
