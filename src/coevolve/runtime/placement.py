"""Devices work side by side, and policies that work in processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from coevolve.learners.local import LocalPolicy
from coevolve.runtime.pool import cores
from coevolve.types import PolicyName

T = TypeVar("T")

_THREADS = 64
"""So many PyTorch may have on any machine; more only where there are cores for them."""


def set_threads(count: int) -> None:
    """Let PyTorch compute with so many threads. Raises ValueError for more than this machine could use: those that it
    cannot start end the process without a word."""
    most = max(_THREADS, cores())
    if not 1 <= count <= most:
        raise ValueError(f"threads is {count}; want 1 to {most} on this machine of {cores()} cores")
    torch.set_num_threads(count)


def device(policy: LocalPolicy) -> object:
    """Where it samples."""
    return policy.device


def desk(policy: LocalPolicy) -> object:
    """Where it learns: processes of its own, or its device."""
    return policy.away or policy.device


def side_by_side(
    policies: Mapping[PolicyName, LocalPolicy],
    names: Collection[PolicyName],
    work: Callable[[list[PolicyName]], Mapping[PolicyName, T]],
    place: Callable[[LocalPolicy], object] = device,
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
