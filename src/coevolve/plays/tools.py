"""Agents that call Python functions before they answer, by the model's own template for tools."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from coevolve.faults import one_line
from coevolve.play import Roles, called, do, score, together
from coevolve.recipe.components import from_file
from coevolve.settings import Count, checked_call
from coevolve.types import Play, Problem, Role, ToolResult, Turn

_LONGEST = 4000
"""Characters of a result that an agent is told."""

_MOST = 16
"""Calls of a turn that are made."""

_FULL = (
    "role {role!r}, policy {policy!r}: what its tools returned exceeds the model's context; it is left out, and the "
    "turn that called is the answer. Have functions answer briefly, or lower play.turns or sampling.max_new_tokens"
)

_FAILED = (
    "the tool {tool!r} failed, and the agent that called it was told: {said}; a call that fails is no error of the "
    "run; the metric tool_errors says how many do"
)

_SAID = 300
"""Characters of it that a warning repeats."""

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


@checked_call("play")
def tools(functions: list[str | Callable[..., Any]], turns: Count = 4) -> Play:
    """Roles speak in order, each hearing what those before answered; one that calls functions is told what they
    returned and speaks again, until it calls none. The answers are scored together.

    functions: Python functions, or ``file.py:name``, async ones too, with type hints and a docstring whose ``Args:``
    say what each parameter is; the model's chat template tells of them. turns: how often an agent may go on after a
    call; what it says then is its answer. A call is a JSON object with ``name`` and ``arguments`` (or ``parameters``),
    between ``<tool_call>`` tags where there are any. Results are spliced behind the turn that called as the template
    writes messages of tools. They are part of the next turn's prompt, so that nothing is trained on them. A call that
    cannot be made, or that raises, is answered with the reason (and warned of, once a function). Where the results and
    another turn would exceed the model's context they are dropped, with a warning, and the turn that called is the
    answer, as in TRL.

    A turn that called answers for the joint of whoever heard it; it is compared with the other members' turns of the
    same number. Raises ValueError for no functions, two of one name, and one that no schema can be made of.
    """
    known = _named(functions)
    schemas, warned = [_schema(function) for function in known.values()], set[str]()

    async def answer(team: Roles, role: Role, heard: Sequence[Turn]) -> Turn:
        say = team[role]
        turn = await say(*heard, tools=schemas)
        for _ in range(turns):
            calls = list(calls_in(turn.text))
            if not calls:
                break
            results = await together(*(do(_result, known, *call) for call in calls))
            _warn_of_failed(results, known, warned)
            if not team.fits(role, turn, *results, tools=schemas):
                warnings.warn(_FULL.format(role=role, policy=turn.policy), stacklevel=2)
                break
            turn = await say(turn, *results, tools=schemas)
        return turn

    async def play(p: Problem, team: Roles) -> None:
        answers: list[Turn] = []
        for role in team:
            answers.append(await answer(team, role, answers))
        await score(team, answers)

    return play


def calls_in(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, arguments) of the calls in what a model said."""
    made = 0
    for piece in _TAGGED.findall(text) or [text]:
        for found in _objects(piece):
            found = found.get("function", found)
            arguments = _decoded(found.get("arguments", found.get("parameters"))) if isinstance(found, dict) else None
            if isinstance(arguments, dict) and isinstance(found.get("name"), str) and made < _MOST:
                made += 1
                yield found["name"], arguments


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text, not those inside of another."""
    decoder, place = json.JSONDecoder(), text.find("{")
    for _ in range(_MOST * 4):
        if place < 0:
            return
        try:
            found, end = decoder.raw_decode(text, place)
            yield found
        except (ValueError, RecursionError):
            end = place + 1
        place = text.find("{", end)


def _decoded(arguments: Any) -> Any:
    """Arguments that are JSON in a text, as OpenAI writes them, as what they say."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return None


def _result(known: Mapping[str, Callable[..., Any]], name: str, arguments: Mapping[str, Any]) -> ToolResult:
    """What the function returned, as text, or why it did not."""
    if name not in known:
        return ToolResult.of(name, f"error: there is no tool {name!r}; there are {', '.join(known)}", failed=True)
    failed = False
    try:
        value = called(known[name], **arguments)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    except Exception as error:  # noqa: BLE001  (the model chose the arguments: it is told, and the run goes on)
        text, failed = f"error: {type(error).__name__}: {error}", True
    return ToolResult.of(name, text[:_LONGEST], failed)


def _warn_of_failed(results: Sequence[ToolResult], known: Collection[str], warned: set[str]) -> None:
    """Say once of each tool that it failed: one that always does would look like agents that err."""
    for result in results:
        if result.failed and result.tool in known and result.tool not in warned:
            warned.add(result.tool)
            said = one_line(result.removeprefix("error: "))[:_SAID]
            warnings.warn(_FAILED.format(tool=result.tool, said=said), stacklevel=3)


def _named(functions: Sequence[str | Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """name -> function."""
    known: dict[str, Callable[..., Any]] = {}
    for given in functions:
        function = from_file(given, (), "play.functions") if isinstance(given, str) else given
        name = getattr(function, "__name__", "")
        if not callable(function) or not name:
            raise ValueError(f"play.functions: {given!r} is no function")
        if name in known:
            raise ValueError(f"play.functions: two are named {name!r}; rename one")
        known[name] = function
    if not known:
        raise ValueError("play.functions is empty; want at least one function")
    return known


def _schema(function: Callable[..., Any]) -> Mapping[str, Any]:
    from transformers.utils.chat_template_utils import get_json_schema  # slow to import

    try:
        return get_json_schema(function)
    except Exception as error:  # DocstringParsingException and TypeHintParsingException, which have no base of theirs
        name = getattr(function, "__name__", function)
        raise ValueError(f"play.functions, {name}: {one_line(error)}") from error
