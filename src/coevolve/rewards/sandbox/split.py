"""Splitting of tests into steps: one parse decides the tests that the trainer counts and the steps the judge runs."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from coevolve.rewards.sandbox.asserts import asserting, is_test, lost_assert

_BINDERS = frozenset({"exec", "eval", "globals", "locals", "vars", "builtins", "__builtins__"})
"""Names with which a source can bind names that static analysis does not find."""


@dataclass(frozen=True)
class Plan:
    """The tests of a program, in order. sources: their text; steps: the code that the judge runs for each, including
    the statements before it and, for the last, those after it; opening: the code before the first; names: those that
    the tests read and never bind, which alone the solution may be asked for; stars: modules that they import ``*`` of.
    """

    sources: tuple[str, ...]
    steps: tuple[str, ...]
    opening: str
    names: tuple[str, ...]
    stars: tuple[str, ...] = ()


@lru_cache(maxsize=4096)
def split(tests: str) -> Plan:
    """Return the plan of ``Program.tests``. A test is a statement with an assert, or with a call of the tests' own
    function that asserts; an assert of a constant does not count, except ``assert False`` in a ``try``.

    Statements after the last test run with it: they may call an asserting function by another name.

    Raises ValueError if the tests do not parse, cannot be run statement by statement (a ``return`` in ``check``), or
    have an assert that never runs: such tests would always pass.
    """
    text = tests.replace("\r\n", "\n").replace("\r", "\n")
    try:
        plan, lost = _plan(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"tests do not parse: {error}; they begin {text[:60]!r}") from None
    if lost is not None:
        raise ValueError(
            f"tests have an assert in line {lost} that never runs: it is in a coroutine, a generator, a block behind "
            f"`if __name__`, or a class or test function that no statement calls; put it outside, or call it; they "
            f"begin {text[:60]!r}"
        )
    return plan


def _plan(text: str) -> tuple[Plan, int | None]:
    """Return the plan, and the line of an assert that never runs (None if there is none)."""
    tree = ast.parse(text)
    opening, body = _parts(tree.body)
    functions = asserting([*opening, *body])
    ends = [end for end, statement in enumerate(body, start=1) if is_test(statement, functions)]
    sources = [_source(text, body[end - 1]) for end in ends]
    # Statements after the last test give no verdict of their own: they belong to its step.
    steps = [_joined(body[begin:end]) for begin, end in pairwise([0, *ends[:-1], len(body)])] if ends else []
    read, bound = _names(_joined([*opening, *body]))
    names = () if read & _BINDERS else tuple(sorted(read - bound))
    stars = (node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
    plan = Plan(tuple(sources), tuple(steps), _joined(opening), names, tuple(name or "" for name in stars))
    return plan, lost_assert([*opening, *body])


@lru_cache(maxsize=4096)
def bound(source: str) -> frozenset[str]:
    """Return the global names that a source binds anywhere, even in code that does not run; none if it is invalid."""
    try:
        return _names(source)[1]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()


def _names(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the global names that a source (reads, binds), by assignment, import, ``def``, loop, pattern, ``del``."""
    read, bound = set(), set()
    # From Python 3.12 on, comprehensions have no symbol table: only this finds names that their ``:=`` binds outside.
    walrus = {one.target.id for one in ast.walk(ast.parse(source)) if isinstance(one, ast.NamedExpr)}
    for table in _tables(symtable.symtable(source, "<tests>", "exec")):
        kind = table.get_type()
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (kind in ("module", "class") or symbol.is_global()):
                read.add(symbol.get_name())  # in a class even where it is assigned: ``limit = limit``
            if not (kind == "module" or symbol.is_declared_global()):
                continue
            here = symbol.is_assigned() or symbol.is_imported() or symbol.is_annotated() or symbol.is_namespace()
            if here or (symbol.is_declared_global() and symbol.get_name() in walrus):
                bound.add(symbol.get_name())
    return frozenset(read), frozenset(bound)


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def count_tests(tests: str) -> int:
    """Return the number of verdicts that these tests give. Raises ValueError as ``split`` does."""
    return len(split(tests).sources)


def _parts(statements: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return (statements that run first, statements split into steps): the latter are the body of ``check`` if there is
    one, else everything.

    A ``check`` with two or more arguments is a function of the tests, each call of which is a test. The argument of one
    with a single argument is the solution, whatever its name.
    """
    named = (s for s in statements if isinstance(s, ast.FunctionDef) and s.name == "check")
    check = next((s for s in named if len(s.args.args) < 2), None)
    if check is None:
        return [], statements
    given = [ast.parse(f"{one.arg} = candidate").body[0] for one in check.args.args if one.arg != "candidate"]
    return [*(s for s in statements if s is not check and not _calls_check(s)), *given], check.body


def _calls_check(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "check"


def _joined(statements: list[ast.stmt]) -> str:
    """Return the source of statements, dedented except for multi-line strings; check that it compiles."""
    source = ast.unparse(ast.Module(statements, []))
    compile(source, "<tests>", "exec", dont_inherit=True)
    return source


def _source(text: str, statement: ast.stmt) -> str:
    """Return the text of a statement, dedented."""
    lines = text.split("\n")[statement.lineno - 1 : statement.end_lineno]
    indent = statement.col_offset
    return "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines).rstrip()
