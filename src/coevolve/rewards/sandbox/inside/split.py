"""Tests into steps: what the trainer counts and what the judge runs, from the same reading of the same text."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One test. source: its text; body: what runs before it, and itself."""

    source: str
    body: list[ast.stmt]


@dataclass(frozen=True)
class Plan:
    """Tests in order. opening: what runs before the first. names: all that the tests read."""

    opening: list[ast.stmt]
    steps: list[Step]
    names: frozenset[str]


def split(tests: str) -> Plan:
    """The plan of ``Program.tests``. An assert of a constant tests nothing and does not count.

    ValueError: they do not parse.
    """
    text = tests.replace("\r\n", "\n").replace("\r", "\n")
    try:
        tree = ast.parse(text)
        names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"tests do not parse: {error}; they begin {text[:60]!r}") from None
    opening, body = _parts(tree.body)
    steps, waiting = [], []
    for statement in body:
        waiting.append(statement)
        if _holds_assert(statement):
            steps.append(Step(_source(text, statement), waiting))
            waiting = []
    return Plan(opening, steps, names)


def _parts(statements: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """(what runs first, what is stepped through): the body of ``check`` where there is one, else everything."""
    check = next((s for s in statements if isinstance(s, ast.FunctionDef) and s.name == "check"), None)
    if check is None:
        return [], statements
    return [s for s in statements if s is not check and not _calls_check(s)], check.body


def _calls_check(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "check"


def _holds_assert(statement: ast.stmt) -> bool:
    return any(isinstance(n, ast.Assert) and not isinstance(n.test, ast.Constant) for n in ast.walk(statement))


def _source(text: str, statement: ast.stmt) -> str:
    lines = text.split("\n")[statement.lineno - 1 : statement.end_lineno]
    indent = statement.col_offset
    return "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines).rstrip()
