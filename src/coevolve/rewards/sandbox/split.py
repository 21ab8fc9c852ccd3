"""Tests into steps: what the trainer counts and what the judge runs, from one reading of the text."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Plan:
    """Tests, in order. sources: their text; steps: what the judge runs for each, the statements before it too; opening:
    what runs before the first; names: all that they read.
    """

    sources: tuple[str, ...]
    steps: tuple[str, ...]
    opening: str
    names: tuple[str, ...]


@lru_cache(maxsize=4096)
def split(tests: str) -> Plan:
    """The plan of ``Program.tests``. An assert of a constant tests nothing and does not count.

    ValueError: they do not parse, or cannot be run statement by statement (a ``return`` in ``check``).
    """
    text = tests.replace("\r\n", "\n").replace("\r", "\n")
    try:
        return _plan(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"tests do not parse: {error}; they begin {text[:60]!r}") from None


def _plan(text: str) -> Plan:
    tree = ast.parse(text)
    names = sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})
    opening, body = _parts(tree.body)
    sources, steps, waiting = [], [], []
    for statement in body:
        waiting.append(statement)
        if _holds_assert(statement):
            sources.append(_source(text, statement))
            steps.append(_joined(waiting))
            waiting = []
    return Plan(tuple(sources), tuple(steps), _joined(opening), tuple(names))


def count_tests(tests: str) -> int:
    """How many verdicts these tests give. ValueError: they do not parse."""
    return len(split(tests).sources)


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


def _joined(statements: list[ast.stmt]) -> str:
    """Their source without the indentation that they had; multi-line strings keep theirs."""
    source = ast.unparse(ast.Module(statements, []))
    compile(source, "<tests>", "exec", dont_inherit=True)
    return source


def _source(text: str, statement: ast.stmt) -> str:
    """The text of a statement, its lines moved to the left."""
    lines = text.split("\n")[statement.lineno - 1 : statement.end_lineno]
    indent = statement.col_offset
    return "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines).rstrip()
