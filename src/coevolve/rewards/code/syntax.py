"""Python as a tree: parsing that names what is wrong, definitions, scopes, and the statements that can be reached."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence

DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Named = Function | ast.ClassDef

DEEPEST, LARGEST = 200, 20_000
"""Levels and nodes of a tree that is judged: its readers call themselves for each level, where Python allows 1000
calls, and are done in seconds. The reference solutions of HumanEval and MBPP have at most 20 and 365."""

_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_NAMED = (*DEFINED, ast.ClassDef)


def parse(code: str) -> ast.Module:
    """The syntax tree. Raises ValueError, "line 3: what is wrong", whatever the reason.

    Wrong are also a ``return`` outside of functions, which only Python's compiler would refuse, and a tree beyond
    ``DEEPEST`` or ``LARGEST``. The compiler is not asked: code can be written that it needs all memory for.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in a string is the author's affair
            tree = ast.parse(code)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("line 1: nested too deep") from error
    _check_size(tree)
    for node in _scope(tree.body):
        if isinstance(node, ast.Return):
            raise ValueError(f"line {node.lineno}: 'return' outside function")
    return tree


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
    """A statement that calls nothing and stores nothing: a docstring, a name, an annotation, ``pass``."""
    if isinstance(node, ast.AnnAssign):
        return node.value is None
    if not isinstance(node, ast.Expr):
        return isinstance(node, ast.Pass)
    active = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
    return not any(isinstance(part, active) for part in ast.walk(node))


def first_line(node: ast.stmt) -> int:
    """Where it starts, its decorators included, from 1."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(part.lineno for part in decorators)])


def targets(node: ast.AST) -> list[str]:
    """The plain names that an assignment gives a value, [] for anything else."""
    if isinstance(node, ast.Assign):
        assigned = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        assigned = [node.target]
    else:
        return []
    return [target.id for target in assigned if isinstance(target, ast.Name)]


def definitions(body: Sequence[ast.stmt]) -> dict[str, Named]:
    """The functions and classes of the top level by name; of several by one name the last.

    ``name = lambda ...`` is one too, and ``name = cached(name)`` leaves it what it was; given anything else, the name
    is none.
    """
    found: dict[str, Named] = {}
    for node in body:
        if isinstance(node, _NAMED):
            found[node.name] = node
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for name in targets(node) if value is not None else []:
            if isinstance(value, ast.Lambda):
                found[name] = value
            elif value is not None and name not in loaded(value):
                found.pop(name, None)
    return found


def function(body: Sequence[ast.stmt], name: str) -> Function | None:
    """The function of this name at the top level, None if there is none or it is a class."""
    found = definitions(body).get(name)
    return None if isinstance(found, ast.ClassDef) else found


def loaded(node: ast.AST) -> set[str]:
    """The names that are read in it."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


def statements(function: Function) -> list[ast.stmt]:
    """Its body without what is idle; a lambda's is a ``return``."""
    if isinstance(function, ast.Lambda):
        return [ast.copy_location(ast.Return(function.body), function.body)]
    return [node for node in function.body if not is_idle(node)]


def parameters(function: Function) -> set[str]:
    given = function.args
    several = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {arg.arg for arg in several if arg is not None}


def returns(function: Function) -> bool:
    """Does calling it give a value? A reachable ``return`` of something other than None, or a ``yield``, of its own.

    A coroutine gives none to whoever just calls it.
    """
    if isinstance(function, ast.AsyncFunctionDef):
        return False
    return any(_gives(node) for node in reachable(statements(function)))


def _gives(node: ast.AST) -> bool:
    if isinstance(node, ast.Return):
        return node.value is not None and not is_none(node.value)
    return isinstance(node, ast.Yield | ast.YieldFrom)


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def bound(function: Function) -> set[str]:
    """The names that are its own: parameters, and what is stored in it. Parameters of lambdas inside count as well."""
    body = [function.body] if isinstance(function, ast.Lambda) else function.body
    return parameters(function) | stored(body) | {node.arg for node in _scope(body) if isinstance(node, ast.arg)}


def stored(body: Sequence[ast.AST]) -> set[str]:
    """The names that are assigned, imported, defined or deleted in it, outside of functions and classes inside.

    Comprehensions' names count as well, and so do those declared global, as they may be changed.
    """
    names: set[str] = set()
    for node in _scope(body):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, _NAMED):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
    return names


def _scope(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """All nodes, of functions and classes inside only the outermost."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _NAMED):
            waiting += ast.iter_child_nodes(node)
            continue
        waiting += node.decorator_list  # these and defaults are evaluated outside
        if not isinstance(node, ast.ClassDef):
            waiting += [part for part in [*node.args.defaults, *node.args.kw_defaults] if part is not None]


def reachable(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """The nodes that may run when these statements do, in their order.

    Not what follows a ``return``, ``raise``, ``continue`` or ``break``, not the branch that a constant condition rules
    out, not the body of a function inside, until it is called. A class inside counts as a whole.
    """
    for node in body:
        yield node
        if isinstance(node, DEFINED):
            yield from reachable([*node.decorator_list, node.args])
        elif isinstance(node, ast.ClassDef):
            yield from ast.walk(node)
        else:
            for value in _fields(node):
                yield from reachable(value if isinstance(value, list) else [value])
        if isinstance(node, _LEAVES):
            return


def _fields(node: ast.AST) -> Iterator[ast.AST | list[ast.AST]]:
    dead = None
    if isinstance(node, ast.If | ast.IfExp | ast.While) and isinstance(node.test, ast.Constant):
        dead = "orelse" if node.test.value else "body"
    for name, value in ast.iter_fields(node):
        if name != dead and isinstance(value, ast.AST | list):
            yield [part for part in value if isinstance(part, ast.AST)] if isinstance(value, list) else value
