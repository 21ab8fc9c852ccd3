"""Base of the coding tasks: two agents write a helper and a main function, which are run together and tested."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from coevolve.names import did_you_mean
from coevolve.play import Feedback
from coevolve.recipe.components import checked
from coevolve.rewards.code import AUX, MAIN, Grade, Job, extract, grade
from coevolve.rewards.function import user_feedback
from coevolve.rewards.sandbox import Sandbox, Verdict, count_tests
from coevolve.tasks.coding_feedback import CODER, MODES, REPORT, Mode, Notes, Seen, cut, report
from coevolve.tasks.data import Later
from coevolve.tasks.expert import Expert
from coevolve.tasks.heard import Voice, columns_of, sorted_out
from coevolve.tasks.roles import voice_of
from coevolve.tasks.scoring import Scoring, rules
from coevolve.types import Case, Problem, Prompt, Role, Turn

EXPERT = "expert"

Bounds = tuple[int, int | None]
"""Rows [first, end); an end of None takes all rows that follow."""

_TEAMS = ({AUX, MAIN}, {CODER})

_MOST = 1024
"""Cases with stopped programs whose grades are kept; all are dropped once there are more."""


class Coding:
    """Base class: agents write functions that are run together and tested, ``aux`` and ``main`` or ``coder`` alone.

    train, test: the problems. Their columns fill the templates, and must hold ``entry``, the name of the function that
    ``main`` writes, and ``tests``; ``prelude`` and ``setup`` are those of ``rewards.code.Job``, "" where missing.
    voices: role -> its templates; ``beside`` shows another role's ``{code}``. notes: the wording of the feedback.
    feedback: a mode (report, levels, passed, plain), ``{expert: settings}`` for edits by another model
    (``tasks.expert``), or the user's own function (see ``rewards.function``). scoring: "ours", or "paper", where
    ``math`` needs no import and equal asserts are one test, as in the newest released code. sandbox: settings of
    ``rewards.sandbox.Sandbox``.

    bonuses: False leaves the bonuses for cooperation out of the reward, but not out of its parts.

    Every turn of a case is paid the total of ``rewards.code``: 0 to 4 (without bonuses 2.5), and 0 to 2.1 for a
    ``coder``. Raises ValueError for an unknown mode or scoring and an unknown or wrong setting.
    """

    solo = False

    def __init__(
        self,
        *,
        train: Sequence[Problem],
        test: Sequence[Problem],
        voices: Mapping[Role, Voice],
        notes: Notes = Notes(),  # noqa: B008  (a frozen value)
        feedback: str | dict[str, Any] | Callable[..., Any] = REPORT,
        scoring: Scoring = "ours",
        bonuses: bool = True,
        sandbox: dict[str, Any] | None = None,
    ) -> None:
        self.train, self.test, self.scoring, self.bonuses = train, test, rules(scoring=scoring), bonuses
        self.voices, self.notes = dict(voices), notes
        self.asks = columns_of(voices, ("first", "again", "beside"), ("told", "code"))
        self.feedback_asks: tuple[str, ...] = ("entry", "tests")
        self.box = Sandbox(**checked(Sandbox, sandbox or {}, "task.sandbox", ()))  # its workers start when needed
        self._kept: dict[tuple[int, ...], tuple[Case, Grade]] = {}
        """(ids of problem and turns) -> (case, grade), for cases with a stopped program: the sandbox does not cache
        those that timed out or crashed. Keeping the case alive keeps its ids from being reused."""
        self.mode: Mode = report
        self.expert: Expert | None = None
        self.feedback: Feedback = self.advice
        if isinstance(feedback, Mapping):
            self.expert = _expert(feedback)
        elif isinstance(feedback, str) and ":" not in feedback:
            self.mode = _mode(feedback)
        else:
            self.feedback, self.feedback_asks = user_feedback(feedback, voices)

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt:
        """Return the role's prompt: the problem, or, after a turn of its own, only what is new.

        heard: nothing (a first turn); turns of other roles, of which the code of each one's last turn is shown; the
        role's own last turn, which is continued as exact token ids, and the notes after it. If there are no notes or
        only empty ones, the prompt asks for a revision. Raises ValueError for an unknown role.
        """
        voice = voice_of(role, self.voices)
        own, others, since = sorted_out(role, heard)
        codes = [extract(turn.text) or self.notes.no_code for turn in others.values()]
        told = [voice.beside.format_map({**p.data, "code": code}) for code in codes]
        return voice.prompt(p, own, told, since, self.notes.again)

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        """Return the total for every turn. Raises ValueError unless a case is one aux and one main, or one coder."""
        grades = self.grades(cases)
        if len(grades) > 1 and all(_stopped(found) == 1 for found in grades):
            kinds = ", ".join(sorted({verdict.kind for found in grades for verdict in found.verdicts}))
            warnings.warn(
                f"the sandbox had to stop every program of this batch of {len(grades)} ({kinds}); no test passed, and "
                "training goes on",
                stacklevel=2,
            )
        paid = [found.total if self.bonuses else found.total - found.cooperation for found in grades]
        return [[each] * len(case.turns) for case, each in zip(cases, paid, strict=True)]

    def parts(self, cases: Sequence[Case]) -> list[dict[str, float]]:
        """Return ``Grade.parts`` of each case (structure, syntax, tests, cooperation, return, solved, the schemes), and

        stopped: the share of tests that the sandbox had to end, for time, memory, or a forbidden action; 1 for harmful
        code. expert_failed: the share of requests for edits so far that brought none, if there is an expert.
        """
        more = {} if self.expert is None else {"expert_failed": self.expert.failed / max(self.expert.asked, 1)}
        return [found.parts() | {"stopped": _stopped(found)} | more for found in self.grades(cases)]

    def advice(self, p: Problem, turns: Sequence[Turn]) -> list[str]:
        """Return the built-in feedback: a note for each turn, on its own code and on the run of the whole program.

        A note quotes no line of another role's code and no message of an exception raised there, only its type. A
        message of an exception in the role's own code may hold a value that the other's code returned.
        """
        [found] = self.grades([Case(p, tuple(turns))])
        seen = [Seen(turn.role, turn.text, p.data["entry"], found) for turn in turns]
        told = {one.role: self.mode(self.notes, one) for one in seen}
        if self.expert is not None:
            edits = self.expert.edits(p.data["text"], {one.role: extract(one.text) for one in seen}, told)
            edited = {role: cut(self.notes.edit.format(edit=edit), self.notes.longest) for role, edit in edits.items()}
            told = {**told, **edited}
        return [told[turn.role] for turn in turns]

    def grades(self, cases: Sequence[Case]) -> list[Grade]:
        """Return each case's grade. Grades of stopped programs are kept here: the sandbox caches none that timed out or
        crashed."""
        keys = [(id(case.problem), *map(id, case.turns)) for case in cases]
        known = {key: found for key in keys if (found := self._kept.get(key))}
        new = {key: case for key, case in zip(keys, cases, strict=True) if key not in known}
        if len(self._kept) > _MOST:
            self._kept.clear()
        for (key, case), judged in zip(new.items(), self._judged([*new.values()]), strict=True):
            known[key] = case, judged
            if _stopped(judged):
                self._kept[key] = known[key]
        return [known[key][1] for key in keys]

    def job(self, p: Problem) -> Job:
        """Return the ``Job`` that the problem's columns describe."""
        return Job(**{field.name: p.data[field.name] for field in fields(Job) if field.name in p.data})

    def _judged(self, cases: Sequence[Case]) -> list[Grade]:
        answers = [_answers(case) for case in cases]
        jobs = [self.job(case.problem) for case in cases]
        if self.scoring == "ours":
            return grade(jobs, answers, self.box)
        given = [replace(job, prelude=f"{job.prelude}\nimport math") for job in jobs]
        return [replace(found, verdicts=_distinct(found.verdicts)) for found in grade(given, answers, self.box)]


