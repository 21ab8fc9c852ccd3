"""One program of several authors' code."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from coevolve.rewards.code.syntax import first_line, is_idle, parse, targets

_IMPORTS = (ast.Import, ast.ImportFrom)
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_ASSIGNS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
_TRIES = {"__name__", "print", "input"}


@dataclass(frozen=True)
class Piece:
    """One author's code; the names that it must not define; those that it is tried out with, if it is."""

    code: str
    without: Collection[str] = ()
    tried: Collection[str] = ()


def merge(pieces: Sequence[Piece]) -> str:
    """The pieces as one program: all imports first, each once, those from ``__future__`` in front; then the rest.

    Functions, classes, constants and other statements of the top level stay as they are written and in their order,
    so that of two definitions of one name the last one is in force. Left out are definitions of names that a piece
    must not define; statements that do nothing; and those that try the code out: an ``assert``, or what is no
    assignment and prints, asks for input, asks for ``__name__`` or names what is tried. Raises ValueError if a piece
    does not parse.
    """
    imports: list[str] = []
    rest: list[str] = []
    for piece in pieces:
        lines = piece.code.encode().split(b"\n")
        for node in parse(piece.code).body:
            if isinstance(node, _IMPORTS):
                imports.append(ast.unparse(node))
            elif not (is_idle(node) or _is_trial(node, piece.tried) or _defined(node) & set(piece.without)):
                rest.append(_source(lines, node))
    future = "from __future__ "
    once = sorted(dict.fromkeys(imports), key=lambda line: not line.startswith(future))
    return "\n".join([*once, *rest])


def _source(lines: Sequence[bytes], node: ast.stmt) -> str:
    """The statement as it is written. Positions in the tree are lines from 1 and bytes from 0."""
    start, end = first_line(node) - 1, node.end_lineno or node.lineno
    taken = list(lines[start:end])
    taken[-1] = taken[-1][: node.end_col_offset]
    if start == node.lineno - 1:
        taken[0] = taken[0][node.col_offset :]
    return b"\n".join(taken).decode()


def _defined(node: ast.stmt) -> set[str]:
    return {node.name} if isinstance(node, _DEFINES) else set(targets(node))


def _is_trial(node: ast.stmt, tried: Collection[str]) -> bool:
    if isinstance(node, (*_DEFINES, *_ASSIGNS)):
        return False
    return any(isinstance(part, ast.Assert) or _name(part) in {*_TRIES, *tried} for part in ast.walk(node))


def _name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None
