"""Python syntax trees: parsing with a line for each error, assignments, definitions, and scopes."""

from __future__ import annotations

import ast
import operator
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef)
NAMED = (*DEFINED, ast.ClassDef)
ASSIGNS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Named = Function | ast.ClassDef

DEEPEST, LARGEST = 200, 20_000
"""Most levels and nodes of a tree that is judged: its readers recurse once per level, where Python allows 1000 calls,
and finish in seconds. The reference solutions of HumanEval and MBPP have at most 20 levels and 365 nodes."""


_ONE = threading.Lock()
"""Filters of warnings are the process's: two threads that set and restore them at once could leave one behind."""


def parse(code: str) -> ast.Module:
    """Parse code into a syntax tree. Raises ValueError, "line 3: what is wrong", whatever the reason.

    A ``return`` outside of functions, which only Python's compiler would refuse (with more that is not looked for), and
    a tree beyond ``DEEPEST`` or ``LARGEST`` also raise it. The compiler is not used: some code makes it take all
    memory.
    """
    try:
        with _ONE, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # e.g. of an invalid escape in a string
            tree = ast.parse(code)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("line 1: nested too deep") from error
    _check_size(tree)
    bodies: list[tuple[Sequence[ast.AST], bool]] = [(tree.body, True)]
    while bodies:
        body, outside = bodies.pop(0)
        for node in scope(body):
            if outside and isinstance(node, ast.Return):
                raise ValueError(f"line {node.lineno}: 'return' outside function")
            if isinstance(node, NAMED):
                bodies.append((node.body, isinstance(node, ast.ClassDef)))
    return tree


def syntax_error(code: str) -> str | None:
    """Return why the reward does not accept the code as Python, with the line; None if it does."""
    try:
        parse(code)
    except ValueError as error:
        return str(error)
    return None


def _check_size(tree: ast.AST) -> None:
    level: list[ast.AST] = [tree]
    nodes = 0
    for _ in range(DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        nodes += len(level)
        if nodes > LARGEST:
            raise ValueError("line 1: more code than is judged")
        if not level:
            return
    raise ValueError("line 1: nested too deep")


def is_idle(node: ast.stmt) -> bool:
    """Return whether a statement calls nothing and stores nothing: a docstring, a name, ``pass``, an annotation without
    a value, ``assert True``, or an ``if`` around these.
    """
    if isinstance(node, ast.AnnAssign):
        return node.value is None
    if isinstance(node, ast.If):
        return not _acts(node.test) and all(is_idle(part) for part in [*node.body, *node.orelse])
    if isinstance(node, ast.Assert):
        return truth(node.test) is True
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and not _acts(node.value))


def _acts(node: ast.expr) -> bool:
    active = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
    return any(isinstance(part, active) for part in ast.walk(node))


_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def truth(node: ast.expr) -> bool | None:
    """Return the truth of a condition that constants decide (alone, compared, or with ``not``, ``and``, ``or``); else
    None."""
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = truth(node.operand)
        return None if inner is None else not inner
    if isinstance(node, ast.BoolOp):
        decides = isinstance(node.op, ast.Or)
        values = [truth(value) for value in node.values]
        return decides if decides in values else None if None in values else not decides
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
        left, right = node.left, node.comparators[0]
        if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
            try:
                return bool(_COMPARE[type(node.ops[0])](left.value, right.value))
            except TypeError:  # 1 < "a"
                return None
    return None


def first_line(node: ast.stmt) -> int:
    """Return the first line of a statement, its decorators included, from 1."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(part.lineno for part in decorators)])


def assigned(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Return the (target, value) pairs of an assignment: two of ``a, b = c, d``, one of ``a, b = c``; else []."""
    if isinstance(node, ast.Assign):
        waiting = [(target, node.value) for target in node.targets]
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        waiting = [(node.target, node.value)]
    else:
        return []
    found: list[tuple[ast.expr, ast.expr]] = []
    while waiting:
        target, value = waiting.pop(0)
        parts, values = _elements(target), _elements(value)
        if parts and len(parts) == len(values):
            waiting = [*zip(parts, values, strict=True), *waiting]
        else:
            found.append((target, value))
    return found


