"""Work in a thread that nobody has to wait for, since it may hang in a library that takes no interrupt."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from coevolve.faults import ShortageError

T = TypeVar("T")


class Beside(Generic[T]):
    """Work that has begun in a thread. ended: set when it has. failed: its error, if it ended with one. stays: keep the
    thread, for work that starts processes which Linux ends together with it."""

    def __init__(self, work: Callable[[], T], stays: bool = False) -> None:
        self._stays = stays
        self.ended, self._work = threading.Event(), work
        self.failed: Exception | None = None
        self._found: T | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._found = self._work()
        except Exception as error:  # noqa: BLE001 (raised by who waits)
            self.failed = error
        except BaseException as error:  # noqa: BLE001 (of a library that ends the program: no result, so no success)
            self.failed = RuntimeError(f"{type(error).__name__} {error}".strip())
        finally:
            self.ended.set()
            if self._stays:
                threading.Event().wait()

    def found(self, seconds: float, late: str) -> T:
        """Return its result, or raise its error. Raises ShortageError, in the words of ``late``, after ``seconds``."""
        if not self.ended.wait(seconds):
            raise ShortageError(f"{late} within {seconds:g} s")
        if self.failed is not None:
            raise self.failed
        return cast(T, self._found)