def _distinct(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Return the first verdict on each distinct test."""
    return tuple({verdict.test: verdict for verdict in reversed(verdicts)}.values())[::-1]


def _answers(case: Case) -> dict[Role, str]:
    """Return role -> text as ``grade`` wants it; a coder's text is a main function without a helper."""
    said = case.said()
    if len(said) < len(case.turns) or set(said) not in _TEAMS:
        given = ", ".join(turn.role for turn in case.turns)
        raise ValueError(f"want one turn of {AUX} and one of {MAIN}, or one of {CODER}; were given {given or 'none'}")
    return {MAIN: said[CODER]} if CODER in said else said


def _stopped(found: Grade) -> float:
    ran = [verdict.kind for verdict in found.verdicts if verdict.kind != "skipped"]
    return sum(kind not in ("passed", "failed", "error") for kind in ran) / len(ran) if ran else 0.0


def _mode(name: str) -> Mode:
    if name not in MODES:
        known = ", ".join([*MODES, f"{{{EXPERT}: settings}}", "file.py:name"])
        raise ValueError(f"task.feedback: unknown mode {name!r}{did_you_mean(name, MODES)}; known: {known}")
    return MODES[name]


def _expert(feedback: Mapping[str, Any]) -> Expert:
    if list(feedback) != [EXPERT] or not isinstance(feedback[EXPERT], Mapping):
        raise ValueError(f"task.feedback: want a mode, or {{{EXPERT}: settings}}; found {dict(feedback)}")
    return Expert(**checked(Expert, feedback[EXPERT], f"task.feedback.{EXPERT}", ()))


def splits(problems: Sequence[Problem], train: Bounds, test: Bounds) -> tuple[Later[Problem], Later[Problem]]:
    """Return the training and the held-out problems, both read on first use. Warns of problems that are in both."""
    first = max(train[0], test[0])
    end = min((bounds[1] for bounds in (train, test) if bounds[1] is not None), default=None)
    if end is None or first < end:
        warnings.warn(
            f"task.train {[*train]} and task.test {[*test]} share the problems from {first} "
            f"{'on' if end is None else f'to {end - 1}'}; what is measured on these is not held out",
            stacklevel=3,
        )
    return (
        Later(lambda: _between(problems, train, "task.train")),
        Later(lambda: _between(problems, test, "task.test")),
    )


def _between(problems: Sequence[Problem], bounds: Bounds, where: str) -> list[Problem]:
    """Return the problems in [first, end). Raises ValueError if the range is empty or too long. where: for messages."""
    first, end = bounds
    if not 0 <= first < (len(problems) if end is None else end) <= len(problems):
        raise ValueError(
            f"{where} is {[*bounds]}; want [first, end] with 0 <= first < end <= {len(problems)}, the rows"
        )
    return list(problems[first:end])


def one_newline(text: str) -> str:
    """Return the text with all line ends as \\n: rows have \\r\\n, and a lone \\r would end a line for Python only."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_tests(tests: str) -> None:
    """Raise ValueError if the text cannot be used as tests."""
    try:
        count = count_tests(tests)
    except ValueError as error:
        raise ValueError(f"its {error}; mend the row or leave it out") from error
    if not count:
        raise ValueError(
            "its tests have no assert, nor call a function of theirs by name that has one; mend the row or leave it out"
        )
