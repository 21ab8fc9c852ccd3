"""Agents call Python functions before they answer, by the model's own chat template for tools."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from coevolve.faults import one_line
from coevolve.files import json_objects
from coevolve.play import Roles, called, do, score, together
from coevolve.recipe.components import from_file
from coevolve.settings import Count, checked_call
from coevolve.types import Play, Problem, Role, ToolResult, Turn

_LONGEST = 4000
"""Most characters of a result in the agent's prompt."""

_MOST = 16
"""Most calls of a turn that are executed."""

_FULL = (
    "role {role!r}, policy {policy!r}: what its tools returned exceeds the model's context; it is left out, and the "
    "turn that called is the answer. Have functions answer briefly, or lower play.turns or sampling.max_new_tokens"
)

_FAILED = (
    "the tool {tool!r} failed, and the agent that called it was told: {said}; a call that fails is no error of the "
    "run; the metric tool_errors says how many do"
)

_SAID = 300
"""Most characters of a tool's error in a warning."""

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


@checked_call("play")
def tools(functions: list[str | Callable[..., Any]], turns: Count = 4) -> Play:
    """Let roles speak in order, each hearing the answers before it; a role that calls functions gets their results and
    speaks again, until it makes no call. The answers are scored together.

    functions: Python functions, or ``file.py:name``, also async ones, with type hints and a docstring whose ``Args:``
    describe each parameter, for the model's chat template. turns: how often an agent may continue after calls; its turn
    after the last time is its answer. A call is a JSON object with ``name`` and ``arguments`` (or ``parameters``),
    between ``<tool_call>`` tags if there are any. Results are appended to the calling turn as the template writes tool
    messages. They are part of the next turn's prompt, so they are not trained on. For a call that fails the result is
    the reason (with a warning, once per function). If the results and another turn would exceed the model's context,
    they are dropped, with a warning, and the calling turn is the answer, as in TRL.

    A calling turn is not scored; ``team_return`` gives it the return of the joint whose turns heard it. It is compared
    with the other members' turns of the same round. Raises ValueError for no functions, two of the same name, and one
    without a valid schema.
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
    """Yield (name, arguments) of the tool calls in a model's text."""
    made, tagged = 0, _TAGGED.findall(text)
    for piece in tagged or [text]:
        whole = _decoded(piece) is not None
        for found in json_objects(piece):
            found = found.get("function", found)
            arguments = _arguments(found, bool(tagged) and whole) if isinstance(found, dict) else None
            if isinstance(arguments, dict) and isinstance(found.get("name"), str) and made < _MOST:
                made += 1
                yield found["name"], arguments


def _arguments(call: Mapping[str, Any], alone: bool) -> Any:
    """Return the arguments of a call, {} for null. alone: nothing but the call stands between its tags, so without the
    key and any other it has none; other JSON with a name may be anything, or a part of a call that does not parse."""
    given = [call[key] for key in ("arguments", "parameters") if key in call]
    if not given:
        return {} if alone and call.keys() <= {"name", "id", "type"} else None
    return {} if given[0] is None else _decoded(given[0])


def _decoded(arguments: Any) -> Any:
    """Return arguments parsed from JSON text, as OpenAI's format has them; others unchanged, None if invalid."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return None


def _result(known: Mapping[str, Callable[..., Any]], name: str, arguments: Mapping[str, Any]) -> ToolResult:
    """Call the function and return its result as text, or the error as a failed result."""
    if name not in known:
        return ToolResult.of(name, f"error: there is no tool {name!r}; there are {', '.join(known)}", failed=True)
    failed = False
    try:
        value = called(known[name], **arguments)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    except Exception as error:  # noqa: BLE001  (the model chose the arguments: it gets the error, and the run goes on)
        text, failed = f"error: {type(error).__name__}: {error}", True
    return ToolResult.of(name, text[:_LONGEST], failed)


def _warn_of_failed(results: Sequence[ToolResult], known: Collection[str], warned: set[str]) -> None:
    """Warn once of each tool that failed, since a broken tool would look like wrong calls of the agents."""
    for result in results:
        if result.failed and result.tool in known and result.tool not in warned:
            warned.add(result.tool)
            said = one_line(result.removeprefix("error: "))[:_SAID]
            warnings.warn(_FAILED.format(tool=result.tool, said=said), stacklevel=3)


def _named(functions: Sequence[str | Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return name -> function. Raises ValueError for no functions, or two of the same name."""
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
    except Exception as error:  # DocstringParsingException, TypeHintParsingException: they share no base class
        name = getattr(function, "__name__", function)
        raise ValueError(f"play.functions, {name}: {one_line(error)}") from error
