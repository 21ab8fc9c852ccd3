"""Where policies work: devices side by side, processes, threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from coevolve.types import PolicyName

P = TypeVar("P")
T = TypeVar("T")


def side_by_side(
    policies: Mapping[PolicyName, P],
    names: Collection[PolicyName],
    work: Callable[[list[PolicyName]], Mapping[PolicyName, T]],
    place: Callable[[P], object],
) -> dict[PolicyName, T]:
    """What ``work`` finds for each name, in the order of the names. It is called once per place, with those there.

    Several places have a thread each. If one fails the others finish first, and the first place's error is raised.
    """
    by_place: dict[object, list[PolicyName]] = {}
    for name in names:
        by_place.setdefault(place(policies[name]), []).append(name)
    if len(by_place) <= 1:
        parts = [work(there) for there in by_place.values()]
    else:
        # A new thread does not know how many threads PyTorch was told to use.
        cores = (torch.get_num_threads(),)
        with ThreadPoolExecutor(len(by_place), initializer=torch.set_num_threads, initargs=cores) as threads:
            parts = list(threads.map(work, by_place.values()))
    found = {name: value for part in parts for name, value in part.items()}
    return {name: found[name] for name in names}
