"""Task ``humaneval``: a helper ``aux`` and the function of a HumanEval problem that may call it, by two agents."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from coevolve.rewards.code import AUX, MAIN, Job
from coevolve.tasks import data
from coevolve.tasks.coding import Bounds, Coding, check_tests, one_newline, splits
from coevolve.tasks.coding_feedback import CODER, REPORT
from coevolve.tasks.data import Later
from coevolve.tasks.heard import Voice
from coevolve.tasks.scoring import Scoring
from coevolve.types import Problem

_AGAIN = "\n\n{told}Code:"


def _first(told: str, form: str) -> str:
    """Return the template of a first prompt: what to do, and the form of the answer."""
    only = "Answer with Python code only: no explanation, no markdown, no tests."
    return f"{told} {only} In this form:\n\n{form}\n    return result\n\n{{told}}Code:"


VOICES = {
    AUX: Voice(
        first=_first(
            "Two programmers share the work on this problem.\n\n{text}\n\nThe other one writes {entry}. You write only "
            "its helper, aux: a part of the work that {entry} can build on. You do not define {entry}.",
            "def aux({parameters}):\n    # your code",
        ),
        again=_AGAIN,
        beside="{entry} has been written:\n\n{code}\n\nWrite the aux that it needs.\n\n",
    ),
    MAIN: Voice(
        first=_first(
            "Two programmers share the work on this problem.\n\n{text}\n\nThe other one writes a helper, "
            "aux({parameters}), which does a part of the work. You write only {entry}: call aux, use what it returns, "
            "and do the rest yourself. You do not define aux.",
            "def {entry}({parameters}):\n    # your code, with a call of aux",
        ),
        again=_AGAIN,
        beside="aux has been written:\n\n{code}\n\nCall it as it is.\n\n",
    ),
    CODER: Voice(
        first=_first(
            "Solve this problem.\n\n{text}\n\nYou write {entry}.", "def {entry}({parameters}):\n    # your code"
        ),
        again=_AGAIN,
        beside="{code}\n\n",
    ),
}
"""Role -> its templates, for any problem with a text, an entry point and parameters."""


class OfCode(Coding):
    """Base of the coding tasks whose problems are code: the head of a function, and what it may use."""

    def job(self, p: Problem) -> Job:
        """Return the ``Job`` that the problem's columns describe. A team is asked for no ``prelude``; it is read from
        the text, as from the rows of the data set."""
        if "prelude" in p.data:
            return super().job(p)
        return super().job(replace(p, data={**p.data, "prelude": _prelude_of(p.data["text"], p.data["entry"])}))


class HumanEval(OfCode):
    """MAGRPO's HumanEval task (arXiv 2508.04652, section "Coding"): roles ``aux`` and ``main``, or ``coder`` alone.

    The 164 problems are ``humaneval`` in the folder that COEVOLVE_DATA names, else the hub's openai/openai_humaneval.
    train, test: rows [first, end), end null for all that follow. feedback, scoring, bonuses, sandbox: see
    ``tasks.coding.Coding``. In ``Problem.data`` are all columns of the row and ``text``, the prompt; ``parameters``,
    such as "numbers, threshold"; ``entry``, ``tests`` and ``prelude``, which is what the prompt defines besides that
    function.

    As in the released code, rows 32 and 163 are in neither split (its first version trained on [33, 133]), and a single
    agent is paid without cooperation. How code is judged, and how that differs, is in ``rewards.code``. Other
    differences from the released code ("there"):
    1. Prompts say the same in other words, with parameters read from the syntax tree. There a regular expression finds
       them, and where it finds none, agents are trained on an error message as their prompt.
    2. Functions and imports of the prompt (``poly`` of HumanEval/32, ``encode_cyclic`` of 38, ...) are there when the
       code runs and when tests use them. There they are dropped.
    3. An agent that revises continues its own turn, rather than reading its answer in a new prompt.
    4. The feedback is on all tests, from the run that was paid; there one test is run a second time.
    5. In the pipeline and the discussion the others' code is shown without the text around it.

    Raises ValueError, when problems are first used, that names the row for a column that is missing or empty, a prompt
    without its entry point, tests that do not parse or have an assert that never runs, and for rows that are not there.
    """

    def __init__(
        self,
        *,
        train: Bounds = (33, 163),
        test: Bounds = (0, 32),
        feedback: str | dict[str, Any] | Callable[..., Any] = REPORT,
        scoring: Scoring = "ours",
        bonuses: bool = True,
        sandbox: dict[str, Any] | None = None,
    ) -> None:
        learnt, held_out = splits(Later(lambda: problems(_rows(), "humaneval")), train, test)
        super().__init__(
            train=learnt,
            test=held_out,
            voices=VOICES,
            feedback=feedback,
            scoring=scoring,
            bonuses=bonuses,
            sandbox=sandbox,
        )


def _rows() -> list[data.Row]:
    return data.rows("humaneval", dataset="openai/openai_humaneval", split="test")


def problems(rows: Sequence[data.Row], where: str) -> list[Problem]:
    """Return rows with HumanEval's columns as problems. Raises ValueError like ``HumanEval``. where: for messages."""
    return data.problems(rows, where, _read, id="task_id")


def _read(row: data.Row) -> data.Row:
    _, prompt, entry, tests = (
        one_newline(data.text(row, name)) for name in ("task_id", "prompt", "entry_point", "test")
    )
    check_tests(tests)
    try:
        body = ast.parse(prompt).body
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"its prompt does not parse: {error}; mend the row or leave it out") from error
    asked = _heads(body, entry)
    if not asked:
        raise ValueError(f"the prompt defines no function {entry!r}, its entry_point; mend the row or leave it out")
    added = {
        "text": prompt.strip(),
        "parameters": ", ".join(arg.arg for arg in asked[-1].args.args),
        "entry": entry,
        "tests": tests,
        "prelude": _prelude(body, asked),
    }
    return {**row, **added}


def _heads(body: Sequence[ast.stmt], entry: str) -> list[ast.FunctionDef]:
    return [node for node in body if isinstance(node, ast.FunctionDef) and node.name == entry]


def _prelude(body: Sequence[ast.stmt], asked: Sequence[ast.stmt]) -> str:
    return "\n".join(ast.unparse(node) for node in body if node not in asked)


def _prelude_of(text: str, entry: str) -> str:
    """Return what a problem's text defines besides the entry point; "" if it is no code that has one."""
    try:
        body = ast.parse(one_newline(text)).body
    except (SyntaxError, ValueError):
        return ""
    asked = _heads(body, entry)
    return _prelude(body, asked) if asked else ""
