"""Tests into steps: what the trainer counts and what the judge runs, from one reading of the text."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from coevolve.rewards.sandbox.asserts import asserting, is_test, lost_assert

_BINDERS = frozenset({"exec", "eval", "globals", "locals", "vars", "builtins", "__builtins__"})
"""With these a source can bind names that no reading of it finds."""


@dataclass(frozen=True)
class Plan:
    """Tests, in order. sources: their text; steps: what the judge runs for each, the statements before it too, and with
    the last one those behind it; opening: what runs before the first; names: what they read and never bind, so all that
    the solution may be asked for; stars: modules of which they import ``*``.
    """

    sources: tuple[str, ...]
    steps: tuple[str, ...]
    opening: str
    names: tuple[str, ...]
    stars: tuple[str, ...] = ()


@lru_cache(maxsize=4096)
def split(tests: str) -> Plan:
    """The plan of ``Program.tests``. An assert of a constant tests nothing and does not count, but for
    ``assert False`` in a ``try``.

    A test is a statement with an assert, or with a call of the tests' own function that asserts. What follows the last
    one runs with it: that may call what asserts by another name.

    ValueError: they do not parse, cannot be run statement by statement (a ``return`` in ``check``), or have an assert
    that never runs: their definition alone would pass.
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
    """The plan, and the line of an assert that never runs."""
    tree = ast.parse(text)
    opening, body = _parts(tree.body)
    functions = asserting([*opening, *body])
    ends = [end for end, statement in enumerate(body, start=1) if is_test(statement, functions)]
    sources = [_source(text, body[end - 1]) for end in ends]
    # Behind the last test nothing gives a verdict of its own.
    steps = [_joined(body[begin:end]) for begin, end in pairwise([0, *ends[:-1], len(body)])] if ends else []
    read, bound = _names(_joined([*opening, *body]))
    names = () if read & _BINDERS else tuple(sorted(read - bound))
    stars = (node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
    plan = Plan(tuple(sources), tuple(steps), _joined(opening), names, tuple(name or "" for name in stars))
    return plan, lost_assert([*opening, *body])


@lru_cache(maxsize=4096)
def bound(source: str) -> frozenset[str]:
    """The global names that a source binds somewhere, whether or not it comes that far; none if it does not parse."""
    try:
        return _names(source)[1]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()


def _names(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """The global names that a source (reads, binds): by assignment, import, ``def``, loop, pattern, ``del``, ..."""
    read, bound = set(), set()
    # From Python 3.12 on comprehensions have no table of their own, and what they bind outside is told nowhere else.
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
    """How many verdicts these tests give. ValueError: as of ``split``."""
    return len(split(tests).sources)


def _parts(statements: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """(what runs first, what is stepped through): the body of ``check`` where there is one, else everything.

    A ``check`` of two arguments is the tests' own function: each call of it is a test. That of one has the solution in
    it, by whatever name.
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
    """Their source without the indentation that they had; multi-line strings keep theirs."""
    source = ast.unparse(ast.Module(statements, []))
    compile(source, "<tests>", "exec", dont_inherit=True)
    return source


def _source(text: str, statement: ast.stmt) -> str:
    """The text of a statement, its lines moved to the left."""
    lines = text.split("\n")[statement.lineno - 1 : statement.end_lineno]
    indent = statement.col_offset
    return "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines).rstrip()
