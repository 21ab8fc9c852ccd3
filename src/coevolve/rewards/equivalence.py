"""Mathematical equality of an answer and the right number, by the package math-verify in a process of its own.

math-verify reads what the rule of ``rewards.numbers`` does not: LaTeX, boxed answers, formulas. Formulas can take for
ever or all memory, and the package's own time limit is a signal, which works in the main thread only and does not stop
arithmetic on huge numbers. So a guest process does the work, and the kernel kills it when it takes too much.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

from coevolve.faults import ShortageError

_ENDS = 5.0
"""Seconds for a guest that has closed its output to end."""
_GUEST = Path(__file__).with_name("equivalence_guest.py")


class MathVerify:
    """A function (answer, right number) -> whether math-verify finds them equal. May be called from any thread.

    An answer that takes more than 3 seconds of processor time or 2 GiB counts as wrong. Raises ValueError if the
    package is missing or does not start, ShortageError if its process is killed as it starts.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ValueError("judge math-verify needs the package math-verify; pip install 'coevolve[math]'")
        self._lock = threading.Lock()
        self._guest: subprocess.Popen[str] | None = None

    def __call__(self, text: str, gold: Fraction) -> bool:
        with self._lock:
            if self._guest is not None and self._guest.poll() is not None:  # killed while it had nothing to do
                self.close()
            if self._guest is None:
                self._guest = _started()
            verdict = _asked(self._guest, json.dumps([text, gold.numerator, gold.denominator]))
            if verdict is None:  # the guest was killed while it worked on this answer
                self.close()
        return verdict == "1"

    def close(self) -> None:
        """End the guest process; the next call starts another."""
        if self._guest is not None:
            self._guest.kill()
            self._guest.communicate()
            self._guest = None


def _started() -> subprocess.Popen[str]:
    # -P keeps the guest's folder off sys.path: some of its modules are named like those of the standard library.
    guest = subprocess.Popen(
        [sys.executable, "-P", str(_GUEST)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    if _line(guest) != "ready":
        with suppress(subprocess.TimeoutExpired):
            guest.wait(_ENDS)
        killed = guest.returncode == -signal.SIGKILL
        guest.kill()
        guest.communicate()
        if killed:
            raise ShortageError(
                "math-verify's process was killed as it started, perhaps for want of memory; end what else needs it"
            )
        raise ValueError("math-verify does not start; pip install --force-reinstall 'coevolve[math]'")
    return guest


def _asked(guest: subprocess.Popen[str], question: str) -> str | None:
    """Send a question to the guest and return its answer; None if it died."""
    assert guest.stdin is not None
    try:
        guest.stdin.write(question + "\n")
        guest.stdin.flush()
    except BrokenPipeError:
        return None
    return _line(guest)


def _line(guest: subprocess.Popen[str]) -> str | None:
    assert guest.stdout is not None
    return guest.stdout.readline().strip() or None
