"""Static analysis of asserts in tests: the statements whose run can fail a test, and asserts that never run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeGuard

_ASSERTIONS = {"AssertionError", "Exception", "BaseException"}
"""The exception classes whose handlers catch a failed assert."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def asserting(statements: Sequence[ast.stmt]) -> frozenset[str]:
    """Return the functions reachable from these statements that assert something, directly or by calling another."""
    bodies = _functions(statements)
    found = {name for name, nodes in bodies.items() if any(map(_tests, nodes))}
    while more := {name for name, nodes in bodies.items() if not found.isdisjoint(_called(nodes))} - found:
        found |= more
    return frozenset(found)


def is_test(statement: ast.stmt, functions: frozenset[str]) -> bool:
    """Return whether a statement asserts, expects an error, or calls one of these functions and drops its result.

    A call whose result is kept is no test: it prepares one, and would pass whatever the solution does.
    """
    nodes = list(_run([statement]))
    calls = (node.value for node in nodes if isinstance(node, ast.Expr))
    if any(map(_tests, nodes)):
        return True
    return any(not functions.isdisjoint(_called(_run([call]))) for call in calls)


def lost_assert(statements: Sequence[ast.stmt]) -> int | None:
    """Return the line of the first assert that no statement reaches; None if there is none. A function whose name is
    never read, and which is not named like a test, is an unused helper, whose asserts are not reported."""
    come_to = {id(node) for nodes in ([*_run(statements)], *_functions(statements).values()) for node in nodes}
    everything = [node for statement in statements for node in ast.walk(statement)]
    read = {node.id for node in everything if isinstance(node, ast.Name)}
    spare = [s for s in statements if isinstance(s, ast.FunctionDef) and s.name not in read]
    come_to |= {id(n) for s in spare if not s.name.startswith("test") and s.name != "check" for n in ast.walk(s)}
    return min((n.lineno for n in everything if _asserts(n) and id(n) not in come_to), default=None)


def _asserts(node: ast.AST) -> TypeGuard[ast.Assert]:
    return isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant)


def _tests(node: ast.AST) -> bool:
    """Return whether a node asserts, or expects an error: ``try: f(-1); assert False``, unless the handler of the error
    also catches that assert."""
    if not isinstance(node, ast.Try):
        return _asserts(node)
    caught = {name for handler in node.handlers for name in _caught(handler)}
    inside = node.orelse if caught & _ASSERTIONS else [*node.body, *node.orelse]
    return any(isinstance(s, ast.Assert) and isinstance(s.test, ast.Constant) and not s.test.value for s in inside)


def _caught(handler: ast.ExceptHandler) -> list[str]:
    """Return the names of the classes that a handler catches; ``BaseException`` for a bare ``except``."""
    if handler.type is None:
        return ["BaseException"]
    return [node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)]


def _called(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that these nodes call."""
    return {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def _is_generator(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Return whether a function is a generator, so that a call alone runs nothing of it."""
    yields = (isinstance(part, ast.Yield | ast.YieldFrom) for part in _run(node.body))
    return isinstance(node, ast.FunctionDef) and any(yields)


def _body(node: ast.FunctionDef | ast.ClassDef) -> list[ast.AST]:
    """Return the nodes that run when a function is called; of a class its own statements and all methods."""
    nodes = list(_run(node.body))
    methods = (one for one in nodes if isinstance(node, ast.ClassDef) and isinstance(one, ast.FunctionDef))
    return [*nodes, *(part for method in methods for part in _run(method.body))]


def _functions(statements: Sequence[ast.stmt]) -> dict[str, list[ast.AST]]:
    """Return, by name, the nodes that run in each function and class reachable from the statements.

    A function or class is reachable if the statements, or another reachable one, define it and read its name, or
    decorate it: the decorator may arrange for its call.
    """
    nodes, known = list(_run(statements)), set[int]()
    found: dict[str, list[ast.AST]] = {}
    while True:
        read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        named = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef) and id(n) not in known]
        defined = [n for n in named if (n.name in read or n.decorator_list) and not _is_generator(n)]
        if not defined:
            return found
        for function in defined:
            body = _body(function)
            found[function.name] = found.get(function.name, []) + body
            nodes += body
            known.add(id(function))


def _run(roots: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes that run when the roots do: without the bodies of definitions, and of an ``if`` that reads
    ``__name__``, which differs in the judge."""
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        yield node
        closed = isinstance(node, _DEFINITIONS) or (isinstance(node, ast.If) and _reads_name(node.test))
        for field, value in ast.iter_fields(node):
            if not (closed and field in ("body", "orelse")):
                parts = value if isinstance(value, list) else [value]
                waiting += [part for part in parts if isinstance(part, ast.AST)]


def _reads_name(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))
