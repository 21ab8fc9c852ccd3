"""The process behind ``rewards.equivalence``: a line of JSON [answer, numerator, denominator] in, a line 1 or 0 out.

Runs as a script, imports nothing of Coevolve, and ends at the end of its input.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys

from math_verify import parse, verify
from sympy import Rational

SECONDS = 3
BYTES = 2 << 30


def judge(line: str) -> bool:
    """Return whether the answer equals the number. When the time is up, the kernel ends the process, whatever it does.

    The limit is on processor time, so that a busy machine gives the same verdicts.
    """
    text, numerator, denominator = json.loads(line)
    text = text.replace("\N{MINUS SIGN}", "-")  # which math-verify does not read as a sign
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    # math-verify's own time limits are off: Python handles their signals only between two of its instructions.
    verdict = verify([Rational(numerator, denominator)], parse(text, parsing_timeout=None), timeout_seconds=None)
    signal.setitimer(signal.ITIMER_PROF, 0)
    return bool(verdict)


if __name__ == "__main__":
    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("ready", flush=True)
    for line in sys.stdin:
        print(int(judge(line)), flush=True)
