"""A main function's use of its helper: its calls, and whether it only passes the helper's result on."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coevolve.rewards.code.syntax import (
    DEFINED,
    NAMED,
    Function,
    Named,
    assigned,
    bound,
    parameters,
    scope,
    statements,
)

_HIGHER = {"map", "filter", "reduce"}
"""Functions that call their first argument."""


@dataclass(frozen=True)
class Use:
    """A call of the helper. inside: the function that makes it. many: it is made for each of many items, as by
    ``map``."""

    call: ast.Call
    inside: Function
    many: bool


def uses(main: Function, functions: Mapping[str, Named], helper: str) -> list[Use]:
    """Return the calls of the helper that may run when main does, in main or in functions and classes whose names it
    reads, main's own first.

    functions: those of the top level, simplified (``simplify``): in code that is never reached, a call would count. A
    call is ``helper(...)``, ``map``, ``filter`` or ``reduce`` of the helper, or a call with ``key=helper``; not if the
    name is local to the function (a parameter, for example). Calls under another name (``f = helper``) are not
    recognised.
    """
    found: list[Use] = []
    seen: set[ast.AST] = set()
    waiting: list[tuple[Named, Mapping[str, Named | None]]] = [(main, {})]
    while waiting:
        function, outer = waiting.pop(0)
        if function in seen:
            continue
        seen.add(function)
        if isinstance(function, ast.ClassDef):
            waiting += [(node, outer) for node in ast.walk(function) if isinstance(node, DEFINED)]
            continue
        nodes = list(scope(statements(function)))
        inner = {node.name: node for node in nodes if isinstance(node, NAMED)}
        own: dict[str, Named | None] = {**outer, **dict.fromkeys(bound(function)), **inner}
        found += _found(nodes, function, helper) if helper not in own else []
        for name in (node.id for node in nodes if isinstance(node, ast.Name)):
            target = own[name] if name in own else functions.get(name)
            if target is not None:
                waiting.append((target, own if name in own else {}))
    return found


def _found(nodes: Sequence[ast.AST], inside: Function, helper: str) -> Iterator[Use]:
    for node in nodes:
        if isinstance(node, ast.Call):
            first = node.args[:1] if called(node) in _HIGHER else []
            handed = [*first, *(keyword.value for keyword in node.keywords if keyword.arg == "key")]
            if _is_name(node.func, helper) or any(_is_name(part, helper) for part in handed):
                yield Use(node, inside, many=not _is_name(node.func, helper))


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def called(node: ast.Call) -> str:
    """Return the name that is called, without its module."""
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


Content = Literal["given", "result"]
"""The content of a name in a wrapper: something given to main (or a constant), or the helper's result."""


def is_wrapper(main: Function, uses: Sequence[Use], functions: Mapping[str, Named]) -> bool:
    """Return whether main does nothing but return what the helper makes of main's parameters and of constants.

    It remains a wrapper with intermediate names, ``+ 0``, ``-(-x)`` and the like, idle statements, constant conditions,
    another call of the helper without effect, and intermediate functions that are such wrappers themselves. Any other
    operator, call or statement, even a useless one, makes it more than a wrapper (``int(aux(x))``, ``aux(x) or 0``).
    This is a check of the shape, not a proof. uses: the calls of the helper. functions: those of the top level.
    """
    calls: set[ast.AST] = {use.call for use in uses}
    named = {**_inner(main), **functions}
    callers: dict[str, list[tuple[str, ast.Call]]] = {}
    waiting: list[str] = []
    for name, function in [*named.items(), ("", main)]:
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                callers.setdefault(node.func.id, []).append((name, node))
                waiting += [name] if node in calls and name else []
    passing: set[str] = set()
    while waiting:
        name = waiting.pop()
        function = named[name]
        if name in passing or function is main or isinstance(function, ast.ClassDef) or not _passes_on(function, calls):
            continue
        passing.add(name)
        calls |= {node for _, node in callers.get(name, ())}
        waiting += [caller for caller, _ in callers.get(name, ()) if caller]
    return _passes_on(main, calls)


def _inner(function: Function) -> dict[str, Named]:
    """Return the functions that are defined inside a function, by name."""
    return {node.name: node for node in ast.walk(function) if isinstance(node, DEFINED) and node is not function}


def _passes_on(function: Function, calls: Collection[ast.AST]) -> bool:
    holds: dict[str, Content] = dict.fromkeys(parameters(function), "given")
    for statement in statements(function):
        if isinstance(statement, ast.Return):
            return statement.value is not None and _content(statement.value, holds, calls) == "result"
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            given = [(target, _content(value, holds, calls)) for target, value in assigned(statement)]
            for target, content in given:
                if content is None or not isinstance(target, ast.Name):
                    return False
                holds[target.id] = content
        elif isinstance(statement, ast.Expr):
            if _content(statement.value, holds, calls) is None:
                return False
        elif not isinstance(statement, DEFINED):
            return False
    return False


def _content(node: ast.expr, holds: Mapping[str, Content], calls: Collection[ast.AST]) -> Content | None:
    node = _without_neutral(node)
    if isinstance(node, ast.Name):
        return holds.get(node.id)
    if isinstance(node, ast.Constant):
        return "given"
    if not (node in calls and isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return None
    given = [part.value if isinstance(part, ast.Starred) else part for part in node.args]
    given += [keyword.value for keyword in node.keywords]
    return "result" if all(_content(part, holds, calls) == "given" for part in given) else None


_NEUTRAL: dict[type[ast.operator], tuple[object, ...]] = {
    ast.Add: (0, ""),
    ast.Sub: (0,),
    ast.Mult: (1,),
    ast.FloorDiv: (1,),
    ast.Pow: (1,),
    ast.BitOr: (0,),
    ast.BitXor: (0,),
    ast.LShift: (0,),
    ast.RShift: (0,),
}
_EITHER_SIDE = (ast.Add, ast.Mult, ast.BitOr, ast.BitXor)
_TWICE = (ast.USub, ast.Invert)


def _without_neutral(node: ast.expr) -> ast.expr:
    """Return ``x`` for ``x + 0``, ``1 * x``, ``+x`` and ``-(-x)``; others unchanged."""
    while True:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd):
            node = node.operand
        elif isinstance(node, ast.UnaryOp) and (twice := _negated(node.operand, node.op)) is not None:
            node = twice
        elif isinstance(node, ast.BinOp) and _is_neutral(node.right, node.op):
            node = node.left
        elif isinstance(node, ast.BinOp) and isinstance(node.op, _EITHER_SIDE) and _is_neutral(node.left, node.op):
            node = node.right
        else:
            return node


def _negated(node: ast.expr, operator: ast.unaryop) -> ast.expr | None:
    """Return the operand that applying the same operator twice restores: ``x`` for ``-x`` and ``-``; else None."""
    if isinstance(node, ast.UnaryOp) and isinstance(operator, _TWICE) and isinstance(node.op, type(operator)):
        return node.operand
    return None


def _is_neutral(node: ast.expr, operator: ast.operator) -> bool:
    return isinstance(node, ast.Constant) and node.value in _NEUTRAL.get(type(operator), ())
