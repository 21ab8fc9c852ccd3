"""What a main function makes of its helper: does it call it, only pass its result on, or throw the result away?"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coevolve.rewards.code.syntax import (
    DEFINED,
    Function,
    Named,
    assigned,
    bound,
    is_idle,
    loaded,
    parameters,
    reachable,
    statements,
    targets,
    truth,
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


def is_wrapper(main: Function, uses: Sequence[Use]) -> bool:
    """Does it do nothing but return what the helper makes of its own parameters and of constants?

    Names in between do not make it work, nor do ``+ 0``, ``-(-x)`` and the like, idle statements, conditions of
    constants, another call of the helper for nothing, and a function of its own that is such a wrapper itself.
    Everything else does, be it of no use: any other operator, call or statement (``int(aux(x))``, ``aux(x) or 0``,
    ``(aux(x),)[0]``, a delegate's delegate). It is a check of the shape, not a proof. uses: those of the helper.
    """
    calls = {use.call for use in uses}
    for inside in {use.inside for use in uses} - {main}:
        if isinstance(inside, DEFINED) and _passes_on(inside, calls):
            calls |= {
                node for node in ast.walk(main) if isinstance(node, ast.Call) and _is_name(node.func, inside.name)
            }
    return _passes_on(main, calls)


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
_ABSORBING = (ast.Mult, ast.BitAnd)
"""Operators that make 0 of anything with 0."""


def _without_neutral(node: ast.expr) -> ast.expr:
    """``x`` of ``x + 0``, ``1 * x``, ``+x``, ``-(-x)`` and ``x if True else y``."""
    while True:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd):
            node = node.operand
        elif isinstance(node, ast.UnaryOp) and (twice := _negated(node.operand, node.op)) is not None:
            node = twice
        elif isinstance(node, ast.IfExp) and (holds := truth(node.test)) is not None:
            node = node.body if holds else node.orelse
        elif isinstance(node, ast.BinOp) and _is_neutral(node.right, node.op):
            node = node.left
        elif isinstance(node, ast.BinOp) and isinstance(node.op, _EITHER_SIDE) and _is_neutral(node.left, node.op):
            node = node.right
        else:
            return node


def _negated(node: ast.expr, operator: ast.unaryop) -> ast.expr | None:
    """What the same operator undoes in it, ``x`` of ``-x`` for ``-``."""
    if isinstance(node, ast.UnaryOp) and isinstance(operator, _TWICE) and isinstance(node.op, type(operator)):
        return node.operand
    return None


def _is_neutral(node: ast.expr, operator: ast.operator) -> bool:
    return isinstance(node, ast.Constant) and node.value in _NEUTRAL.get(type(operator), ())


def are_thrown_away(uses: Sequence[Use]) -> bool:
    """Are the results of these calls, at least one, of no use to the functions that make them?

    A result is where the statement is an expression that hands it to no other call than one that only looks at it
    (``print``, ``str``), an assertion, or an ``if`` or a loop around nothing; where it is multiplied by 0; and where it
    goes to names that are not read: nowhere in the function, or not before the same block gives them something else.
    It is a check of the shape, not a proof: a use that leads nowhere itself is not seen through (``y = x`` with no
    ``y`` after it, ``len(str(x)) > 0``, ``x - x``).
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
            self._needed[node] = set() if _leads_nowhere(node) else loaded(node)
        return self._needed[node]


_LOOKS = {"print", "str", "repr", "bool", "int", "float", "len", "list", "tuple", "set", "type"}
"""Functions that only look at what they are given."""


def _leads_nowhere(node: ast.stmt) -> bool:
    """Does what it reads make no difference? Of statements that give no name a value."""
    if isinstance(node, ast.If):
        return all(is_idle(part) for part in [*node.body, *node.orelse])
    return isinstance(node, ast.Assert) or is_idle(node)


def _is_thrown_away(call: ast.Call, places: _Places) -> bool:
    child: ast.AST = call
    while child is not places.function:
        node = places.above[child]
        if isinstance(node, ast.Call) and child is not node.func and _called(node) not in _LOOKS:
            return False
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, _ABSORBING)
            and 0 in map(_number, (node.left, node.right))
        ):
            return True
        if isinstance(node, ast.stmt):
            given = _receivers(node, call)
            if given is None:
                return isinstance(node, ast.Expr) or _leads_nowhere(node)
            return not any(_is_read(name, node, places) for name in given)
        if isinstance(node, ast.NamedExpr | ast.Lambda):
            return False
        child = node
    return False


def _number(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _receivers(node: ast.stmt, call: ast.Call) -> set[str] | None:
    """The plain names that a statement gives this result; None if it gives it to nothing, or to other things too."""
    if isinstance(node, ast.For) and all(is_idle(part) for part in [*node.body, *node.orelse]):
        pairs = [(node.target, node.iter)]
    else:
        pairs = [(target, value) for target, value in assigned(node) if call in ast.walk(value)]
    held = [part for target, _ in pairs for part in ast.walk(target) if isinstance(part, ast.expr)]
    plain = all(isinstance(part, ast.Name | ast.Tuple | ast.List | ast.Starred) for part in held)
    return {part.id for part in held if isinstance(part, ast.Name)} if held and plain else None


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
