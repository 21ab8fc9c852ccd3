"""Liveness of names in a function: a name is dead if it is read only to compute other dead names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from coevolve.rewards.code.syntax import loaded, names_of

_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_MAKERS = {"list", "dict", "set"}


class Kept(NamedTuple):
    """A statement that puts a value into the container ``name``. parts: the expressions of the value and its place."""

    name: str
    parts: list[ast.expr]


def alive(function: ast.AST, containers: Collection[str], is_quiet: Callable[[ast.AST], bool]) -> set[str]:
    """Return the live names: those read by anything other than assertions and assignments to dead names.

    containers: the names that hold a container created in the function. is_quiet: whether evaluating a node has no
    effect besides its value. Order is ignored: a name that is read anywhere is alive everywhere.
    """
    made_of: dict[str, list[set[str]]] = {}  # name -> what its values read; names assigned together share a set
    fresh: set[str] = set()
    waiting: list[ast.AST] = [function]
    while waiting:
        node = waiting.pop()
        if only_checks(node):
            continue
        given = given_by(node, containers)
        if given is None or not all(is_quiet(part) for part in given[1]):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                fresh.add(node.id)
            waiting += ast.iter_child_nodes(node)
            continue
        read = set[str]().union(*map(loaded, given[1]))
        for name in given[0]:
            made_of.setdefault(name, []).append(read)
    found = set(fresh)
    seen = set[int]()
    while fresh:
        reads = {id(read): read for name in fresh for read in made_of.get(name, ())}
        fresh = set[str]().union(*(read for one, read in reads.items() if one not in seen)) - found
        seen |= reads.keys()
        found |= fresh
    return found


def containers(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names that are only ever assigned a newly created list, dict or set."""
    own, other = set(), set()
    for node in nodes:
        if isinstance(node, ast.Assign) and _is_made(node.value):
            own |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            nodes_of = [target for target in node.targets if not isinstance(target, ast.Name)]
            other |= {part.id for target in nodes_of for part in ast.walk(target) if isinstance(part, ast.Name)}
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.For | ast.withitem):
            held = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
            stored = (part for target in held for part in ast.walk(target))
            other |= {part.id for part in stored if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    return own - other


def kept_in(node: ast.AST, containers: Collection[str]) -> Kept | None:
    """Return what a statement puts into one of the containers (``a.append(b)``, ``a[b] = c``); None for others."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        parts = [*node.value.args, *(keyword.value for keyword in node.value.keywords)]
        holder = node.value.func.value
    elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
        parts = [node.targets[0].slice, node.value]
        holder = node.targets[0].value
    else:
        return None
    return Kept(holder.id, parts) if isinstance(holder, ast.Name) and holder.id in containers else None


def given_by(node: ast.AST, containers: Collection[str] = ()) -> tuple[set[str], list[ast.expr]] | None:
    """Return (names, the expressions assigned to them) of a statement that only assigns names, or puts something into a
    container; None for others."""
    if (kept := kept_in(node, containers)) is not None:
        return {kept.name}, kept.parts
    if isinstance(node, ast.Assign):
        held = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign) and node.value is not None:
        held = [node.target]
    else:
        return None
    names = names_of(held)
    assert node.value is not None
    return None if names is None else (names, [node.value])


def only_checks(node: ast.AST) -> bool:
    """Return whether a node is an assertion that gives and assigns nothing: what it reads is not used for a result."""
    acts = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
    return isinstance(node, ast.Assert) and not any(isinstance(part, acts) for part in ast.walk(node))


def _is_made(value: ast.expr) -> bool:
    made = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _MAKERS
    return made or isinstance(value, _DISPLAYS)
