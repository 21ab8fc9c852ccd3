"""The sandbox's input and output: a program with its tests, and a verdict per test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["passed", "failed", "error", "timeout", "memory", "forbidden", "crashed", "skipped"]
"""The outcome of a test: passed; an assertion was false; another exception; out of time; out of memory; an operation
that the sandbox forbids; the interpreter died; not run, because an earlier test did not pass (``stop_at_failure``)."""


@dataclass(frozen=True, slots=True)
class Program:
    """Untrusted code and the tests for it.

    code: the solution to be judged, run where it can do no harm. tests: asserts, or ``def check(candidate)`` with them
    in its body. Each top-level statement (of ``check`` if there is one) that holds an assert, or that only calls a
    function of the tests that does, is one test; the other statements run in between. An assert of a constant is no
    test, and an assert that never runs (in a class, for example) is an error. entry: the function that ``candidate``
    calls. prelude: trusted code that the tests use, run beside them (imports, helpers that a prompt defines). setup:
    code that needs the solution's own names, run after it and before the tests, which see its definitions.

    Tests see plain data: numbers, strings, bytes, None, lists, tuples, sets and dicts of them. Any other object stays
    with the solution: a test can pass it back, call it, iterate over it if it is an iterator, and test its truth.
    """

    code: str
    tests: str
    entry: str
    prelude: str = ""
    setup: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one test. test: its source. error: the exception's type; message: its text, shortened; line: the
    line of ``Program.code`` that raised it, from 1, if raised there. All three come from the untrusted solution.
    """

    kind: Kind
    test: str
    error: str | None = None
    message: str = ""
    line: int | None = None
