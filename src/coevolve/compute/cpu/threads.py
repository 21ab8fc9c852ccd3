"""Threads for the parts of one large operation. Which numbers come out never depends on how many threads there are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache

from coevolve.runtime.cores import cores
from coevolve.runtime.placement import product_threads, thread_pool

SHARE = 1 << 20
"""The least number of weights, or of other numbers that take as long, per thread, except for the last one's."""


def count(numbers: int) -> int:
    """Return the number of threads for an operation on so many numbers, at least one."""
    return max(1, min(product_threads(), numbers // SHARE))


def run(parts: Sequence[Callable[[], None]]) -> None:
    """Run all parts concurrently, the first one in this thread."""
    first, *rest = parts
    others = [_pool(os.getpid()).submit(part) for part in rest]
    try:
        first()
    finally:  # nothing is written any more once an error is raised
        wait(others)
    for other in others:
        other.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the threads. They are kept because starting one takes as long as a small part, and by process because a
    fork has none."""
    return thread_pool(cores(), "product")
