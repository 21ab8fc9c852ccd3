"""How good are a helper and a main function together? The gated reward of MAGRPO's coding tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coevolve.rewards.sandbox.types import Program, Verdict

MAIN = "main"


class Box(Protocol):
    """What ``rewards.sandbox.Sandbox`` does for the grading: one verdict per test of each program."""

    def run(self, programs: Sequence[Program]) -> list[tuple[Verdict, ...]]: ...


@dataclass(frozen=True)
class Job:
    """What one problem's answers are judged by.

    entry: the name of the function that is tested. tests, prelude, setup: as in ``rewards.sandbox.Program``; the
    prelude is there for the answers too.
    """

    entry: str
    tests: str
    prelude: str = ""
    setup: str = ""


@dataclass(frozen=True)
class Grade:
    """How one pair of answers, or one answer of a single agent, was judged.

    code: what was run. verdicts: one per test, () if there was nothing to run.
    """

    code: str
    verdicts: tuple[Verdict, ...]
    aux_defined: bool
    aux_returns: bool
    main_defined: bool
    main_returns: bool
    syntax_error: str | None
    calls_aux: bool
    wrapper: bool
    ignored: bool
    scheme: str | None


def grade(jobs: Sequence[Job], answers: Sequence[Mapping[str, str]], box: Box, *, helper: str = "aux") -> list[Grade]:
    """Judge each job's answers, ``{helper: text, "main": text}`` or ``{"main": text}``."""
    raise NotImplementedError
