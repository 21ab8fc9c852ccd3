"""The gated reward of MAGRPO's coding tasks for a helper and a main function together (arXiv 2508.04652).

The levels, each gated by the one before it; at most 4.0 in all:

    structure    +0.4   the helper's author defines ``aux``, and it returns something
                 +0.6   main is defined and returns something, or nothing more is paid
    syntax       +0.5   all of it is Python, or nothing more is paid
    tests       <=+1.0  the share of tests that pass; if none does, nothing more is paid
    cooperation  +0.5   main calls aux
                 +1.0   and is more than a thin wrapper
                 -0.5   but throws away what aux returns

A single agent is paid the 0.6, the syntax and the tests, at most 2.1. The columns of the paper's tables are the levels
as shares of their maximum, and the return, (structure + 0.5 syntax + tests + 1.5 cooperation) / 4; the single agent's,
(0.6 structure + 0.5 syntax + tests) / 2.1, is not in the paper.

Everything is read from syntax trees. The paper's released code uses regular expressions; the differences are:
1. A function is defined where it parses: by ``def`` or a lambda, or as another name of one so defined. A broken main
   function earns no structure; in the released code, any text after ``def`` does.
2. Functions, constants and imports stay as written. In the released code a function ends at the first function inside
   it or at the next line without indentation, and constants are lost.
3. A function returns if it returns something: ``return None`` and the ``return`` of a nested function do not count,
   ``yield`` and a lambda do. A coroutine (``async def``) counts as no function: a plain call of it gives no value.
4. A call of aux must be reachable. In the released code it may be in a comment, in a string, or after a ``return``.
5. A thin wrapper returns what aux makes of main's parameters, possibly through names, functions, branches or loops that
   change nothing (see ``usage.is_wrapper`` and ``simplify``). In the released code, a main function of one or two lines
   with a call of aux is one.
6. Results that are thrown away are found, also if they only feed dead code or asserts. In the released code, they
   are found only where a blank stands between ``aux`` and its one argument.
7. If both authors define aux, the helper's is run: imports, definitions or assignments of that name by main's author
   are left out, and so is a function that redefines the global name or reaches for it (``globals()``,
   ``aux.__code__``), so that the main agent is not paid for calling itself. Not caught is a function that assembles
   such code as text when it is called (``eval``). If both define the main function, main's is run, for the same reason.
   Without an aux of the helper's author, main's own is run, and earns no cooperation.
8. Tests are counted by the sandbox: each top-level statement with an assert is one, several lines and loops included.
   Cooperation is paid if one passes, even if the sandbox gave up on slow ones (the released code does so too, though
   its log says that it does not).
9. Functions and imports of the prompt are available.
10. Programs have the standard library and no other package; an import from another is left out if nothing needs it.
    In the released code they have all packages of the trainer's process.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Protocol

from coevolve.rewards.code.extract import extract
from coevolve.rewards.code.merge import Piece, chunks
from coevolve.rewards.code.schemes import SCHEMES, scheme
from coevolve.rewards.code.simplify import simplify
from coevolve.rewards.code.syntax import Named, definitions, function, parse, returns, syntax_error
from coevolve.rewards.code.usage import is_wrapper, uses
from coevolve.rewards.sandbox.types import Program, Verdict

AUX, MAIN = "aux", "main"
"""The authors of the helper and of the tested function. The helper function is named like its author, ``aux``."""


class Box(Protocol):
    """The interface of ``rewards.sandbox.Sandbox`` that grading uses: a verdict for each test of each program."""

    def run(self, programs: Sequence[Program]) -> list[tuple[Verdict, ...]]: ...


@dataclass(frozen=True)
class Job:
    """The tests and names by which the answers to one problem are judged.

    entry: the name of the tested function. tests, prelude, setup: as in ``rewards.sandbox.Program``; answers may use
    the prelude's definitions.
    """

    entry: str
    tests: str
    prelude: str = ""
    setup: str = ""


@dataclass(frozen=True)
class Grade:
    """The grade of the answers to one job.

    code: the program that was run, "" if none was. authors: the author of each of its lines, ``AUX``, ``MAIN``, or ""
    for the prelude. verdicts: one per test, () if nothing was run. pair: whether there are two authors. aux_defined,
    aux_returns: of the helper author's aux. syntax_error: "line 3: ...", of the helper's answer, or else of main's.
    calls_aux, wrapper, ignored: how main uses aux, whoever wrote it (see ``usage`` and ``simplify``). scheme: see
    ``schemes``; None if there is none.
    """

    code: str
    verdicts: tuple[Verdict, ...]
    pair: bool
    aux_defined: bool
    aux_returns: bool
    main_defined: bool
    main_returns: bool
    syntax_error: str | None
    calls_aux: bool = False
    wrapper: bool = False
    ignored: bool = False
    scheme: str | None = None
    authors: tuple[str, ...] = ()

    @property
    def structure(self) -> float:
        """The structure level's pay, 0 to 1; 0 or 0.6 for a single agent."""
        return 0.4 * self.aux_returns + 0.6 * self.main_returns

    @property
    def syntax(self) -> float:
        """The syntax level's pay, 0 or 0.5."""
        return 0.5 * (self.main_returns and self.syntax_error is None)

    @property
    def tests(self) -> float:
        """The share of tests that pass, 0 to 1."""
        return self.passed / len(self.verdicts) if self.verdicts else 0.0

    @property
    def cooperation(self) -> float:
        """The cooperation level's pay, 0 to 1.5."""
        return self.cooperation_ungated if self.passed else 0.0

    @property
    def cooperation_ungated(self) -> float:
        """The cooperation level's pay, 0 to 1.5, whether or not a test passes."""
        if not (self.aux_defined and self.calls_aux):
            return 0.0
        return 0.5 + 1.0 * (not self.wrapper) - 0.5 * self.ignored

    @property
    def total(self) -> float:
        """The reward, 0 to 4; 0 to 2.1 for a single agent."""
        return self.structure + self.syntax + self.tests + self.cooperation

    @property
    def passed(self) -> int:
        """The number of tests that pass."""
        return sum(verdict.kind == "passed" for verdict in self.verdicts)

    @property
    def levels_passed(self) -> int:
        """The number of gates passed, 0 to 3: structure (main's alone gates), syntax, and a test. Cooperation gates
        nothing."""
        return sum(takewhile(bool, (self.main_returns, self.syntax > 0, self.passed > 0)))

    def parts(self) -> dict[str, float]:
        """Return the columns of the paper's tables and more, all but levels_passed from 0 to 1.

        structure, syntax, tests: the levels as shares of their maximum. return: the total as a share of its maximum.
        solved: 1 if all tests pass. levels_passed: of structure, syntax and tests, 0 to 3. syntax_ungated: 1 if
        everything parses, whatever main returns. For a pair also cooperation; cooperation_ungated, which needs no
        passing test; and ``scheme_`` with each of ``schemes.SCHEMES``, 1 for the one that the pair follows. (Structure
        and tests have no ungated share of their own: it would be the same.)
        """
        structure, most = (1.0, 4.0) if self.pair else (0.6, 2.1)
        parts = {
            "structure": self.structure / structure,
            "syntax": self.syntax / 0.5,
            "tests": self.tests,
            "return": self.total / most,
            "solved": float(0 < len(self.verdicts) == self.passed),
            "levels_passed": float(self.levels_passed),
            "syntax_ungated": float(self.syntax_error is None),
        }
        if self.pair:
            parts |= {
                "cooperation": self.cooperation / 1.5,
                "cooperation_ungated": self.cooperation_ungated / 1.5,
                **{f"scheme_{name}": float(self.aux_defined and self.scheme == name) for name in SCHEMES},
            }
        return parts


