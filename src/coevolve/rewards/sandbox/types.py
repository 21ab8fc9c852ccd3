"""What goes into the sandbox and what comes out: a program with its tests, and a verdict per test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["passed", "failed", "error", "timeout", "memory", "forbidden", "crashed", "skipped"]
"""How a test ended: passed; an assertion was false; another exception; out of time; out of memory; something that the
sandbox does not allow; the interpreter died; not run, because an earlier one did not pass and that was asked for."""


@dataclass(frozen=True, slots=True)
class Program:
    """Untrusted code and what it is tried on.

    code: what is judged, run where it can do no harm. tests: asserts, or ``def check(candidate)`` with them in its
    body; each statement of the top level (of ``check`` where there is one) that holds an assert, or calls for nothing
    else a function of the tests that does, is one test, the others are run in between; an assert of a constant tests
    nothing and is none, and one that never runs (in a class, say) is an error. entry: what ``candidate`` calls.
    prelude: trusted code that the tests use, run beside them (imports, helpers that a prompt defines). setup: code that
    needs the solution's own names, run after it and before the tests; the tests see what it defines.

    Tests see plain data: numbers, strings, bytes, None, lists, tuples, sets and dicts of them. Any other object stays
    with the solution: a test can hand it back, call it, iterate over an iterator, and ask whether it is true.
    """

    code: str
    tests: str
    entry: str
    prelude: str = ""
    setup: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one test ended. test: its source. error: the exception's type; message: its text, shortened; line: where in
    ``Program.code`` it was raised, from 1, if it was raised there. All three are the solution's own word.
    """

    kind: Kind
    test: str
    error: str | None = None
    message: str = ""
    line: int | None = None
