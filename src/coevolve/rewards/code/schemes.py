"""The cooperation schemes of a main function and its helper, as MAGRPO saw them emerge (arXiv 2508.04652).

    fallback      main returns the helper's result if there is a good one, and has another way if not
    coordinator   main splits the work: it calls the helper several times in one run or for each of many items, or
                  combines its result with work of its own
    filter        the helper's result selects what main does, and is no part of what main returns
    decorator     the helper does the core, once; main guards or prepares its input, or polishes its output

A pair has the first of these schemes that fits. They are ordered from the most to the least telling, because nearly
every main function has some guard or polish. There is no scheme if the helper is not called, or if its result is
returned unchanged or thrown away.

Order within a function is ignored: a name that ever holds a value made of the helper's result counts as made of it
everywhere. Only the function that makes the calls is examined: main, if it makes any.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coevolve.rewards.code.flow import Flow, leaves, operands, results, tests
from coevolve.rewards.code.syntax import Function, is_none
from coevolve.rewards.code.usage import Use

SCHEMES = ("fallback", "coordinator", "filter", "decorator")

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def scheme(main: Function, uses: Sequence[Use]) -> str:
    """Return the scheme (see the module) of a main function with these calls of its helper, at least one."""
    inside = main if any(use.inside is main for use in uses) else uses[0].inside
    own = [use for use in uses if use.inside is inside]
    flow = Flow(inside, [use.call for use in own])
    if _falls_back(flow):
        return "fallback"
    if any(use.many for use in own) or _in_loop(flow) or _most(flow, flow.body) > 1 or _is_combined(flow):
        return "coordinator"
    return "filter" if _only_selects(flow) else "decorator"


def _falls_back(flow: Flow) -> bool:
    conditions = {part for test in tests(flow.nodes) for part in ast.walk(test)}
    return (
        any(_catches(flow, node) for node in flow.nodes if isinstance(node, ast.Try))
        or any(_has_two_ways(flow, *branches) for branches in _branches(flow))
        or any(_is_or(flow, node) for node in flow.nodes if node not in conditions)
    )


def _catches(flow: Flow, node: ast.Try) -> bool:
    """Return whether a ``try`` calls the helper and a handler gives something else, or goes on to a ``return`` of
    something else."""
    if not any(flow.calls_in(part) for part in node.body):
        return False
    inside = set(ast.walk(node))
    after = [_outcome(flow, part) for part in flow.returns if part not in inside]
    return any(
        _outcome(flow, *handler.body).others or (not leaves(handler.body) and any(way.others for way in after))
        for handler in node.handlers
    )


@dataclass(frozen=True)
class _Outcome:
    """The values that statements return and assign. takes: the helper's results that become part of them. others: the
    values made of no result, as (the name assigned, None if returned; whether the value is computed).
    """

    takes: frozenset[str] = frozenset()
    others: frozenset[tuple[str | None, bool]] = frozenset()

    def __or__(self, other: _Outcome) -> _Outcome:
        return _Outcome(self.takes | other.takes, self.others | other.others)

    def replaces(self, tested: set[str], anything: bool) -> bool:
        """Return whether another value is returned or assigned to the tested names: a computed one, or with
        ``anything`` any value."""
        return any((name is None or name in tested) and (worked or anything) for name, worked in self.others)


def _outcome(flow: Flow, *block: ast.AST) -> _Outcome:
    pairs = [pair for node in block for pair in results(node)]
    others = {(name, flow.works(value)) for name, value in pairs if not (flow.reads(value) or is_none(value))}
    return _Outcome(frozenset(result for _, value in pairs for result in flow.flowing(value)), frozenset(others))


def _branches(flow: Flow) -> Iterator[tuple[ast.expr, _Outcome, _Outcome]]:
    """Yield (condition, outcome if it holds, outcome if not). A branch that does not leave its block includes the
    outcome of the statements after the ``if``."""
    for block in flow.blocks:
        after = _Outcome()
        for node in reversed(block):
            if isinstance(node, ast.If):
                yes, no = (
                    _outcome(flow, *way) | (_Outcome() if leaves(way) else after) for way in (node.body, node.orelse)
                )
                yield node.test, yes, no
            after |= _outcome(flow, node)
    for part in flow.nodes:
        if isinstance(part, ast.IfExp):
            yield part.test, _outcome(flow, part.body), _outcome(flow, part.orelse)


def _has_two_ways(flow: Flow, test: ast.expr, yes: _Outcome, no: _Outcome) -> bool:
    """Return whether a result is tested, then used on one branch and replaced on the other.

    The replacement must be computed, unless the test asks whether there is a result at all: clipping a result at a
    bound is a polish.
    """
    tested = flow.sources(test)
    anything = _asks_if_there(test)
    return any(one.takes & tested and other.replaces(tested, anything) for one, other in ((yes, no), (no, yes)))


def _asks_if_there(test: ast.expr) -> bool:
    """Return whether a test asks for a result's existence: ``result``, ``not result``, ``result is None``,
    ``result == -1``, ``isinstance(...)``, or several of these."""
    if isinstance(test, ast.BoolOp):
        return any(_asks_if_there(value) for value in test.values)
    if isinstance(test, ast.UnaryOp):
        return _asks_if_there(test.operand)
    if isinstance(test, ast.Compare):
        return all(isinstance(operator, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) for operator in test.ops)
    return isinstance(test, ast.Name | ast.Call)


def _is_or(flow: Flow, node: ast.AST) -> bool:
    """Return whether a node is ``aux(x) or something_else``: the first operand reads a result, and no other one reads
    a result or is a condition."""
    if not (isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and flow.reads(node.values[0])):
        return False
    condition = (ast.Compare, ast.BoolOp, ast.UnaryOp)
    return not any(isinstance(value, condition) or flow.reads(value) for value in node.values[1:])


def _in_loop(flow: Flow) -> bool:
    """Return whether a loop, a comprehension or a lambda calls the helper repeatedly."""
    for node in flow.nodes:
        repeated: list[ast.AST] = []
        if isinstance(node, ast.For | ast.AsyncFor):
            repeated = [*node.body]
        elif isinstance(node, ast.While):
            repeated = [node.test, *node.body]
        elif isinstance(node, ast.Lambda):
            repeated = [node.body]
        elif isinstance(node, _COMPREHENSIONS):
            once = node.generators[0].iter
            repeated = [part for part in ast.iter_child_nodes(node) if part is not node.generators[0]]
            repeated += [part for part in ast.iter_child_nodes(node.generators[0]) if part is not once]
        if any(flow.calls_in(part) for part in repeated):
            return True
    return False


def _most(flow: Flow, block: Sequence[ast.stmt]) -> int:
    """Return the most calls of the helper in one run of a block, loops ignored; a run takes one branch of an ``if``."""
    count = 0
    for node in reversed(block):
        if isinstance(node, ast.If):
            ways = [_most(flow, way) + (0 if leaves(way) else count) for way in (node.body, node.orelse)]
            count = flow.calls_in(node.test) + max(ways)
        else:
            count += flow.calls_in(node)
    return count


def _is_combined(flow: Flow) -> bool:
    """Return whether an operator, a call or a collection combines a result with work of main's own."""
    for node in flow.nodes:
        parts = [] if node in flow.calls else operands(node)
        if any(flow.flowing(part) for part in parts) and any(flow.works(part) for part in parts):
            return True
        if isinstance(node, ast.AugAssign) and flow.flowing(node.value) and isinstance(node.target, ast.Name):
            return any(flow.works(value) for name, value in flow.given if name == node.target.id)
    return False


def _only_selects(flow: Flow) -> bool:
    """Return whether conditions read a result, and no returned value is made of one."""
    returned = [
        node.value for node in flow.nodes if isinstance(node, ast.Return | ast.Yield) and node.value is not None
    ]
    return any(flow.reads(test) for test in tests(flow.nodes)) and not any(flow.flowing(value) for value in returned)
