"""Merging of several authors' code into one program."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from coevolve.rewards.code.syntax import ASSIGNS, NAMED, first_line, free, is_idle, loaded, parse, stored

_IMPORTS = (ast.Import, ast.ImportFrom)
_SHOWS = {"print"}
_FILLS = {"append", "add", "update", "extend", "insert", "setdefault"}
_TRIES = {"__name__", "input", "unittest", "doctest", "pytest"}
_REACHES = {"globals", "exec"}
_REACHING = {"__globals__", "f_globals", "modules", "__code__", "__defaults__", "__kwdefaults__"}
"""Names and attributes with which a function, when called, can replace the code behind a name of the program."""
_REACHED = re.compile(rf"(?<!\w)(?:{'|'.join(sorted(_REACHES | _REACHING))})(?!\w)")
_BY_TEXT = {"locals", "vars", "eval", "setattr", "__dict__"}
"""Names and attributes that allow the same with a text that holds the name."""


@dataclass(frozen=True)
class Piece:
    """One author's code. without: the names that it must not define. tried: the functions whose trial calls are left
    out."""

    code: str
    without: Collection[str] = ()
    tried: Collection[str] = ()


def chunks(pieces: Sequence[Piece]) -> list[tuple[str, int]]:
    """Return the parts of one program made of the pieces, each with the index of its piece: all imports first, each
    once, starting with those from ``__future__``, without those that fail and are of no use (see ``_imported``).

    Functions, classes, constants and other top-level statements stay as written and in their order, so that the last
    definition of a name holds. Left out are statements that may define, in any way, a name that their piece must not
    define (see ``_takes``); idle statements; and those that try the code out (see ``_Trials``). Raises ValueError if a
    piece does not parse.
    """
    imports: list[tuple[ast.Import | ast.ImportFrom, int]] = []
    rest: list[tuple[ast.stmt, str, int]] = []
    bodies = [parse(piece.code).body for piece in pieces]
    read = {name for body in bodies for node in body if isinstance(node, NAMED) for name in free(node)}
    for i, (piece, body) in enumerate(zip(pieces, bodies, strict=True)):
        lines = piece.code.encode().split(b"\n")
        trials = _Trials(piece, read)
        for node in body:
            if isinstance(node, _IMPORTS):
                imports.append((node, i))
            elif not (is_idle(node) or trials.has(node) or _takes(node, set(piece.without))):
                rest.append((node, _source(lines, node), i))
    defined = {node.name for node, _, _ in rest if isinstance(node, NAMED)}
    needed = {name for node, _, _ in rest for name in loaded(node)} - defined
    hoisted: dict[str, int] = {}
    for imported, i in imports:
        for line in _imported(imported, pieces[i].without, needed):
            hoisted.setdefault(line, i)
    future = "from __future__ "
    first = sorted(hoisted.items(), key=lambda one: not one[0].startswith(future))
    return [*first, *((text, i) for _, text, i in rest)]


def _imported(node: ast.Import | ast.ImportFrom, without: Collection[str], needed: Collection[str]) -> list[str]:
    """Return the import statement without the names that must not be defined, and without those that a program cannot
    import, as only the standard library is there, and does not need from it: [] if nothing is left."""

    def stays(alias: ast.alias) -> bool:
        name = alias.asname or alias.name
        module = alias.name if isinstance(node, ast.Import) else "." * node.level + (node.module or "")
        is_there = module.split(".")[0] in sys.stdlib_module_names
        return name not in without and (is_there or name.split(".")[0] in needed)

    node.names = [alias for alias in node.names if stays(alias)]
    return [ast.unparse(node)] if node.names else []


def _source(lines: Sequence[bytes], node: ast.stmt) -> str:
    """Return the source of a statement as written. Positions in the tree are lines from 1 and bytes from 0."""
    start, end = first_line(node) - 1, node.end_lineno or node.lineno
    taken = list(lines[start:end])
    taken[-1] = taken[-1][: node.end_col_offset]
    if start == node.lineno - 1:
        taken[0] = taken[0][node.col_offset :]
    return b"\n".join(taken).decode()


def _takes(node: ast.stmt, names: set[str]) -> bool:
    """Return whether a top-level statement may give one of the names another value or other code.

    It may if it stores the name, also inside a block, a loop or an expression; if it holds a function that declares the
    name global and stores it, or sets an attribute of that name on an object other than a class's ``self`` or ``cls``;
    if it reaches names otherwise, for example by ``globals()``; or if it reaches names as text (``eval``) and is no
    definition, or holds a text with such a name.
    """
    if not names or stored([node]) & names:
        return bool(names)
    parts = list(ast.walk(node))
    for inside in (part for part in parts if isinstance(part, NAMED)):
        outer = {name for part in ast.walk(inside) if isinstance(part, ast.Global) for name in part.names}
        if outer & names & stored(inside.body):
            return True
    reached = [part for part in parts if isinstance(part, ast.Attribute)]
    own = _own(parts)
    if any(isinstance(part.ctx, ast.Store) and part.attr in names and not _is(part.value, own) for part in reached):
        return True
    used, attributes = _names(node), {part.attr for part in reached}
    if used & _REACHES or attributes & _REACHING:
        return True
    docstrings = {id(part.value) for part in parts if isinstance(part, ast.Expr)}
    unread = set() if "__doc__" in attributes else docstrings
    said = [part for part in parts if isinstance(part, ast.Constant) and id(part) not in unread]
    texts = [part.value for part in said if isinstance(part.value, str)]
    says = any(text in names or _REACHED.search(text) for text in texts)
    return bool((used | attributes) & _BY_TEXT) and (says or not isinstance(node, NAMED))


def _own(parts: Sequence[ast.AST]) -> set[str]:
    """Return ``self`` and ``cls`` where there is a class and neither is given another value."""
    given = {part.id for part in parts if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
    given |= {part.asname or part.name for part in parts if isinstance(part, ast.alias)}
    return {"self", "cls"} - given if any(isinstance(part, ast.ClassDef) for part in parts) else set()


def _is(node: ast.AST, names: Collection[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


class _Trials:
    """Detection of the statements that try a piece's code out; ``has`` is called on each statement in order.

    A trial is an assignment that calls a tried function or ``input``, or reads the result of such an assignment, unless
    it redefines a tried function (``f = cached(f)``) or makes a table that a definition reads (``SQUARES = f(100)``);
    and any statement that is neither an assignment nor a definition and names ``input``, ``__name__``, ``unittest`` or
    the like, a tried function or the result of a trial, calls a function of the piece that asserts something or calls a
    tried function, or has a ``print`` or an ``assert`` and does not fill such a table (``SQUARES.append(i * i)``),
    which no definition fills, from names that the piece has set before.
    read: the global names that definitions of the program read.
    """

    def __init__(self, piece: Piece, read: set[str]) -> None:
        self.tried, self.read = set(piece.tried), read
        self.calls = {"input", *piece.tried}  # and the functions of the piece that call these
        # Functions that are not there, or fail without input; and their callers.
        self.fails = {"input", *(set(piece.without) & self.tried)}
        self.asserts: set[str] = set()  # functions of the piece that assert something
        self.results: set[str] = set()
        self.tables: set[str] = set()  # names that the piece assigns and a definition reads
        self.filled: set[str] = set()  # names that its definitions fill themselves: no tables
        self.known = set(dir(builtins))

    def has(self, node: ast.stmt) -> bool:
        called = _names(*(part.func for part in ast.walk(node) if isinstance(part, ast.Call)))
        asserts = any(isinstance(part, ast.Assert) for part in ast.walk(node))
        if isinstance(node, NAMED):
            self.calls |= {node.name} if called & self.calls else set()
            self.fails |= {node.name} if called & self.fails else set()
            self.asserts |= {node.name} if asserts else set()
            self.filled |= _filled(node)
            self.known |= {node.name}
            return False
        if isinstance(node, ASSIGNS):
            given, of_results = stored([node]), loaded(node) & self.results
            table = given & self.read and not (of_results or called & self.fails)
            is_trial = bool(called & self.calls or of_results) and not (given & self.tried or table)
            self.results = self.results | given if is_trial else self.results - given
            self.tables |= set() if is_trial else given & self.read
            self.known |= set() if is_trial else given
            return is_trial
        if _names(node) & (_TRIES | self.tried | self.results) or called & (self.calls | self.asserts):
            return True
        fills = _filled(node) & (self.tables - self.filled) and not loaded(node) - stored([node]) - self.known
        return bool(asserts or _names(node) & _SHOWS) and not fills


def _filled(node: ast.stmt) -> set[str]:
    """Return the names that a statement stores into, or fills by a method: ``a`` in ``a[0] = 1``, ``a.append(1)``."""
    held: list[ast.AST] = []
    for part in ast.walk(node):
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            held += [part.value.func] if getattr(part.value.func, "attr", "") in _FILLS else []
        elif isinstance(part, ast.Attribute | ast.Subscript) and isinstance(part.ctx, ast.Store):
            held.append(part)
    whole = [part.value for part in held if isinstance(part, ast.Attribute | ast.Subscript)]
    return stored([node]) | {part.id for part in whole if isinstance(part, ast.Name)}


def _names(*nodes: ast.AST) -> set[str]:
    """Return all names in these nodes."""
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}
