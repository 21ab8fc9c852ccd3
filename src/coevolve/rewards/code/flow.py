"""Where the helper's result goes in a function, and what the function works out without it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from coevolve.rewards.code.syntax import Function, loaded, parameters, reachable, statements

_WORK = (ast.Call, ast.BinOp, ast.Subscript, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


class Flow:
    """What holds something made of the helper's result, and what holds work of the function's own.

    It is not followed through time: a name that ever holds something made of a result does so everywhere. made: names
    that hold something made of a result. worked: names that hold something else that was worked out, in contrast to
    parameters, constants, and copies of these. given: every name that is given something, with what.
    """

    def __init__(self, function: Function, calls: Sequence[ast.Call]) -> None:
        self.body = statements(function)
        self.nodes = list(reachable(self.body))
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
        """The lists of statements in it."""
        yield self.body
        for node in self.nodes:
            for _, value in ast.iter_fields(node):
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    yield value

    def sources(self, node: ast.AST) -> set[str]:
        """The results that are read in it: names that hold them, and calls of the helper as text."""
        return self._results(ast.walk(node))

    def reads(self, node: ast.AST) -> bool:
        return bool(self.sources(node))

    def flowing(self, node: ast.AST) -> set[str]:
        """The results that become part of its value, not those that only choose it (``x if result else y``)."""
        return self._results(_without_tests(node))

    def calls_in(self, node: ast.AST) -> int:
        """How many calls of the helper are in it."""
        return sum(part in self.calls for part in ast.walk(node))

    def works(self, node: ast.AST) -> bool:
        """Is something worked out in it, from what the function has, without a result of the helper?"""
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
    """Which names it gives what: assignments, loops, ``with``, and methods that are handed something (``append``)."""
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
    """The names that hold what is stored in a target: of ``a[i]`` and ``a.b`` it is ``a``."""
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
    """The conditions among them, and what ``match`` looks at."""
    for node in nodes:
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.Match):
            yield node.subject


def leaves(block: Sequence[ast.AST]) -> bool:
    """Does a run not go on behind this block?"""
    return bool(block) and isinstance(block[-1], _LEAVES)


def results(statement: ast.AST) -> Iterator[tuple[str | None, ast.expr]]:
    """(None, what is returned) and (name, what it is given) of a statement; an expression is like what is returned."""
    if isinstance(statement, ast.expr):
        yield None, statement
        return
    for node in ast.walk(statement):
        yield from _given(node)
        if isinstance(node, ast.Return) and node.value is not None:
            yield None, node.value


def operands(node: ast.AST) -> list[ast.expr]:
    """What an operator, a call or a collection puts together."""
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
