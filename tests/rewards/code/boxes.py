"""A sandbox that runs nothing."""

from coevolve.rewards.code import Grade, Job, grade
from coevolve.rewards.sandbox import Verdict

AUX = "def aux(x):\n    return x + 1"


class Canned:
    """Every program passes its first ``passed`` tests of ``tests``. seen: the programs of each call."""

    def __init__(self, passed=1, tests=1):
        self.verdicts = tuple(Verdict("passed" if i < passed else "failed", f"assert {i}") for i in range(tests))
        self.seen = []

    def run(self, programs):
        self.seen.append(list(programs))
        return [self.verdicts for _ in programs]


def judged(main, aux=AUX, passed=1, tests=1, **job) -> Grade:
    """A pair's grade; a single agent's where aux is None. The function that is tested is f."""
    texts = {"main": main} if aux is None else {"aux": aux, "main": main}
    [found] = grade([Job("f", "assert candidate(1) == 1", **job)], [texts], Canned(passed, tests))
    return found
