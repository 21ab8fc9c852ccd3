"""How good are a helper and a main function together? The gated reward of MAGRPO's coding tasks (arXiv 2508.04652).

The levels, each behind the one before it; most of all 4.0:

    structure    +0.4   the helper's author defines ``aux``, and it returns something
                 +0.6   main is defined and returns something, or nothing more is paid
    syntax       +0.5   all of it is Python, or nothing more is paid
    tests       <=+1.0  the share of tests that pass; if none does, nothing more is paid
    cooperation  +0.5   main calls aux
                 +1.0   and is more than a thin wrapper
                 -0.5   but throws away what aux returns

A single agent is paid the 0.6, the syntax and the tests, at most 2.1. The columns of the paper's tables are the levels
as shares of what they pay at most, and the return, (structure + 0.5 syntax + tests + 1.5 cooperation) / 4; a single
agent's, (0.6 structure + 0.5 syntax + tests) / 2.1, the paper leaves out.

Everything is read from syntax trees. The released code works with regular expressions; ours differs in this:
1. A function is defined where it parses. A broken main function earns no structure; there, any text after ``def`` does.
2. Functions, constants and imports stay as written. There a function ends at the first function inside it or at the
   next line without indentation, and constants are lost.
3. To return is to return something: ``return None`` and the ``return`` of a function inside do not count, ``yield`` and
   a lambda do. A coroutine (``async def``) is no function here: whoever calls it gets no value.
4. A call of aux is a call that a run can come by. There it may be in a comment, in a string, or behind a ``return``.
5. A thin wrapper returns what aux makes of main's parameters, be it by way of names, functions, branches or loops that
   change nothing (see ``usage.is_wrapper`` and ``simplify``). There, a main function of one or two lines with a call of
   aux is one.
6. Results that are thrown away are found, also where they go into what leads nowhere. There, only where a blank stands
   between ``aux`` and its one argument.
7. If both authors define aux, the helper's is run: what main's author imports, defines or assigns by that name is left
   out, and so is a function that does so to the global name or reaches for it (``globals()``, ``aux.__code__``), lest
   the main agent be paid for calling itself. What remains is a function that puts a text together that does so when it
   is called (``eval``). If both define the main function, main's is run, for the same reason. Without an aux of the
   helper's author, main's own is run, and earns no cooperation.
8. Tests are the sandbox's: each statement of the top level with an assert is one, several lines and loops included.
   Cooperation is paid if one passes, also where the sandbox gave up on slow ones (there the log says that it is not,
   and it is).
9. The prompt's own functions and imports are there.
10. Programs have the standard library and no other package. There they have what the trainer's process has.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Protocol

from coevolve.rewards.code.extract import extract
from coevolve.rewards.code.ignored import are_thrown_away
from coevolve.rewards.code.merge import Piece, chunks
from coevolve.rewards.code.schemes import SCHEMES, scheme
from coevolve.rewards.code.simplify import simplify
from coevolve.rewards.code.syntax import Function, definitions, function, parse, returns
from coevolve.rewards.code.usage import Use, is_wrapper, uses
from coevolve.rewards.sandbox.types import Program, Verdict

AUX, MAIN = "aux", "main"
"""The authors of the helper and of the function that is tested; the helper is named like its author."""


class Box(Protocol):
    """What ``rewards.sandbox.Sandbox`` does for the grading: a verdict for each test of each program."""

    def run(self, programs: Sequence[Program]) -> list[tuple[Verdict, ...]]: ...


@dataclass(frozen=True)
class Job:
    """What one problem's answers are judged by.

    entry: the name of the function that is tested. tests, prelude, setup: as in ``rewards.sandbox.Program``; answers
    may use what the prelude defines.
    """

    entry: str
    tests: str
    prelude: str = ""
    setup: str = ""


@dataclass(frozen=True)
class Grade:
    """How the answers of one job were judged.

    code: what was run, "" where there was nothing to run. authors: who wrote each line of it, ``AUX``, ``MAIN``,
    or "" for the prelude. verdicts: one per test, () if nothing was run. pair: two authors, or one.
    aux_defined, aux_returns: of the helper's author. syntax_error: "line 3: ...", of the helper's answer, or else of
    main's. Then what main makes of aux, whoever wrote it: see ``usage`` and ``ignored``; scheme: see ``schemes``, None
    where there is none.
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
        """0 to 1; 0 or 0.6 for a single agent."""
        return 0.4 * self.aux_returns + 0.6 * self.main_returns

    @property
    def syntax(self) -> float:
        """0 or 0.5."""
        return 0.5 * (self.main_returns and self.syntax_error is None)

    @property
    def tests(self) -> float:
        """0 to 1."""
        return self.passed / len(self.verdicts) if self.verdicts else 0.0

    @property
    def cooperation(self) -> float:
        """0 to 1.5."""
        return self.cooperation_ungated if self.passed else 0.0

    @property
    def cooperation_ungated(self) -> float:
        """0 to 1.5, whether or not a test passes."""
        if not (self.aux_defined and self.calls_aux):
            return 0.0
        return 0.5 + 1.0 * (not self.wrapper) - 0.5 * self.ignored

    @property
    def total(self) -> float:
        """The reward, 0 to 4; 0 to 2.1 for a single agent."""
        return self.structure + self.syntax + self.tests + self.cooperation

    @property
    def passed(self) -> int:
        """How many tests pass."""
        return sum(verdict.kind == "passed" for verdict in self.verdicts)

    @property
    def levels_passed(self) -> int:
        """0 to 3: structure (of main, which is what stops), syntax, and a test. Cooperation stops nothing."""
        return sum(takewhile(bool, (self.main_returns, self.syntax > 0, self.passed > 0)))

    def parts(self) -> dict[str, float]:
        """The columns of the paper's tables, and more, all but levels_passed from 0 to 1.

        structure, syntax, tests: the levels as shares of what they pay at most. return: the total, likewise. solved: 1
        if all tests pass. levels_passed: of structure, syntax and tests, 0 to 3. syntax_ungated: 1 if everything
        parses, whatever main returns. For a pair also cooperation and cooperation_ungated, without a test that must
        pass, and ``scheme_`` with each of ``schemes.SCHEMES``, 1 for the one that the pair follows. (Structure and
        tests wait for no earlier level that could be passed without them: their ungated share is the same.)
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
                **{f"scheme_{name}": float(self.scheme == name) for name in SCHEMES},
            }
        return parts


def grade(jobs: Sequence[Job], answers: Sequence[Mapping[str, str]], box: Box) -> list[Grade]:
    """Judge the answers of each job, ``{AUX: text, MAIN: text}``, or ``{MAIN: text}`` of a single agent.

    No answer, whatever is in it, is an error. All programs are given to the box at once. Raises ValueError for other
    keys, and for a prelude or tests that do not parse, or whose asserts never run.
    """
    found = [_judged(job, texts) for job, texts in zip(jobs, answers, strict=True)]
    runs = [i for i, one in enumerate(found) if one.code]
    programs = [Program(found[i].code, jobs[i].tests, jobs[i].entry, jobs[i].prelude, jobs[i].setup) for i in runs]
    verdicts = dict(zip(runs, box.run(programs), strict=True)) if programs else {}
    return [replace(one, verdicts=verdicts.get(i, ())) for i, one in enumerate(found)]


def _judged(job: Job, texts: Mapping[str, str]) -> Grade:
    """All but the verdicts."""
    if set(texts) not in ({MAIN}, {MAIN, AUX}):
        raise ValueError(f"grade: answers of {', '.join(texts) or 'nobody'}; want {MAIN}, or {AUX} and {MAIN}")
    first, first_error = _parsed(extract(texts.get(AUX, "")))
    second, second_error = _parsed(extract(texts[MAIN]))
    aux = function(parse(first).body, AUX)
    main = function(parse(second).body, job.entry)
    merged = _merged(job, first, second, [AUX] if aux else [])
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
    """(the code, None), or nothing and why it is no Python."""
    try:
        parse(code)
    except ValueError as error:
        return "", str(error)
    return code, None


def _merged(job: Job, first: str, second: str, taken: Sequence[str]) -> list[tuple[str, int]]:
    """The chunks of a prelude and both authors' code. taken: what the second author's must not define."""
    try:
        parse(job.prelude)
    except ValueError as error:
        raise ValueError(f"the prelude of {job.entry!r} does not parse: {error}; mend the problem") from error
    entry = [job.entry]
    helpers = Piece(first, without=entry, tried=[job.entry, *taken])
    return chunks([Piece(job.prelude), helpers, Piece(second, without=taken, tried=entry)])


def _with_teamwork(judged: Grade, code: str, entry: str) -> Grade:
    """With what main makes of the helper, where there is a main function that calls it.

    Main is judged without what makes no difference: once with calls of the helper as something that may, to see whether
    there is one, and once as something that does not by itself, to see whether anything is made of its results.
    """
    written, found = _calls(parse(code), entry)
    kept, calls = _calls(simplify(parse(code)), entry) if found else (None, [])
    if written is None or kept is None or not calls:
        return judged
    functions = definitions(simplify(parse(code), [AUX]).body)
    main = functions[entry]
    assert not isinstance(main, ast.ClassDef)
    used = uses(main, functions, AUX)
    wrapper = is_wrapper(main, used, functions)
    ignored = not used or are_thrown_away(calls)
    return replace(
        judged,
        calls_aux=True,
        wrapper=wrapper,
        ignored=ignored,
        scheme=None if wrapper or ignored else scheme(written, found),
    )


def _calls(tree: ast.Module, entry: str) -> tuple[Function | None, list[Use]]:
    """Main, if it is a function, and its calls of the helper."""
    functions = definitions(tree.body)
    main = functions.get(entry)
    if main is None or isinstance(main, ast.ClassDef):
        return None, []
    return main, uses(main, functions, AUX)
