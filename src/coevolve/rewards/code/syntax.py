"""What the syntax tree of an answer says: definitions, calls of the helper, wrappers, results that go unused."""

from __future__ import annotations

import ast
import warnings

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def parse(code: str) -> ast.Module:
    """The syntax tree. Raises ValueError, "line 3: what is wrong", whatever the reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in a string is the author's affair
            tree = ast.parse(code)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("line 1: nested too deep for the parser") from error
    return tree


def is_idle(node: ast.stmt) -> bool:
    """A statement that calls nothing and stores nothing: a docstring, a name, an annotation."""
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
