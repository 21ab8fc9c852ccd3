"""Feedback modes of the coding tasks: what the author of a helper or main function is told between turns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from coevolve.rewards.code import AUX, MAIN, Grade, extract
from coevolve.rewards.code.syntax import syntax_error
from coevolve.rewards.sandbox import Verdict
from coevolve.types import Role

CODER = "coder"
"""The role of a single author of all code, besides the two roles of ``rewards.code``."""


@dataclass(frozen=True)
class Notes:
    """The wording of the feedback: templates with names in braces; one that is "" says nothing.

    ``{name}`` is the function that the role writes, ``{entry}`` the tested one. shown: how many failing tests are
    quoted at most. longest: characters of a note at most.
    """

    again: str = "Write it again, better."
    """Used where there is nothing else to say, and in mode ``plain``."""
    no_code: str = "(no code)"
    """Stands for the code of an answer that has none."""
    empty: str = "Your answer holds no code."
    syntax: str = "Your code does not parse: {error}."
    undefined: str = "Your code does not define {name}."
    no_return: str = "{name} returns nothing."
    not_run: str = "Nothing was run, because of the other function."
    all_passed: str = "All {total} tests pass."
    some_passed: str = "{passed} of {total} tests pass."
    failing: str = "{test} fails: {why}."
    uncalled: str = "aux is not called."
    """For the author of aux."""
    unused: str = "{entry} does not call aux."
    """For the author of the main function, like the next two."""
    wrapper: str = "{entry} only passes on what aux returns; do part of the work in it."
    ignored: str = "{entry} calls aux and does not use what it returns."
    levels: str = "Defined: {defined}. Syntax: {syntax}. Tests passed: {tests}."
    levels_together: str = "aux called: {called}."
    """Follows ``levels`` where there are two authors."""
    solved: str = "The tests pass."
    unsolved: str = "The tests do not all pass."
    edit: str = "A reviewer suggests:\n{edit}"
    shown: int = 2
    longest: int = 1000


@dataclass(frozen=True)
class Seen:
    """The facts for one role's note: the role, its own answer, the tested function, and the grade of the answers."""

    role: Role
    text: str
    entry: str
    grade: Grade

    @property
    def name(self) -> str:
        return AUX if self.role == AUX else self.entry

    @property
    def author(self) -> str:
        """The role's name in ``Grade.authors``, where a single author counts as the main function's."""
        return MAIN if self.role == CODER else self.role

    @property
    def defined(self) -> bool:
        return self.grade.aux_defined if self.role == AUX else self.grade.main_defined

    @property
    def returns(self) -> bool:
        return self.grade.aux_returns if self.role == AUX else self.grade.main_returns


Mode = Callable[[Notes, Seen], str]


def report(notes: Notes, seen: Seen) -> str:
    """Report what is wrong with the role's own code, the failing tests, and how the two functions work together."""
    said = [*_alone(notes, seen)]
    if not (said or seen.grade.verdicts):
        said.append(notes.not_run)
    said += [*_tested(notes, seen), *_together(notes, seen)]
    return cut(" ".join(filter(None, said)), notes.longest)


def levels(notes: Notes, seen: Seen) -> str:
    """Report how far each level of the reward was reached, in one word each."""
    verdicts = seen.grade.verdicts
    tests = f"{seen.grade.passed} of {len(verdicts)}" if verdicts else "not run"
    code = extract(seen.text)
    syntax = "yes" if code.strip() and not syntax_error(code) else "no"
    said = [notes.levels.format(defined=_YES[seen.defined], syntax=syntax, tests=tests)]
    if seen.role != CODER:
        said.append(notes.levels_together.format(called=_YES[seen.grade.calls_aux]))
    return cut(" ".join(filter(None, said)), notes.longest)


def passed(notes: Notes, seen: Seen) -> str:
    """Report in one sentence whether all tests pass."""
    return notes.solved if 0 < len(seen.grade.verdicts) == seen.grade.passed else notes.unsolved


def plain(notes: Notes, seen: Seen) -> str:
    """Only ask for another version; the agent's own answer stands before the note anyway."""
    return notes.again


REPORT = "report"
"""The default mode."""

MODES: dict[str, Mode] = {REPORT: report, "levels": levels, "passed": passed, "plain": plain}

_WHY = {
    "failed": "the result is wrong",
    "timeout": "out of time",
    "memory": "out of memory",
    "forbidden": "it does what is not allowed",
    "crashed": "the interpreter died",
    "skipped": "not run, because an earlier test did not pass",
}
"""Verdict kind -> how the test ended, in words, for all kinds but exceptions of the code."""

_YES = {True: "yes", False: "no"}
_TEST = 200
"""Characters of a test, and of an exception, that are quoted at most."""


def _alone(notes: Notes, seen: Seen) -> Iterator[str]:
    """Yield what is wrong with the role's own code, whatever the other author wrote."""
    code = extract(seen.text)
    if not code:
        yield notes.empty
    elif error := syntax_error(code):
        yield notes.syntax.format(error=error)
    elif not seen.defined:
        yield notes.undefined.format(name=seen.name)
    elif not seen.returns:
        yield notes.no_return.format(name=seen.name)


def _tested(notes: Notes, seen: Seen) -> Iterator[str]:
    verdicts = seen.grade.verdicts
    failing = [verdict for verdict in verdicts if verdict.kind != "passed"]
    if verdicts:
        total = notes.some_passed if failing else notes.all_passed
        yield total.format(passed=seen.grade.passed, total=len(verdicts))
    for verdict in failing[: notes.shown]:
        test = re.sub(r"\bcandidate\b", seen.entry, re.sub(r"\s*\n\s*", " ", verdict.test.strip()))
        yield notes.failing.format(test=cut(test, _TEST), why=_why(verdict, seen))


def _together(notes: Notes, seen: Seen) -> Iterator[str]:
    """Yield whether the main function calls the helper and uses its result, if both functions were run."""
    grade = seen.grade
    if seen.role == CODER or not (grade.verdicts and grade.aux_defined):
        return
    if not grade.calls_aux:
        yield (notes.uncalled if seen.role == AUX else notes.unused).format(entry=seen.entry)
    elif seen.role == MAIN:
        yield from (text.format(entry=seen.entry) for text, said in _habits(notes, grade) if said)


def _habits(notes: Notes, grade: Grade) -> list[tuple[str, bool]]:
    return [(notes.wrapper, grade.wrapper), (notes.ignored, grade.ignored)]


def _why(verdict: Verdict, seen: Seen) -> str:
    """Return how the test ended: an exception's type, and its message unless the other author's code raised it."""
    if verdict.kind in _WHY:
        return _WHY[verdict.kind]
    message = " ".join(verdict.message.split()) if _author(verdict, seen.grade) in ("", seen.author) else ""
    return cut(": ".join(filter(None, (verdict.error, message))), _TEST)


def _author(verdict: Verdict, grade: Grade) -> str:
    """Return the author of the line that raised the exception, "" for a line of the problem itself.

    An exception without a line counts as the main function's author's, since the tests call that function.
    """
    line = verdict.line or 0
    return grade.authors[line - 1] if 0 < line <= len(grade.authors) else MAIN


def cut(text: str, longest: int) -> str:
    """Return the text, or as much of its beginning as fits with dots at the end."""
    return text if len(text) <= longest else text[: longest - 3] + "..."
