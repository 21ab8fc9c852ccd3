"""How do a main function and its helper work together? The schemes that MAGRPO saw emerge (arXiv 2508.04652).

    fallback      main takes what the helper returns if it is there and good, and has another way if not
    coordinator   main splits the work: it calls the helper several times on one run or for each of many things, or
                  puts its result together with work of its own
    filter        what the helper returns selects what main does, and is no part of what main returns
    decorator     the helper does the core, once; main guards or prepares what goes in, or polishes what comes out

A pair is of the first of these that fits, in this order: from what says most to what says least, where nearly every
main function has some guard or polish. None where the helper is not called, or its result is passed on as it is or
thrown away.

What a name holds is not followed through time: one that ever holds something made of the helper's result counts as
made of it everywhere in the function. Only the function that makes the calls is looked at, main if it makes any.
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
    """The scheme of a main function with these calls of its helper, at least one. See the module."""
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
    """``try`` the helper; a handler gives something else, or lets the run go on to a ``return`` of something else."""
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
    """What statements return and assign. takes: the results that become part of it. others: what is made of none, (the
    name that is given it, None if it is returned; whether it is worked out).
    """

    takes: frozenset[str] = frozenset()
    others: frozenset[tuple[str | None, bool]] = frozenset()

    def __or__(self, other: _Outcome) -> _Outcome:
        return _Outcome(self.takes | other.takes, self.others | other.others)

    def replaces(self, tested: set[str], anything: bool) -> bool:
        """Is something else returned, or put in the tested names? It must be worked out, if it may not be anything."""
        return any((name is None or name in tested) and (worked or anything) for name, worked in self.others)


def _outcome(flow: Flow, *block: ast.AST) -> _Outcome:
    pairs = [pair for node in block for pair in results(node)]
    others = {(name, flow.works(value)) for name, value in pairs if not (flow.reads(value) or is_none(value))}
    return _Outcome(frozenset(result for _, value in pairs for result in flow.flowing(value)), frozenset(others))


def _branches(flow: Flow) -> Iterator[tuple[ast.expr, _Outcome, _Outcome]]:
    """(condition, what comes if it holds, what if not), what stands after an ``if`` included where its branch ends."""
    for block in flow.blocks:
        after = _Outcome()
        for node in reversed(block):
            if isinstance(node, ast.If):
                yes, no = (_outcome(flow, *way) | (_Outcome() if leaves(way) else after) for way in _ways(node))
                yield node.test, yes, no
            after |= _outcome(flow, node)
    for part in flow.nodes:
        if isinstance(part, ast.IfExp):
            yield part.test, _outcome(flow, part.body), _outcome(flow, part.orelse)


def _ways(node: ast.If) -> tuple[list[ast.stmt], list[ast.stmt]]:
    return node.body, node.orelse


def _has_two_ways(flow: Flow, test: ast.expr, yes: _Outcome, no: _Outcome) -> bool:
    """Is a result put to the test, then taken on one way and replaced on the other?

    What replaces it must be worked out, unless the test asks whether there is a result at all: to cut a result at a
    bound is a polish.
    """
    tested = flow.sources(test)
    anything = _asks_if_there(test)
    return any(one.takes & tested and other.replaces(tested, anything) for one, other in ((yes, no), (no, yes)))


def _asks_if_there(test: ast.expr) -> bool:
    """``result``, ``not result``, ``result is None``, ``result == -1``, ``isinstance(...)``, or several of these."""
    if isinstance(test, ast.BoolOp):
        return any(_asks_if_there(value) for value in test.values)
    if isinstance(test, ast.UnaryOp):
        return _asks_if_there(test.operand)
    if isinstance(test, ast.Compare):
        return all(isinstance(operator, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) for operator in test.ops)
    return isinstance(test, ast.Name | ast.Call)


def _is_or(flow: Flow, node: ast.AST) -> bool:
    """``aux(x) or something_else``, where that is no condition."""
    if not (isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and flow.reads(node.values[0])):
        return False
    condition = (ast.Compare, ast.BoolOp, ast.UnaryOp)
    return not any(isinstance(value, condition) or flow.reads(value) for value in node.values[1:])


def _in_loop(flow: Flow) -> bool:
    """Is there a call that a loop or a comprehension makes for each of many things?"""
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
    """The most calls that one run makes, loops aside: of the branches of an ``if`` it takes one."""
    count = 0
    for node in reversed(block):
        if isinstance(node, ast.If):
            ways = [_most(flow, way) + (0 if leaves(way) else count) for way in _ways(node)]
            count = flow.calls_in(node.test) + max(ways)
        else:
            count += flow.calls_in(node)
    return count


def _is_combined(flow: Flow) -> bool:
    """Does an operator, a call or a collection put a result together with work of main's own?"""
    for node in flow.nodes:
        parts = [] if node in flow.calls else operands(node)
        if any(flow.flowing(part) for part in parts) and any(flow.works(part) for part in parts):
            return True
        if isinstance(node, ast.AugAssign) and flow.flowing(node.value) and isinstance(node.target, ast.Name):
            return any(flow.works(value) for name, value in flow.given if name == node.target.id)
    return False


def _only_selects(flow: Flow) -> bool:
    """Do conditions read a result, and nothing that is returned?"""
    returned = [
        node.value for node in flow.nodes if isinstance(node, ast.Return | ast.Yield) and node.value is not None
    ]
    return any(flow.reads(test) for test in tests(flow.nodes)) and not any(flow.flowing(value) for value in returned)
