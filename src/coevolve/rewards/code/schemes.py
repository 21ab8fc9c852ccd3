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

from coevolve.rewards.code.flow import Flow, block_values, leaves, operands, tests
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
        or any(_has_two_ways(flow, *branch) for branch in _branches(flow))
        or any(_is_or(flow, node) for node in flow.nodes if node not in conditions)
    )


def _catches(flow: Flow, node: ast.Try) -> bool:
    """``try`` the helper; a handler gives something else, or lets the run go on to a ``return`` of something else."""
    if not any(flow.reads(part) for part in node.body):
        return False
    for handler in node.handlers:
        if any(not is_none(value) for value in block_values(handler.body)):
            return True
        inside = set(ast.walk(node))
        after = [part for part in flow.nodes if isinstance(part, ast.Return) and part not in inside]
        gives = [part.value for part in after if part.value is not None and not is_none(part.value)]
        if not leaves(handler.body) and any(not flow.reads(value) for value in gives):
            return True
    return False


def _branches(flow: Flow) -> Iterator[tuple[ast.expr, Sequence[ast.AST], Sequence[ast.AST]]]:
    """(condition, what runs if it holds, what if not), with what stands after an ``if`` whose branch leaves."""
    for block in flow.blocks:
        for i, node in enumerate(block):
            if isinstance(node, ast.If):
                after = block[i + 1 :]
                yield (
                    node.test,
                    [*node.body, *([] if leaves(node.body) else after)],
                    [*node.orelse, *([] if leaves(node.orelse) else after)],
                )
    for part in flow.nodes:
        if isinstance(part, ast.IfExp):
            yield part.test, [part.body], [part.orelse]


def _has_two_ways(flow: Flow, test: ast.expr, yes: Sequence[ast.AST], no: Sequence[ast.AST]) -> bool:
    """Is a result put to the test, then taken on one way and replaced on the other?

    What replaces it must be worked out, unless the test asks whether there is a result at all: to cut a result at a
    bound is a polish.
    """
    tested = flow.sources(test)
    return bool(tested) and any(
        _takes(flow, one, tested) and _replaces(flow, other, tested, _asks_if_there(test))
        for one, other in ((yes, no), (no, yes))
    )


def _takes(flow: Flow, block: Sequence[ast.AST], tested: set[str]) -> bool:
    return any(flow.flowing(value) & tested for value in block_values(block))


def _replaces(flow: Flow, block: Sequence[ast.AST], tested: set[str], anything: bool) -> bool:
    """Does it return something else, or put something else in the result's name?"""
    return any(
        not flow.reads(value) and not is_none(value) and (anything or flow.works(value))
        for value in block_values(block, tested)
    )


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
            ways = [_most(flow, way) + (0 if leaves(way) else count) for way in (node.body, node.orelse)]
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
    returned = [node.value for node in flow.nodes if isinstance(node, ast.Return | ast.Yield) and node.value]
    return any(flow.reads(test) for test in tests(flow.nodes)) and not any(flow.flowing(value) for value in returned)
