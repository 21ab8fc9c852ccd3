"""Signal handlers that stay what they are, although ``ray.cluster_utils.Cluster`` installs its own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Restore the handlers of Ctrl-C and of SIGTERM after this context."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
