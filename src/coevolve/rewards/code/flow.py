"""Data flow in a function that calls the helper: where the helper's result goes, and what is computed without it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from coevolve.rewards.code.syntax import Function, loaded, parameters, scope, statements

_WORK = (ast.Call, ast.BinOp, ast.Subscript, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


class Flow:
    """The names in a function that hold values made of the helper's result, and those with work of the function's own.

    Order is ignored: a name that ever holds a value made of a result does so everywhere. made: names of values made of
    a result. worked: names of other computed values, in contrast to parameters, constants, and copies of these. given:
    every (name, expression that it is given).
    """

    def __init__(self, function: Function, calls: Sequence[ast.Call]) -> None:
        self.body = statements(function)
        self.nodes = list(scope(self.body))
        self.returns = [node for node in self.nodes if isinstance(node, ast.Return)]
        self.calls = set(calls)
        self.given = [pair for node in self.nodes for pair in _given(node)]
        self.own = parameters(function) | {name for name, _ in self.given}
        self.made: set[str] = set()
        self.worked: set[str] = set()
        values = [(name, loaded(value), self.calls_in(value) > 0, _has_work(value)) for name, value in self.given]
        while more := {name for name, read, calls, _ in values if calls or read & self.made} - self.made:
            self.made |= more
        rest = [(name, read, work) for name, read, _, work in values if name not in self.made]
        while more := {name for name, read, work in rest if read & (self.own if work else self.worked)} - self.worked:
            self.worked |= more

    @property
    def blocks(self) -> Iterator[list[ast.stmt]]:
        """The blocks (lists of statements) of the function."""
        yield self.body
        for node in self.nodes:
            for _, value in ast.iter_fields(node):
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    yield value

    def sources(self, node: ast.AST) -> set[str]:
        """Return the helper's results that a node reads: names made of them, and calls of the helper as text."""
        return self._results(ast.walk(node))

    def reads(self, node: ast.AST) -> bool:
        return bool(self.sources(node))

    def flowing(self, node: ast.AST) -> set[str]:
        """Return the results that become part of a node's value, not those that only select it (``x if result else
        y``)."""
        return self._results(_without_tests(node))

    def calls_in(self, node: ast.AST) -> int:
        """Return the number of calls of the helper in a node."""
        return sum(part in self.calls for part in ast.walk(node))

    def works(self, node: ast.AST) -> bool:
        """Return whether a node computes something from the function's own names, without a result of the helper."""
        if self.reads(node):
            return False
        return bool(loaded(node) & (self.own if _has_work(node) else self.worked))

    def _results(self, nodes: Iterable[ast.AST]) -> set[str]:
        found: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.Name) and node.id in self.made:
                found.add(node.id)
            elif node in self.calls:
                found.add(ast.dump(node))
        return found


def _has_work(node: ast.AST) -> bool:
    return not isinstance(node, ast.Lambda) and any(isinstance(part, _WORK) for part in ast.walk(node))


def _given(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name, expression that it is given): from assignments, loops, ``with``, and arguments of methods
    (``append``)."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        pairs = [(node.target, node.value)]
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        pairs = [(node.target, node.iter)]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        pairs = [(node.optional_vars, node.context_expr)]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        pairs = [(node.value.func.value, argument) for argument in node.value.args]
    for target, value in pairs:
        for name in _holders(target):
            yield name, value


def _holders(target: ast.expr) -> Iterator[str]:
    """Yield the names that hold a value stored in a target: ``a`` for ``a[i]`` and ``a.b``."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _holders(part)
    elif isinstance(target, ast.Subscript | ast.Attribute | ast.Starred):
        yield from _holders(target.value)


def _without_tests(node: ast.AST) -> Iterator[ast.AST]:
    waiting = [node]
    while waiting:
        part = waiting.pop()
        yield part
        chosen = {part.test} if isinstance(part, ast.IfExp) else set()
        chosen |= set(part.ifs) if isinstance(part, ast.comprehension) else set()
        waiting += [child for child in ast.iter_child_nodes(part) if child not in chosen]


def tests(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """Yield the conditions in these nodes, and the subjects of ``match``."""
    for node in nodes:
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.Match):
            yield node.subject


def leaves(block: Sequence[ast.AST]) -> bool:
    """Return whether a block ends with ``return``, ``raise``, ``continue`` or ``break``."""
    return bool(block) and isinstance(block[-1], _LEAVES)


def results(statement: ast.AST) -> Iterator[tuple[str | None, ast.expr]]:
    """Yield (None, returned expression) and (name, assigned expression) of a statement; an expression counts as
    returned."""
    if isinstance(statement, ast.expr):
        yield None, statement
        return
    for node in ast.walk(statement):
        yield from _given(node)
        if isinstance(node, ast.Return) and node.value is not None:
            yield None, node.value


def operands(node: ast.AST) -> list[ast.expr]:
    """Return the expressions that an operator, a call or a collection combines; [] for anything else."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.BoolOp | ast.JoinedStr):
        return list(node.values)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return list(node.elts)
    if isinstance(node, ast.Dict):
        return list(node.values)
    if isinstance(node, ast.Call):
        object = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*object, *node.args, *(keyword.value for keyword in node.keywords)]
    return []
