"""One program of several authors' code."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from coevolve.rewards.code.syntax import DEFINED, first_line, is_idle, loaded, parse, stored

_IMPORTS = (ast.Import, ast.ImportFrom)
_DEFINES = (*DEFINED, ast.ClassDef)
_ASSIGNS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
_TRIES = {"__name__", "print", "input"}
_REACHES = {"globals", "exec"}
_REACHING = {"__globals__", "f_globals", "modules", "__code__", "__defaults__", "__kwdefaults__"}
"""Names and attributes with which a function can, when it is called, put other code behind a name of the program."""
_REACHED = re.compile(rf"(?<!\w)(?:{'|'.join(sorted(_REACHES | _REACHING))})(?!\w)")
_BY_TEXT = {"locals", "vars", "eval", "setattr", "__dict__"}
"""So can these, with a text that says which name."""


@dataclass(frozen=True)
class Piece:
    """One author's code; the names that it must not define; those that it is tried out with, if it is."""

    code: str
    without: Collection[str] = ()
    tried: Collection[str] = ()


def merge(pieces: Sequence[Piece]) -> str:
    """The pieces as one program: all imports first, each once, those from ``__future__`` in front; then the rest.

    Functions, classes, constants and other statements of the top level stay as they are written and in their order,
    so that of two definitions of one name the last one is in force. Left out are statements that give a name a value
    that a piece must not define, in whatever way (see ``_takes``); statements that do nothing; and those that try the
    code out (see ``_Trials``). Raises ValueError if a piece does not parse.
    """
    return "\n".join(text for text, _ in chunks(pieces))


def chunks(pieces: Sequence[Piece]) -> list[tuple[str, int]]:
    """What ``merge`` joins: imports and statements, each with the position of its piece. Raises ValueError likewise."""
    imports: dict[str, int] = {}
    rest: list[tuple[str, int]] = []
    for i, piece in enumerate(pieces):
        lines = piece.code.encode().split(b"\n")
        trials = _Trials(piece.tried)
        for node in parse(piece.code).body:
            if isinstance(node, _IMPORTS):
                imports |= {line: i for line in _imported(node, piece.without) if line not in imports}
            elif not (is_idle(node) or trials.has(node) or _takes(node, set(piece.without))):
                rest.append((_source(lines, node), i))
    future = "from __future__ "
    return [*sorted(imports.items(), key=lambda one: not one[0].startswith(future)), *rest]


def _imported(node: ast.Import | ast.ImportFrom, without: Collection[str]) -> list[str]:
    """The import without the names that must not be defined: [] if nothing is left of it."""
    node.names = [alias for alias in node.names if (alias.asname or alias.name) not in without]
    return [ast.unparse(node)] if node.names else []


def _source(lines: Sequence[bytes], node: ast.stmt) -> str:
    """The statement as it is written. Positions in the tree are lines from 1 and bytes from 0."""
    start, end = first_line(node) - 1, node.end_lineno or node.lineno
    taken = list(lines[start:end])
    taken[-1] = taken[-1][: node.end_col_offset]
    if start == node.lineno - 1:
        taken[0] = taken[0][node.col_offset :]
    return b"\n".join(taken).decode()


def _takes(node: ast.stmt, names: set[str]) -> bool:
    """May this statement of the top level give one of the names another value, or other code?

    It stores it, in a block, a loop or an expression as well; it holds a function that declares it global and stores
    it, or that stores it in another object than ``self``; or it reaches names otherwise, ``globals()`` say, in a
    function with a text of that name. No definition, it reaches names as text at all.
    """
    if not names or stored([node]) & names:
        return bool(names)
    parts = list(ast.walk(node))
    for inside in (part for part in parts if isinstance(part, _DEFINES)):
        own = {name for part in ast.walk(inside) if isinstance(part, ast.Global) for name in part.names}
        if own & names & stored(inside.body):
            return True
    reached = [part for part in parts if isinstance(part, ast.Attribute)]
    if any(_is_set(part) and part.attr in names for part in reached):
        return True
    used, attributes = _names(node), {part.attr for part in reached}
    if used & _REACHES or attributes & _REACHING:
        return True
    docstrings = {id(part.value) for part in parts if isinstance(part, ast.Expr)}
    unread = set() if "__doc__" in attributes else docstrings
    said = [part for part in parts if isinstance(part, ast.Constant) and id(part) not in unread]
    texts = [part.value for part in said if isinstance(part.value, str)]
    says = any(text in names or _REACHED.search(text) for text in texts)
    return bool((used | attributes) & _BY_TEXT) and (says or not isinstance(node, _DEFINES))


def _is_set(node: ast.Attribute) -> bool:
    """Is an attribute stored in something else than ``self`` or ``cls``?"""
    own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    return isinstance(node.ctx, ast.Store) and not own


class _Trials:
    """Which statements of a piece try its code out, asked one after the other.

    An ``assert``; an assignment that calls what is tried, asks for input, or reads what such an assignment gave, but
    not one that makes something new of what is tried (``f = cached(f)``); what is neither an assignment nor a
    definition and prints, asks for input or for ``__name__``, names what is tried, or calls a function of the piece
    that asserts something or calls what is tried.
    """

    def __init__(self, tried: Collection[str]) -> None:
        self.tried = set(tried)
        self.calls = {"input", *tried}  # and functions that call these
        self.asserts: set[str] = set()  # functions that do
        self.results: set[str] = set()

    def has(self, node: ast.stmt) -> bool:
        called = _names(*(part.func for part in ast.walk(node) if isinstance(part, ast.Call)))
        asserts = any(isinstance(part, ast.Assert) for part in ast.walk(node))
        if isinstance(node, _DEFINES):
            self.calls |= {node.name} if called & self.calls else set()
            self.asserts |= {node.name} if asserts else set()
            return False
        if isinstance(node, _ASSIGNS):
            given = stored([node])
            is_trial = bool(called & self.calls or loaded(node) & self.results) and not given & self.tried
            self.results = self.results | given if is_trial else self.results - given
            return is_trial
        names = _TRIES | self.tried | self.results
        return asserts or bool(_names(node) & names or called & (self.calls | self.asserts))


def _names(*nodes: ast.AST) -> set[str]:
    """The names in them."""
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}
