"""Removal of code that makes no difference, to judge how functions work together; the simplified code is never run.

    y = aux(x); z = y + 1; return 2 * x          becomes    return 2 * x
    if x > 0: return aux(x)                      becomes    return aux(x)
    return aux(x)
    return (aux(x), 0)[0]                        becomes    return aux(x)

Each rule keeps what a function returns, as far as the shape of its code shows. Simplified are dead names, values that
are overwritten before they are read, code that is never reached, conditions that decide nothing, loops that run once or
never, displays that are indexed at once, ``0 * x``, ``x - x`` and ``x == x`` (even if x could be NaN). What only a run
would show (``len(x) < 0``) is not recognised.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Sequence

from coevolve.rewards.code.alive import alive, containers, given_by, kept_in, only_checks
from coevolve.rewards.code.syntax import (
    ASSIGNS,
    DEFINED,
    NAMED,
    assigned,
    is_idle,
    loaded,
    names_of,
    scope,
    targets,
    truth,
)
from coevolve.rewards.code.usage import called

PURE = frozenset(
    """
    abs all any bool chr dict divmod enumerate eval filter float frozenset hash id int isinstance len list locals map
    max min ord pow print range repr reversed round set sorted str sum tuple type vars zip
    """.split()  # noqa: SIM905
)
"""Functions without side effects: a call whose result is unused makes no difference. (That of ``eval`` does not, in
what anybody writes.)"""

_ROUNDS = 8
_NAMES = 4
"""Most names of one lambda that become functions: their bodies are simplified one by one."""
_BY_TEXT = {"locals", "vars", "eval", "exec"}
"""Builtins that may read names as text: who reads one of them counts as reading every name."""
_LEAVES = (ast.Return, ast.Raise)
_JUMPS = (*_LEAVES, ast.Break, ast.Continue)
_TAUTOLOGIES = (ast.Eq, ast.Is, ast.LtE, ast.GtE)


def simplify(tree: ast.Module, pure: Collection[str] = ()) -> ast.Module:
    """Simplify the functions of a tree's top level and the methods of its classes in place, and return the tree.

    ``name = lambda ...`` becomes a function too. pure: functions of the program whose unused calls may be removed, like
    those of ``PURE``.
    """
    bodies = [tree.body]
    for body in bodies:  # which grow: classes within classes
        bodies += [node.body for node in body if isinstance(node, ast.ClassDef)]
        body[:] = [one for node in body for one in _defined(node)]
    shared = containers(tree.body)
    sinks = shared - alive(tree, shared, lambda _: True)
    for node in (node for body in bodies for node in body):
        if isinstance(node, DEFINED):
            nodes = list(ast.walk(node))
            for _ in range(_ROUNDS):
                one = _Round(node, nodes, pure, sinks)
                one.apply()
                size, nodes = len(nodes), list(ast.walk(node))
                if len(nodes) == size and not one.split:  # nothing changed: all other rules make the tree smaller
                    break
    return tree


class _Round:
    """One pass over a function. pure: functions whose unused calls make no difference; helpers: those of the program
    among them. dead: names that nothing else depends on. shared: names that other functions read or set. sinks: dead
    names of containers, including the program's. constants: names assigned once, with a constant. tried: nodes in the
    body of a ``try``, where even an unused call may decide what is done. split: whether a statement became several.
    """

    split = False

    def __init__(
        self,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        nodes: Sequence[ast.AST],
        helpers: Collection[str],
        sinks: Collection[str],
    ) -> None:
        stores = Counter(part.id for part in nodes if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load))
        stores.update(part.arg for part in nodes if isinstance(part, ast.arg))
        stores.update(part.name for part in nodes[1:] if isinstance(part, NAMED))
        declared = {name for part in nodes if isinstance(part, ast.Global | ast.Nonlocal) for name in part.names}
        outside = set(scope(function.body))
        self.shared = declared | {part.id for part in nodes if isinstance(part, ast.Name) and part not in outside}
        self.nodes, self.helpers = nodes, set(helpers) - stores.keys()
        self.pure = PURE - stores.keys() | self.helpers
        own = containers(nodes) - {part.arg for part in nodes if isinstance(part, ast.arg)} - declared
        read = alive(function, own, self.is_quiet)
        self.dead = set() if read & _BY_TEXT else stores.keys() - read - declared
        self.sinks = own & self.dead | (set(sinks) - stores.keys())
        self.constants = {
            name: part.value
            for part in function.body
            if isinstance(part, ast.Assign) and isinstance(part.value, ast.Constant)
            for name in targets(part)
            if stores[name] == 1 and name not in declared
        }
        tried = [statement for part in nodes if isinstance(part, ast.Try) for statement in part.body]
        self.tried = {inner for statement in tried for inner in ast.walk(statement)}

    def apply(self) -> None:
        for node in reversed(self.nodes):  # children before their parents
            for field, value in ast.iter_fields(node):
                if isinstance(value, ast.expr):
                    setattr(node, field, self.simpler(value))
                elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    setattr(node, field, self.shorter(node, value) or ([ast.Pass()] if field == "body" else []))
                elif isinstance(value, list):
                    value[:] = [self.simpler(part) if isinstance(part, ast.expr) else part for part in value]

    def is_quiet(self, *nodes: ast.AST) -> bool:
        """Return whether evaluating these nodes has no effect besides their values."""
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Call):
                functions = [node.func, *(keyword.value for keyword in node.keywords if keyword.arg == "key")]
                functions += node.args[:1] if called(node) in ("map", "filter") else []
                if not all(isinstance(part, ast.Name) and part.id in self.pure for part in functions):
                    return False
            elif isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
                return False
            if not isinstance(node, ast.Lambda):
                waiting += ast.iter_child_nodes(node)
        return True

    # --- statements ---------------------------------------------------------------------------------------------------

    def shorter(self, node: ast.AST, block: list[ast.stmt]) -> list[ast.stmt]:
        """Return a block of this node without dead and unreachable statements."""
        if isinstance(node, ast.ClassDef):  # its names are attributes, which may be read elsewhere
            return block
        stays = node in self.tried or (isinstance(node, ast.Try) and block is node.body)
        found: list[ast.stmt] = []
        overwritten = set() if stays else self._overwritten(block)
        for statement in block:
            if stays or not (statement in overwritten or self._leads_nowhere(statement)):
                found += self._instead(statement)
            if found and isinstance(found[-1], _JUMPS):
                break
        for i in range(len(found) - 2, -1, -1):  # ``if ...: return y`` before ``return y``
            part = found[i]
            if isinstance(part, ast.If) and not part.orelse and isinstance(part.body[-1], _LEAVES):
                found[i : i + 1] = [] if self.is_quiet(part.test) and _same(part.body, found[i + 1 :]) else [part]
        return found

    def _leads_nowhere(self, node: ast.stmt) -> bool:
        if (kept := kept_in(node, self.sinks)) is not None:
            return self.is_quiet(*kept.parts)
        if isinstance(node, ASSIGNS):
            held = node.targets if isinstance(node, ast.Assign) else [node.target]
            return self._all_dead(held) and (node.value is None or self.is_quiet(node.value))
        if isinstance(node, ast.Delete):
            return self._all_dead(node.targets)
        if isinstance(node, ast.Expr):
            return self.is_quiet(node.value)
        if isinstance(node, ast.For):
            return _idle(node.body + node.orelse) and self._all_dead([node.target]) and self.is_quiet(node.iter)
        if isinstance(node, ast.If):
            return _idle(node.body + node.orelse) and self.is_quiet(node.test)
        if isinstance(node, ast.Assert):
            return is_idle(node) or (only_checks(node) and bool(loaded(node) & self.helpers))
        if isinstance(node, ast.Try) and not node.orelse:
            rest = [*node.finalbody, *(part for handler in node.handlers for part in handler.body)]
            return _idle(rest) and all(self._leads_nowhere(part) for part in node.body)
        return is_idle(node)

    def _overwritten(self, block: Sequence[ast.stmt]) -> set[ast.stmt]:
        """Return the assignments to names that nothing reads before the same block assigns them again."""
        found: set[ast.stmt] = set()
        again: set[str] = set()  # names that the statements below assign before they read them
        for node in reversed(block):
            names, values = given_by(node) or (set(), [])
            if names and names <= again and self.is_quiet(*values):
                found.add(node)
                continue
            again |= names - self.shared
            read = set() if only_checks(node) else loaded(node)
            again -= read | names if isinstance(node, ast.AugAssign) else read
            if read & _BY_TEXT or _jumps(node):
                again.clear()
        return found

    def _all_dead(self, held: Sequence[ast.expr]) -> bool:
        names = names_of(held)
        return names is not None and names <= self.dead

    def _instead(self, node: ast.stmt) -> list[ast.stmt]:
        """Return simpler statements with the same effect: the branch that is taken, the body of a loop that runs once,
        and so on."""
        if isinstance(node, ast.If):
            if (holds := truth(node.test)) is not None:
                return node.body if holds else node.orelse
            if self.is_quiet(node.test) and _same(node.body, node.orelse):
                return node.body
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and not loaded(node.value) & set(targets(node)):
            pairs = assigned(node)
            if len(pairs) > 1:  # a, b = c, d
                self.split = True
                return [ast.Assign([target], value) for target, value in pairs]
        if isinstance(node, ast.While) and truth(node.test) is False:
            return node.orelse
        if isinstance(node, ast.While) and truth(node.test) and _leaves_at_once(node):
            return node.body
        if isinstance(node, ast.For) and (items := _items(node.iter)) is not None:
            if not items:
                return node.orelse
            if _leaves_at_once(node) and self.is_quiet(*items[1:]):
                return [ast.Assign([node.target], items[0]), *node.body]
        if isinstance(node, ast.Try) and not node.orelse and _idle(node.finalbody):
            ways = [handler.body for handler in node.handlers if not _raises_again(handler.body)]
            return node.body if all(_same(way, node.body) for way in ways) else [node]
        found = _defined(node)
        self.split = self.split or len(found) > 1
        return found

    # --- expressions --------------------------------------------------------------------------------------------------

    def simpler(self, node: ast.expr) -> ast.expr:
        """Return a simpler expression of the same value, or the node itself."""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            return self.constants.get(node.id, node)
        if isinstance(node, ast.NamedExpr) and node.target.id in self.dead:
            return node.value
        if isinstance(node, ast.IfExp):
            if (holds := truth(node.test)) is not None:
                return node.body if holds else node.orelse
            if self.is_quiet(node.test) and _same(node.body, node.orelse):
                return node.body
        if isinstance(node, ast.BoolOp):
            decided = [truth(value) is isinstance(node.op, ast.Or) for value in node.values]
            if True in decided[:-1]:  # ``a or 1 or b``
                node.values = node.values[: decided.index(True) + 1]
            if len(node.values) == 1:
                return node.values[0]
        if isinstance(node, ast.BoolOp | ast.BinOp | ast.Compare) and self.is_quiet(node):
            return _decided(node)
        return self._taken_apart(node) or _called_at_once(node) or node

    def _taken_apart(self, node: ast.expr) -> ast.expr | None:
        """Return the element of ``(a, b)[0]`` or ``{"a": b}["a"]``, if the others have no side effects; else None."""
        if not isinstance(node, ast.Subscript) or (place := _constant(node.slice)) is None:
            return None
        held, element = node.value, None
        if isinstance(held, ast.Dict):
            found = {_constant(key): value for key, value in zip(held.keys, held.values, strict=True) if key}
            element = found.get(place)
        elif isinstance(held, ast.Tuple | ast.List) and isinstance(place, int):
            starred = any(isinstance(part, ast.Starred) for part in held.elts)
            inside = -len(held.elts) <= place < len(held.elts) and not starred
            element = held.elts[place] if inside else None
        others = [part for part in ast.iter_child_nodes(held) if part is not element]
        return element if self.is_quiet(*others) else None


def _decided(node: ast.BoolOp | ast.BinOp | ast.Compare) -> ast.expr:
    """Return the value of an operator whose operands cancel or are identical; else the node itself."""
    if isinstance(node, ast.BoolOp):
        if isinstance(node.op, ast.And) and truth(node.values[-1]) is False:
            return node.values[-1]  # the true value may be another false operand
        return node.values[0] if all(_same(node.values[0], value) for value in node.values) else node
    if isinstance(node, ast.Compare):
        decides = len(node.ops) == 1 and not isinstance(node.ops[0], ast.In | ast.NotIn)
        if decides and _same(node.left, node.comparators[0]):
            return ast.Constant(isinstance(node.ops[0], _TAUTOLOGIES))
        return node
    if isinstance(node.op, ast.Mult | ast.BitAnd) and 0 in map(_constant, (node.left, node.right)):
        return ast.Constant(0)
    if isinstance(node.op, ast.Sub | ast.BitXor) and _same(node.left, node.right):
        return ast.Constant(0)
    back = {ast.Add: ast.Sub, ast.Sub: ast.Add}.get(type(node.op))  # x + y - y
    left = node.left
    if back and isinstance(left, ast.BinOp) and isinstance(left.op, back) and _same(left.right, node.right):
        return left.left
    return node


def _defined(node: ast.stmt) -> list[ast.stmt]:
    """Return ``def f(x): return y`` for ``f = lambda x: y``, one for each of a few names; others unchanged."""
    if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Lambda):
        held = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [target.id for target in held if isinstance(target, ast.Name)]
        if len(names) == len(held) <= _NAMES:
            args, result = node.value.args, node.value.body
            return [
                ast.FunctionDef(name=name, args=args, body=[ast.Return(result)], decorator_list=[]) for name in names
            ]
    return [node]


def _idle(block: Sequence[ast.stmt]) -> bool:
    return all(is_idle(node) for node in block)


def _jumps(node: ast.stmt) -> bool:
    """Return whether a statement may ``break`` or ``continue`` the loop around it."""
    waiting: list[ast.AST] = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Break | ast.Continue):
            return True
        if isinstance(part, ast.For | ast.AsyncFor | ast.While):
            waiting += part.orelse  # whose jumps are the outer loop's
        else:
            waiting += ast.iter_child_nodes(part)
    return False


def _leaves_at_once(loop: ast.For | ast.While) -> bool:
    jumps = (ast.Break, ast.Continue)
    return isinstance(loop.body[-1], _LEAVES) and not any(isinstance(node, jumps) for node in ast.walk(loop))


def _raises_again(block: Sequence[ast.stmt]) -> bool:
    return isinstance(block[0], ast.Raise) and block[0].exc is None


def _items(node: ast.expr) -> list[ast.expr] | None:
    """Return the items that a loop over this expression visits, of a range only the first; None if unknown."""
    if isinstance(node, ast.List | ast.Tuple):
        return None if any(isinstance(part, ast.Starred) for part in node.elts) else node.elts
    if isinstance(node, ast.Constant) and node.value == "":
        return []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        ends = [end for end in map(_constant, node.args) if isinstance(end, int)]
        if len(ends) == len(node.args) in (1, 2):
            return [ast.Constant(first) for first in range(*ends)[:1]]
    return None


def _constant(node: ast.expr) -> object:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _constant(node.operand)
        return -inner if isinstance(inner, int) else None
    return node.value if isinstance(node, ast.Constant) else None


def _called_at_once(node: ast.expr) -> ast.expr | None:
    """Return ``aux(x)`` for ``(lambda v: aux(v))(x)``, and ``[aux(x)]`` for ``[aux(v) for v in [x]]`` and
    ``map(aux, [x])``; else None."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Lambda) and not node.keywords:
        taken = node.func.args
        names = [arg.arg for arg in taken.args]
        plain = not (taken.posonlyargs or taken.vararg or taken.kwonlyargs or taken.kwarg or taken.defaults)
        return _filled(node.func.body, names, node.args) if plain else None
    if isinstance(node, ast.ListComp | ast.GeneratorExp) and len(node.generators) == 1:
        loop = node.generators[0]
        items = _items(loop.iter) if isinstance(loop.iter, ast.List | ast.Tuple) and not loop.ifs else None
        if items is not None and len(items) == 1 and isinstance(loop.target, ast.Name) and not loop.is_async:
            element = _filled(node.elt, [loop.target.id], items)
            return None if element is None else ast.List([element], ast.Load())
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id == "map" and len(node.args) == 2 and isinstance(node.args[1], ast.List | ast.Tuple):
            items = node.args[1].elts
            return ast.List([ast.Call(node.args[0], items, [])], ast.Load()) if len(items) == 1 else None
        if node.func.id in ("list", "tuple") and len(node.args) == 1 and isinstance(node.args[0], ast.List):
            return node.args[0]
    return None


def _filled(body: ast.expr, names: Sequence[str], values: Sequence[ast.expr]) -> ast.expr | None:
    """Return the expression with names or constants in place of its parameters; None if that is not straightforward."""
    leaf = all(isinstance(value, ast.Name | ast.Constant) for value in values)
    scopes = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr)
    if len(names) != len(values) or not leaf or any(isinstance(node, scopes) for node in ast.walk(body)):
        return None
    given = dict(zip(names, values, strict=True))
    whole = ast.Expr(body)
    for node in list(ast.walk(whole)):
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.Name):
                setattr(node, field, given.get(value.id, value))
            elif isinstance(value, list):
                value[:] = [given.get(part.id, part) if isinstance(part, ast.Name) else part for part in value]
    return whole.value


def _same(first: object, second: object) -> bool:
    """Return whether two trees, or lists of trees, are the same code."""
    waiting = [(first, second)]
    while waiting:
        a, b = waiting.pop()
        if type(a) is not type(b):
            return False
        if isinstance(a, ast.AST):
            waiting += [(getattr(a, field, None), getattr(b, field, None)) for field in a._fields]
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            waiting += zip(a, b, strict=True)
        elif a != b:
            return False
    return True
