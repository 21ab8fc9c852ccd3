"""Task ``mbpp``: short problems with three asserts each, and no signature, for a helper and a main function."""

from __future__ import annotations

import ast
import builtins
import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from coevolve.files import shown
from coevolve.tasks import data
from coevolve.tasks.coding import Bounds, Coding, check_tests, one_newline, splits
from coevolve.tasks.coding_feedback import REPORT
from coevolve.tasks.data import Later
from coevolve.tasks.humaneval import VOICES
from coevolve.tasks.scoring import Scoring
from coevolve.types import Problem, Prompt, Role, Turn

_EXAMPLE = "\nFor example: "

_TEST_IDS = range(11, 511)
"""The ids of the split "test" (Austin et al. 2021, arXiv 2108.07732), in both versions of the data set."""


class Mbpp(Coding):
    """MBPP for ``aux`` and ``main``, or ``coder`` alone, as the released code of MAGRPO (arXiv 2508.04652) has it.

    The problems are those of the split "test", in the order of their ids: of the sanitized version (257), or of the
    full one (500). They are ``mbpp_sanitized`` or ``mbpp`` in the folder that COEVOLVE_DATA names, else the hub's
    google-research-datasets/mbpp. train, test: rows of these [first, end), end null for all that follow. feedback,
    scoring, bonuses, sandbox: see ``tasks.coding.Coding``. In ``Problem.data`` are all columns of the row and ``text``,
    with the first assert as an example; ``parameters``; ``entry``, ``tests``, ``prelude`` and ``setup``.

    The entry point is what the asserts call, and its parameters are named a, b, ... Notes and deviations 1 and 3-5 of
    ``HumanEval`` hold here too. In addition:
    1. Asserts are run as they are. In the released code every name that is called in them is replaced, so that no test
       with ``math.isclose`` or ``set(...)`` works as it was meant.
    2. The example in the prompt is the first assert. In the released code the prompt is extended by a sentence on the
       result, and the signature is that of the reference solution.

    Raises ValueError, when problems are first used, that names the row for a column that is missing, asserts that do
    not parse or call no function in common, and for rows that are not there.
    """

    def __init__(
        self,
        *,
        config: Literal["sanitized", "full"] = "sanitized",
        train: Bounds = (15, 65),
        test: Bounds = (0, 15),
        feedback: str | dict[str, Any] | Callable[..., Any] = REPORT,
        scoring: Scoring = "ours",
        bonuses: bool = True,
        sandbox: dict[str, Any] | None = None,
    ) -> None:
        learnt, held_out = splits(Later(lambda: _all(config)), train, test)
        super().__init__(
            train=learnt,
            test=held_out,
            voices=VOICES,
            feedback=feedback,
            scoring=scoring,
            bonuses=bonuses,
            sandbox=sandbox,
        )
        self.asks = (*self.asks, "tests")  # whose first one every prompt shows

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt:
        """Return the role's prompt, as every coding task does; a team's problem gets the example of its tests."""
        if _EXAMPLE not in p.data["text"]:
            if not isinstance(p.data["tests"], str):
                raise ValueError(f"the column tests is {shown(p.data['tests'])}; want Python with an assert")
            p = replace(p, data={**p.data, "text": _with_example(p.data["text"], p.data["tests"])})
        return super().prompt(p, role, heard)


def _all(config: str) -> list[Problem]:
    """Return the problems of the split "test" of this version."""
    name = {"sanitized": "mbpp_sanitized", "full": "mbpp"}[config]
    rows = data.rows(name, dataset="google-research-datasets/mbpp", split="test", config=config)
    ids = [_number(row, f"{name}, row {position}") for position, row in enumerate(rows)]
    known = [(number, row) for number, row in zip(ids, rows, strict=True) if number in _TEST_IDS]
    return problems([row for _, row in sorted(known, key=lambda one: one[0])], name)


def _number(row: data.Row, where: str) -> int:
    found = row.get("task_id")
    if not re.fullmatch(r"\d+(\.0)?", str(found)):  # 11.0 where a table has a row without one
        raise ValueError(f"{where}: task_id is {shown(found)}; want a whole number")
    return int(str(found).removesuffix(".0"))


def problems(rows: Sequence[data.Row], where: str) -> list[Problem]:
    """Return rows of either version as problems. Raises ValueError as ``Mbpp`` does; where: for messages."""
    return data.problems(rows, where, _read, id="task_id")


def _read(row: data.Row) -> data.Row:
    text = one_newline(data.text(row, "text", "prompt"))
    asserts = [one_newline(test).strip() for test in row.get("test_list") or ()]
    tests = "\n".join(asserts)
    check_tests(tests)
    entry, arguments = _called(tests)
    added = {
        "text": f"{text.strip()}{_EXAMPLE}{asserts[0]}",
        "parameters": ", ".join(string.ascii_lowercase[:arguments]),
        "entry": entry,
        "tests": tests,
        "prelude": "\n".join(row.get("test_imports") or ()),
        "setup": one_newline(row.get("test_setup_code") or ""),
    }
    return {**row, **added}


def _with_example(text: str, tests: str) -> str:
    """Return the text with the first assert of the tests; without one if none stands at the top level."""
    check_tests(tests)
    first = next((node for node in ast.parse(tests).body if isinstance(node, ast.Assert)), None)
    return f"{text.strip()}{_EXAMPLE}{ast.get_source_segment(tests, first)}" if first else text


def _called(tests: str) -> tuple[str, int]:
    """Return the function that all asserts call, the outermost that is not built in, and its number of arguments."""
    asserts = [node for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Assert)]
    calls = [list(_calls(node)) for node in asserts]
    common = [name for name, _ in calls[0] if all(name in dict(one) for one in calls)]
    if not common:
        raise ValueError("no function that all tests call; mend the row or leave it out")
    name = next((name for name in common if not hasattr(builtins, name)), common[0])
    return name, max(count for one in calls for called, count in one if called == name)


def _calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield (name, number of arguments) of each function called by its plain name, outer calls first."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, len(node.args)
