"""Detection of functions that throw away their helper's results."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from coevolve.rewards.code.syntax import Function, assigned, is_idle, loaded, statements, targets
from coevolve.rewards.code.usage import Use, called

_ABSORBING = (ast.Mult, ast.BitAnd)
"""Operators whose result is 0 if one operand is 0."""

_LOOKS = {"print", "str", "repr", "bool", "int", "float", "len", "list", "tuple", "set", "type"}
"""Functions whose call does not count as a use of their argument."""


def are_thrown_away(uses: Sequence[Use]) -> bool:
    """Return whether there are calls and the results of all of them are unused by the functions that make them.

    A result is unused if its statement is an assertion, an ``if`` or loop with an idle body, or an expression that
    passes it only to calls such as ``print`` and ``str``; if it is multiplied by 0; or if it is assigned to names that
    are never read, or not before the same block assigns them again. This is a check of the shape, not a proof: uses
    that lead nowhere themselves count as uses (``y = x`` with no ``y`` after it, ``x - x``).
    """
    places = {function: _Places(function) for function in {use.inside for use in uses}}
    return bool(uses) and all(_is_thrown_away(use.call, places[use.inside]) for use in uses)


class _Places:
    """The positions of a function's nodes. above: node -> its parent. place: statement -> (its block, index)."""

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
        """Return the names that a statement reads, none if the statement makes no difference."""
        if node not in self._needed:
            self._needed[node] = set() if _leads_nowhere(node) else loaded(node)
        return self._needed[node]


def _leads_nowhere(node: ast.stmt) -> bool:
    """Return whether a statement that assigns nothing makes no difference."""
    if isinstance(node, ast.If):
        return all(is_idle(part) for part in [*node.body, *node.orelse])
    return isinstance(node, ast.Assert) or is_idle(node)


def _is_thrown_away(call: ast.Call, places: _Places) -> bool:
    child: ast.AST = call
    while child is not places.function:
        node = places.above[child]
        if isinstance(node, ast.Call) and child is not node.func and called(node) not in _LOOKS:
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
    """Return the plain names that a statement assigns this result to; None if there are none, or other targets too."""
    if isinstance(node, ast.For) and all(is_idle(part) for part in [*node.body, *node.orelse]):
        pairs = [(node.target, node.iter)]
    else:
        pairs = [(target, value) for target, value in assigned(node) if call in ast.walk(value)]
    held = [part for target, _ in pairs for part in ast.walk(target) if isinstance(part, ast.expr)]
    plain = all(isinstance(part, ast.Name | ast.Tuple | ast.List | ast.Starred) for part in held)
    return {part.id for part in held if isinstance(part, ast.Name)} if held and plain else None


def _is_read(name: str, assignment: ast.stmt, places: _Places) -> bool:
    """Return whether the value that this statement assigns to the name is read."""
    block, position = places.place[assignment]
    for node in block[position + 1 :]:
        if name in places.needed(node):
            return True
        if isinstance(node, ast.Assign) and name in targets(node):
            return False
    if places.above[assignment] is places.function:
        return False
    return any(name in places.needed(node) for node in statements(places.function))
