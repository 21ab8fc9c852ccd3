"""Devices work side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from coevolve.policies.policy import LocalPolicy
from coevolve.types import PolicyName

T = TypeVar("T")


def side_by_side(
    policies: Mapping[PolicyName, LocalPolicy],
    names: Collection[PolicyName],
    work: Callable[[list[PolicyName]], Mapping[PolicyName, T]],
) -> dict[PolicyName, T]:
    """What ``work`` finds for each name, in the order of the names. It is called once per device, with those there.

    Several devices have a thread each. If one fails the others finish first, and the first device's error is raised.
    """
    by_device: dict[torch.device, list[PolicyName]] = {}
    for name in names:
        by_device.setdefault(policies[name].device, []).append(name)
    if len(by_device) <= 1:
        parts = [work(there) for there in by_device.values()]
    else:
        # A new thread does not know how many threads PyTorch was told to use.
        cores = (torch.get_num_threads(),)
        with ThreadPoolExecutor(len(by_device), initializer=torch.set_num_threads, initargs=cores) as threads:
            parts = list(threads.map(work, by_device.values()))
    found = {name: value for part in parts for name, value in part.items()}
    return {name: found[name] for name in names}
