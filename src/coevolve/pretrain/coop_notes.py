"""Training documents with second turns: an own answer, the task's feedback (note) on it, and a revised answer that is
more often right."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from coevolve.pretrain.coop_answers import AUX, Answer, aux, coder, main
from coevolve.pretrain.coop_documents import ALONE, WRITE, again, drawn, first
from coevolve.rewards.code import Grade, Job, grade
from coevolve.rewards.sandbox import Program, Verdict
from coevolve.tasks.coding_feedback import MODES, Notes, Seen
from coevolve.tasks.worlds.coop import ENTRY, Wanted
from coevolve.tasks.worlds.coop_prompts import NOTES
from coevolve.tasks.worlds.split import Split

KEEPS = 0.9  # share of the good answers that are repeated unchanged
HEEDS = 0.5  # share of the other answers that are revised without a flaw, as the note says; the rest are drawn anew
MODE_WEIGHTS = {"report": 0.7, "levels": 0.1, "passed": 0.1, "plain": 0.1}

_NOTES = Notes(**NOTES)


def noted(rng: Random, count: int, split: Split) -> list[str]:
    """Return ``count`` second turns of a split, each after the role's own first turn and a note on it."""
    return [_coder(rng, p) if rng.random() < ALONE else _pair(rng, p) for p in drawn(rng, count, split)]


class Trusted:
    """A stand-in for the sandbox that runs this package's own code in this process; never for a model's code."""

    def run(self, programs: Sequence[Program]) -> list[tuple[Verdict, ...]]:
        """Run programs as ``Sandbox.run`` does, for tests of one assert per line; no limits, no messages."""
        return [_run(program) for program in programs]


def _run(program: Program) -> tuple[Verdict, ...]:
    space: dict[str, object] = {}
    exec(program.code, space)
    tests = program.tests.splitlines()
    return tuple(Verdict("passed" if _passes(test, space[program.entry]) else "failed", test) for test in tests)


def _passes(test: str, candidate: object) -> bool:
    try:
        exec(test, {"candidate": candidate})
    except (AssertionError, ArithmeticError, NameError, TypeError, RecursionError):
        return False
    return True


def _pair(rng: Random, problem: Wanted) -> str:
    helper, caller = aux(rng, problem), main(rng, problem)
    found = _graded(problem, {"aux": helper.text, "main": caller.text})
    if rng.random() < 0.5:
        return _document(rng, problem, "aux", helper, found, _better_aux(rng, problem, helper))
    return _document(rng, problem, "main", caller, found, _better_main(rng, problem, caller, found))


def _coder(rng: Random, problem: Wanted) -> str:
    answer = coder(rng, problem)
    found = _graded(problem, {"main": answer.text})
    return _document(rng, problem, "coder", answer, found, coder(rng, problem, flawed=False))


def _graded(problem: Wanted, answers: dict[str, str]) -> Grade:
    return grade([Job(ENTRY, problem.tests)], [answers], Trusted())[0]


def _document(rng: Random, problem: Wanted, role: str, own: Answer, found: Grade, better: Answer) -> str:
    mode = rng.choices(list(MODE_WEIGHTS), list(MODE_WEIGHTS.values()))[0]
    note = MODES[mode](_NOTES, Seen(role, own.text, ENTRY, found)) + "\n\n"
    good = found.parts()["return"] == 1 or (role == "coder" and found.parts()["solved"] == 1)
    if good:
        revised = own if rng.random() < KEEPS else WRITE[role](rng, problem)
    else:
        revised = better if rng.random() < HEEDS else WRITE[role](rng, problem)
    return first(problem, role) + again(own, note) + revised.text


def _better_aux(rng: Random, problem: Wanted, own: Answer) -> Answer:
    """Draw a helper without a flaw: with probability one half of its own convention, else of any."""
    convention = own.convention if rng.random() < 0.5 else rng.choice(list(AUX[problem.kind]))
    return aux(rng, problem, convention, flawed=False)


def _better_main(rng: Random, problem: Wanted, own: Answer, found: Grade) -> Answer:
    """Draw a main function without a flaw: of its own convention, or if it ignored aux or only returned its result, one
    that works on the result of aux."""
    mend = not found.calls_aux or found.wrapper or found.ignored
    shared = "finish" if problem.kind == "decomposable" else "all"
    return main(rng, problem, shared if mend else own.convention, flawed=False)