def grade(jobs: Sequence[Job], answers: Sequence[Mapping[str, str]], box: Box) -> list[Grade]:
    """Judge the answers to each job, ``{AUX: text, MAIN: text}``, or ``{MAIN: text}`` of a single agent.

    No text of an answer raises an error. All programs are given to the box in one call. Raises ValueError for other
    keys, for a pair whose tested function is called ``aux``, as the helper is, for a prelude or tests that do not
    parse, and for asserts that never run.
    """
    found = [_judged(job, texts) for job, texts in zip(jobs, answers, strict=True)]
    runs = [i for i, one in enumerate(found) if one.code]
    programs = [Program(found[i].code, jobs[i].tests, jobs[i].entry, jobs[i].prelude, jobs[i].setup) for i in runs]
    verdicts = dict(zip(runs, box.run(programs), strict=True)) if programs else {}
    return [replace(one, verdicts=verdicts.get(i, ())) for i, one in enumerate(found)]


def _judged(job: Job, texts: Mapping[str, str]) -> Grade:
    """Grade one job's answers in everything but the tests: ``verdicts`` is still empty."""
    if set(texts) not in ({MAIN}, {MAIN, AUX}):
        raise ValueError(f"grade: answers of {', '.join(texts) or 'nobody'}; want {MAIN}, or {AUX} and {MAIN}")
    if AUX in texts and job.entry == AUX:
        raise ValueError(f"grade: the tested function is called {AUX}, as the helper of a pair is; rename it")
    first, first_error = _parsed(extract(texts.get(AUX, "")))
    second, second_error = _parsed(extract(texts[MAIN]))
    aux = function(definitions(simplify(parse(first)).body), AUX)
    borrowed = aux is not None and aux.name == job.entry  # `aux = f`, and f is main's to write
    aux = None if borrowed else aux
    main = function(definitions(simplify(parse(second)).body), job.entry)
    merged = _merged(job, first, second, [AUX] if aux else [], [AUX] if borrowed else [])
    code, merged_error = _parsed("\n".join(text for text, _ in merged))
    error = first_error or second_error or merged_error
    judged = Grade(
        code=code if main and returns(main) and not error else "",
        verdicts=(),
        pair=AUX in texts,
        aux_defined=aux is not None,
        aux_returns=aux is not None and returns(aux),
        main_defined=main is not None,
        main_returns=main is not None and returns(main),
        syntax_error=error,
        authors=tuple(("", AUX, MAIN)[i] for text, i in merged for _ in text.split("\n")),
    )
    return _with_teamwork(judged, code, job.entry) if judged.pair else judged


