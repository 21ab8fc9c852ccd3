"""What a main function makes of its helper: does it call it, only pass its result on, or throw the result away?"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coevolve.rewards.code.syntax import (
    DEFINED,
    Function,
    Named,
    bound,
    is_idle,
    loaded,
    parameters,
    reachable,
    statements,
    targets,
)

_HIGHER = {"map", "filter", "reduce"}
"""Functions that call their first argument."""


@dataclass(frozen=True)
class Use:
    """A call of the helper; the function that makes it; is it made for each of many things, by ``map`` say?"""

    call: ast.Call
    inside: Function
    many: bool


def uses(main: Function, functions: Mapping[str, Named], helper: str) -> list[Use]:
    """The calls of the helper that may run when main does, in main or in what it reads the names of, main's own first.

    functions: those of the top level. A call is ``helper(...)``, ``map``, ``filter`` or ``reduce`` of it, or one with
    ``key=helper``; not where the name is the function's own, a parameter say, and not where no run comes by (see
    ``reachable``). Under another name (``f = helper``) it is not seen.
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
        nodes = list(reachable(statements(function)))
        inner = {node.name: node for node in nodes if isinstance(node, DEFINED)}
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
            first = node.args[:1] if _called(node) in _HIGHER else []
            handed = [*first, *(keyword.value for keyword in node.keywords if keyword.arg == "key")]
            if _is_name(node.func, helper) or any(_is_name(part, helper) for part in handed):
                yield Use(node, inside, many=not _is_name(node.func, helper))


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _called(node: ast.Call) -> str:
    """The name that is called, without the module in front."""
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


Content = Literal["given", "result"]
"""What a name holds in a wrapper: what main was given, or the helper's result."""


def is_wrapper(main: Function, calls: Sequence[ast.Call]) -> bool:
    """Does it do nothing but return what the helper makes of its own parameters and of constants?

    Names in between do not make it work, nor do ``+ 0``, ``* 1`` and the like. Everything else does, be it of no use:
    any other operator, call or statement. calls: those of the helper.
    """
    holds: dict[str, Content] = dict.fromkeys(parameters(main), "given")
    for statement in statements(main):
        value = getattr(statement, "value", None)
        content = _content(value, holds, calls) if value is not None else None
        if isinstance(statement, ast.Return):
            return content == "result"
        names = targets(statement)
        if content is None or not names or not isinstance(statement, ast.Assign | ast.AnnAssign):
            return False
        holds |= dict.fromkeys(names, content)
    return False


def _content(node: ast.expr, holds: Mapping[str, Content], calls: Sequence[ast.Call]) -> Content | None:
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
}
_EITHER_SIDE = (ast.Add, ast.Mult)


def _without_neutral(node: ast.expr) -> ast.expr:
    """``x`` of ``x + 0``, ``1 * x``, ``+x`` and ``x if True else y``."""
    while True:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd):
            node = node.operand
        elif isinstance(node, ast.IfExp) and isinstance(node.test, ast.Constant):
            node = node.body if node.test.value else node.orelse
        elif isinstance(node, ast.BinOp) and _is_neutral(node.right, node.op):
            node = node.left
        elif isinstance(node, ast.BinOp) and isinstance(node.op, _EITHER_SIDE) and _is_neutral(node.left, node.op):
            node = node.right
        else:
            return node


def _is_neutral(node: ast.expr, operator: ast.operator) -> bool:
    return isinstance(node, ast.Constant) and node.value in _NEUTRAL.get(type(operator), ())


def are_thrown_away(uses: Sequence[Use]) -> bool:
    """Are the results of these calls, at least one, of no use to the functions that make them?

    A result is where the statement is an expression that hands it to no other call than ``print``, and where it goes
    to names that are not read: nowhere in the function, or not before the same block gives them something else. A use
    that leads nowhere itself is not seen through (``y = x`` with no ``y`` after it).
    """
    places = {function: _Places(function) for function in {use.inside for use in uses}}
    return bool(uses) and all(_is_thrown_away(use.call, places[use.inside]) for use in uses)


class _Places:
    """Where things stand in a function. above: node -> what it is in. place: statement -> (its block, position)."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.above: dict[ast.AST, ast.AST] = {}
        self.place: dict[ast.AST, tuple[list[ast.stmt], int]] = {}
        self._needed: dict[ast.stmt, set[str]] = {}
        for node in ast.walk(function):
            self.above |= dict.fromkeys(ast.iter_child_nodes(node), node)
            for _, block in ast.iter_fields(node):
                if isinstance(block, list):
                    self.place |= {part: (block, i) for i, part in enumerate(block)}

    def needed(self, node: ast.stmt) -> set[str]:
        """The names that a statement reads, for something."""
        if node not in self._needed:
            self._needed[node] = set() if is_idle(node) else loaded(node)
        return self._needed[node]


def _is_thrown_away(call: ast.Call, places: _Places) -> bool:
    child: ast.AST = call
    while child is not places.function:
        node = places.above[child]
        if isinstance(node, ast.Call) and child is not node.func and _called(node) != "print":
            return False
        if isinstance(node, ast.Expr):
            return True
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            assigned = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = targets(node)
            return len(names) == len(assigned) and not any(_is_read(name, node, places) for name in names)
        if isinstance(node, ast.stmt | ast.NamedExpr | ast.Lambda):
            return False
        child = node
    return False


def _is_read(name: str, assignment: ast.stmt, places: _Places) -> bool:
    """Is what this statement gives the name read?"""
    block, position = places.place[assignment]
    for node in block[position + 1 :]:
        if name in places.needed(node):
            return True
        if isinstance(node, ast.Assign) and name in targets(node):
            return False
    if places.above[assignment] is places.function:
        return False
    return any(name in places.needed(node) for node in statements(places.function))