def _elements(node: ast.expr) -> list[ast.expr]:
    """Return the elements of ``a, b`` or ``[a, b]``; [] for anything else, and if one is starred."""
    elements = node.elts if isinstance(node, ast.Tuple | ast.List) else []
    return [] if any(isinstance(part, ast.Starred) for part in elements) else elements


def targets(node: ast.AST) -> list[str]:
    """Return the plain names that an assignment assigns; [] for anything else."""
    return [target.id for target, _ in assigned(node) if isinstance(target, ast.Name)]


def names_of(held: Iterable[ast.expr]) -> set[str] | None:
    """Return the names in assignment targets such as ``a`` or ``b, *c``; None if something else (``a[0]``) is in
    them."""
    parts = [part for target in held for part in ast.walk(target) if isinstance(part, ast.expr)]
    plain = all(isinstance(part, ast.Name | ast.Tuple | ast.List | ast.Starred) for part in parts)
    return {part.id for part in parts if isinstance(part, ast.Name)} if plain else None


def definitions(body: Sequence[ast.stmt]) -> dict[str, Named]:
    """Return the functions and classes of the top level by name; of several with the same name the last.

    ``name = cached(name)`` leaves the definition as it was, ``name = other`` gives a function another name; any other
    assignment removes it.
    """
    found: dict[str, Named] = {}
    for node in body:
        if isinstance(node, NAMED):
            found[node.name] = node
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for name in targets(node) if value is not None else []:
            other = found.get(value.id) if isinstance(value, ast.Name) else None
            if isinstance(other, ast.FunctionDef):
                found[name] = other
            elif value is not None and name not in loaded(value):
                found.pop(name, None)
    return found


def function(found: Mapping[str, Named], name: str) -> Function | None:
    """Return the function of this name among ``definitions``; None if there is none, or if it is a class or a
    coroutine."""
    one = found.get(name)
    return None if isinstance(one, ast.ClassDef | ast.AsyncFunctionDef) else one


def loaded(node: ast.AST) -> set[str]:
    """Return the names that a node reads."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


def free(node: ast.stmt) -> set[str]:
    """Return the names that a statement reads; of a definition, those that it does not itself set."""
    if not isinstance(node, NAMED):
        return loaded(node)
    return loaded(node) - stored(node.body) - {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}


def statements(function: Function) -> list[ast.stmt]:
    """Return a function's body without idle statements."""
    return [node for node in function.body if not is_idle(node)]


def parameters(function: Function) -> set[str]:
    given = function.args
    several = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {arg.arg for arg in several if arg is not None}


def returns(function: Function) -> bool:
    """Return whether a call gives a value: the function itself has a ``yield``, or ``return`` of something other than
    None. Code that is never reached counts, too: see ``simplify``.

    A plain call of a coroutine gives no value.
    """
    if isinstance(function, ast.AsyncFunctionDef):
        return False
    return any(_gives(node) for node in scope(statements(function)))


def _gives(node: ast.AST) -> bool:
    if isinstance(node, ast.Return):
        return node.value is not None and not is_none(node.value)
    return isinstance(node, ast.Yield | ast.YieldFrom)


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def bound(function: Function) -> set[str]:
    """Return a function's own names: its parameters, those of lambdas in it, and the names stored in it."""
    inner = {node.arg for node in scope(function.body) if isinstance(node, ast.arg)}
    return parameters(function) | stored(function.body) | inner


def stored(body: Sequence[ast.AST]) -> set[str]:
    """Return the names that are assigned, imported, defined or deleted in a body, outside of nested functions and
    classes.

    Names of comprehensions count as well, and so do those declared global, as they may be changed.
    """
    names: set[str] = set()
    for node in scope(body):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, NAMED):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
    return names


def scope(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes in their order, without the insides of nested functions and classes."""
    waiting = list(reversed(body))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, NAMED):
            inner = list(ast.iter_child_nodes(node))
        else:
            inner = [*node.decorator_list]  # these and defaults are evaluated outside
            if not isinstance(node, ast.ClassDef):
                inner += [part for part in [*node.args.defaults, *node.args.kw_defaults] if part is not None]
        waiting += reversed(inner)