def _parsed(code: str) -> tuple[str, str | None]:
    """Return (the code, None), or ("", the syntax error)."""
    error = syntax_error(code)
    return ("" if error else code), error


def _merged(job: Job, first: str, second: str, taken: Sequence[str], borrowed: Sequence[str]) -> list[tuple[str, int]]:
    """Return the chunks of the prelude and both authors' code. taken: names that the second author must not define;
    borrowed: those that the first one must not, beside the other's own function."""
    try:
        parse(job.prelude)
    except ValueError as error:
        raise ValueError(f"the prelude of {job.entry!r} does not parse: {error}; mend the problem") from error
    entry = [job.entry]
    helpers = Piece(first, without=[*entry, *borrowed], tried=[job.entry, *taken])
    return chunks([Piece(job.prelude), helpers, Piece(second, without=taken, tried=entry)])


def _with_teamwork(judged: Grade, code: str, entry: str) -> Grade:
    """Return the grade with main's use of the helper filled in, if there is a main function that calls it.

    Main is simplified twice: once keeping calls of the helper as possible side effects, to see whether there is one,
    and once treating them as free of side effects, to see whether their results are used: what is then left of the
    calls.
    """
    kept = _known(simplify(parse(code)))
    main = function(kept, entry)
    calls = uses(main, kept, AUX) if main else []
    if main is None or not calls:
        return judged
    bare = _known(simplify(parse(code), [AUX]))
    rest = function(bare, entry)
    assert rest is not None
    used = uses(rest, bare, AUX)
    wrapper = is_wrapper(rest, used, bare)
    return replace(
        judged,
        calls_aux=True,
        wrapper=wrapper,
        ignored=not used,
        scheme=None if wrapper or not used else scheme(main, calls),
    )


def _known(tree: ast.Module) -> dict[str, Named]:
    """Return the definitions without other names of the helper: its own calls of itself are not main's use of it."""
    found = definitions(tree.body)
    return {name: one for name, one in found.items() if name == AUX or one is not found.get(AUX)}
