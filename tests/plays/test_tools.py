"""Agents that call functions: what is a call, what they are told, and that no token of a result is trained on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from transformers import AutoTokenizer

from coevolve.algorithms import grpo
from coevolve.collate import collate, rows_of
from coevolve.engines.base import BaseEngine, Sample
from coevolve.engines.scripted import ScriptedEngine
from coevolve.interfaces import Published
from coevolve.measure import spoken
from coevolve.models.spec import PolicySpec
from coevolve.models.tokens import encode
from coevolve.plays import PLAYS
from coevolve.plays.tools import calls_in, tools
from coevolve.recipe.components import component, from_file
from coevolve.rollout import Stage, rollout
from coevolve.tasks import Rows
from coevolve.types import Instruction, Problem, Sampling, Say, ToolResult, Turn, WithTools

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "coin_tools.py")
look, save_model, trainer = (from_file(f"{EXAMPLE}:{name}", (), "x") for name in ("look", "save_model", "trainer"))
CALL = '<tool_call>{"name": "look", "arguments": {"coin": "%s"}}</tool_call>'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("coins"))


@pytest.fixture(scope="module")
def tokenizer(model: str) -> Any:
    return AutoTokenizer.from_pretrained(model)


def message(call: Callable[[], Any]) -> str:
    with pytest.raises(ValueError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


# --- calls -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("heads", []),
        (CALL % "north", [("look", {"coin": "north"})]),
        (f"I will look. {CALL % 'a'}\n{CALL % 'b'}", [("look", {"coin": "a"}), ("look", {"coin": "b"})]),
        ('<tool_call>{"name": "f", "arguments": {}}', [("f", {})]),  # cut before it ended
        ('<tool_call>{"name": "f", "argu', []),
        ('<tool_call>{"name": "now"}</tool_call>', [("now", {})]),  # a function without parameters
        ('<tool_call>{"name": "now", "id": "1", "type": "function"}</tool_call>', [("now", {})]),
        ('{"name": "now", "arguments": null}', [("now", {})]),
        ('<tool_call>{"name": "add", "arguments": {"name": "Bob"}</tool_call>', []),  # a brace is missing
        ('<tool_call>{"name": "add", "arguments": {"user": {"name": "Bob"}, "x": tru}}</tool_call>', []),
        ('<tool_call>{"name": "f", "args": {"x": 1}}</tool_call>', []),
        ('<tool_call>{"name": "f", "arguments": "{x"}</tool_call>', []),
        ('{"name": "f", "parameters": {"x": {"y": 1}}}', [("f", {"x": {"y": 1}})]),  # Llama
        ('[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]', [("f", {"x": 1}), ("g", {})]),
        ('{"function": {"name": "f", "arguments": "{\\"x\\": 1}"}}', [("f", {"x": 1})]),  # OpenAI
        ('say {"name": "f"} or {"arguments": {}} or {"name": 1, "arguments": {}} or {"function": "f"}', []),
        ('{"name": "f", "arguments": {}} in words, <tool_call>{"name": "g", "arguments": {}}</tool_call>', [("g", {})]),
        ("{" * 5000, []),
        ('{"name": "f", "arguments": {}}' * 50, [("f", {})] * 16),
    ],
)
def test_what_is_a_call(text: str, calls: list[Any]) -> None:
    assert list(calls_in(text)) == calls


# --- the play --------------------------------------------------------------------------------------------------------


def one(**anything: Any) -> float:
    return 1.0


TASK = Rows(data=[{"q": "where"}], test=[{"q": "where"}], prompts={"a": "{q}", "b": "{q} {heard}"}, reward=one)


def played(play: Any, says: Mapping[tuple[str, int], str], roles: Sequence[str] = ("a",)) -> Any:
    engine = ScriptedEngine(lambda role, problem, member, number: says[role, number])
    [episode] = rollout(play, TASK.train, Stage(dict.fromkeys(roles, "llm"), TASK, engine, Sampling(64)))
    return episode


def test_a_result_is_heard_behind_the_turn_that_called() -> None:
    episode = played(tools([look]), {("a", 0): CALL % "north", ("a", 1): "heads"})
    first, last = episode.turns
    assert last.heard == (first, "heads")
    assert isinstance(last.heard[1], ToolResult) and last.heard[1].tool == "look"
    assert [joint.turns for joint in episode.joints] == [(last,)]


def test_several_calls_and_those_that_fail_are_answered_in_order() -> None:
    async def later(n: int) -> dict[str, int]:
        """Later.

        Args:
            n: a number
        """
        return {"n": n}

    calls = '{"name":"later","arguments":{"n":3}}{"name":"lok","arguments":{}}{"name":"look","arguments":{"coin":"up"}}'
    with pytest.warns(
        UserWarning, match="the tool 'look' failed, and the agent that called it was told: KeyError: 'up'"
    ):
        episode = played(tools([look, later]), {("a", 0): calls + CALL[11:-12] % "west", ("a", 1): "so"})
    assert episode.turns[1].heard[1:] == (
        '{"n": 3}',
        "error: there is no tool 'lok'; there are look, later",
        "error: KeyError: 'up'",
        "heads",
    )


def test_a_tool_that_fails_is_warned_of_once_and_counted() -> None:
    def breaks(n: int) -> str:
        """Breaks.

        Args:
            n: a number
        """
        raise RuntimeError(f"no key\nfor {n}")

    call = '{"name": "%s", "arguments": {"n": %d}}'
    says = {("a", 0): call % ("breaks", 1) + call % ("breaks", 2), ("a", 1): CALL % "north"}
    says |= {("a", 2): call % ("breaks", 4), ("a", 3): "so"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        episode = played(tools([look, breaks]), says)
    [said] = [str(one.message) for one in caught if "the tool" in str(one.message)]
    assert "the tool 'breaks' failed, and the agent that called it was told: RuntimeError: no key for 1; a call" in said
    assert spoken(episode.turns)["tool_errors"] == 3 / 4
    assert "tool_errors" not in spoken(episode.turns[:1])


def test_turns_end() -> None:
    says = {("a", n): CALL % "north" for n in range(9)}
    assert len(played(tools([look], turns=3), says).turns) == 4
    assert len(played(tools([look]), {("a", 0): "no call"}).turns) == 1


def test_a_team_hears_answers_only() -> None:
    says = {("a", 0): CALL % "north", ("a", 1): "heads", ("b", 0): CALL % "south", ("b", 1): "tails"}
    episode = played(tools([look]), says, ("a", "b"))
    assert [(t.role, [getattr(x, "text", x) for x in t.heard]) for t in episode.turns] == [
        ("a", []),
        ("a", [CALL % "north", "heads"]),
        ("b", ["heads"]),
        ("b", [CALL % "south", "tails"]),
    ]
    assert [t.text for t in episode.joints[0].turns] == ["heads", "tails"]


def test_long_results_are_cut() -> None:
    def much() -> str:
        """Much."""
        return "x" * 10000

    says = {("a", 0): '{"name": "much", "arguments": {}}', ("a", 1): "ok"}
    assert len(played(tools([much]), says).turns[1].heard[1]) == 4000


# --- tokens ----------------------------------------------------------------------------------------------------------


class Recited(BaseEngine):
    """Says what a script has, by the policy's own tokenizer."""

    def __init__(self, script: Sequence[str]) -> None:
        super().__init__()
        self.script = iter(script)

    def sample(self, says: Mapping[str, Sequence[Say]]) -> Mapping[str, Sequence[Sample]]:
        return {name: [self._one(name) for _ in asked] for name, asked in says.items()}

    def _one(self, name: str) -> Sample:
        ids = self.published[name].tokenizer(next(self.script)).input_ids
        return Sample(ids, [-1.0] * len(ids), ids[-1] == 1)


def test_no_token_of_a_result_is_trained_on(tokenizer: Any) -> None:
    """The whole of what the learner gets, token by token: a row a turn, of which only what was sampled is masked in."""
    spec = PolicySpec("x")
    engine = Recited([f"{CALL % 'north'}<end>", f"{CALL % 'south'}north", "heads<end>"])
    save: Any = None
    engine.publish([Published("ann", 0, spec, tokenizer, 64, frozenset({1}), save)])
    task = Rows(data=[{"coin": "north"}], test=[{"coin": "x"}], prompts={"s": "{coin}"}, reward=lambda s: 2.0)
    stage = Stage({"s": "ann"}, task, engine, Sampling(2))
    episodes = rollout(tools([look]), task.train, stage)
    rows = rows_of(episodes, grpo().credit, task.reward)
    batch = collate(rows, "ann")
    words = [
        tokenizer.convert_ids_to_tokens(ids[:length])
        for ids, length in zip(batch.ids_BS.tolist(), batch.length_B.tolist(), strict=True)
    ]
    prompt = ["<tools>", "<user>", "north", "<end>", "<assistant>"]
    first = [CALL % "north", "<end>"]
    told = ["<tool>", "heads", "<end>", "<assistant>"]  # behind the end that it sampled
    cut = [CALL % "south", "north"]  # did not end, so the template ends it
    more = ["<end>", "<tool>", "tails", "<end>", "<assistant>"]
    last = ["heads", "<end>"]
    assert words == [
        prompt + first,
        prompt + first + told + cut,
        prompt + first + told + cut + more + last,
    ]
    trained = [
        tokenizer.convert_ids_to_tokens(row[mask].tolist())
        for row, mask in zip(batch.action_BT, batch.mask_BT, strict=True)
    ]
    assert trained == [first, cut, last]
    assert batch.start_B.tolist() == [len(prompt), len(prompt + first + told), len(prompt + first + told + cut + more)]
    assert batch.credit_B.tolist() == [2.0, 2.0, 2.0]  # who called answers for the answer


@pytest.mark.parametrize(("context", "turns"), [(17, 1), (18, 2)])
def test_results_that_exceed_the_context_are_left_out(tokenizer: Any, context: int, turns: int) -> None:
    """5 tokens of prompt, 3 said, 7 of two results and the next answer's beginning, 3 to be sampled: 18."""
    engine = Recited([f"{CALL % 'north'}{CALL % 'south'}<end>", "heads<end>"])
    save: Any = None
    engine.publish([Published("ann", 0, PolicySpec("x"), tokenizer, context, frozenset({1}), save)])
    task = Rows(data=[{"coin": "north"}], test=[{"coin": "x"}], prompts={"s": "{coin}"}, reward=lambda s: 2.0)

    def said() -> Any:
        return rollout(tools([look]), task.train, Stage({"s": "ann"}, task, engine, Sampling(3)))

    if turns == 2:
        [episode] = said()
    else:
        with pytest.warns(
            UserWarning, match=r"role 's', policy 'ann': what its tools returned exceeds the model's con"
        ):
            [episode] = said()
    assert len(episode.turns) == turns
    assert episode.joints[0].turns == (episode.turns[-1],)


def test_several_results_are_several_messages(tokenizer: Any) -> None:
    turn = Turn("s", "ann", Problem("p"), 0, 0, [2, 3], [6, 1], [-1.0] * 2, "north", True)
    results = [ToolResult.of("look", "heads"), ToolResult.of("look", "tails")]
    found = encode(tokenizer, WithTools([turn, *results], ({},)), "ann", None)
    assert tokenizer.convert_ids_to_tokens(found[4:]) == [
        "<tool>", "heads", "<end>", "<tool>", "tails", "<end>", "<assistant>",
    ]  # fmt: skip
    assert found[:4] == [2, 3, 6, 1]
    assert "alone behind the Turn" in message(lambda: encode(tokenizer, [turn, *results, "north"], "ann", None))


def test_templates_that_cannot(tokenizer: Any) -> None:
    asked = WithTools("north", ({},))
    assert "has chat: false; they are told by a chat template" in message(
        lambda: encode(tokenizer, asked, "ann", False)
    )
    other = AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    turn = Turn("s", "ann", Problem("p"), 0, 0, [2, 3], [6, 1], [-1.0] * 2, "north", True)
    spliced = WithTools([turn, ToolResult.of("look", "heads")], ({},))
    other.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert "its chat template knows none" in message(lambda: encode(other, asked, "ann", None))
    only = "{% if tools %}{% endif %}{% for m in messages if m.role != 'tool' %}{{ m.content }}{% endfor %}"
    other.chat_template = only
    assert "does not show a tool's result after an answer" in message(lambda: encode(other, spliced, "ann", None))
    other.chat_template = only + "{% if messages[-1].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    assert "its chat template takes no result of a tool: no tools" in message(
        lambda: encode(other, spliced, "ann", None)
    )
    other.chat_template = None
    assert "has no chat template" in message(lambda: encode(other, asked, "ann", None))


def test_text_is_a_users_message_where_there_are_tools(tokenizer: Any) -> None:
    for prompt in ("north", Instruction("north"), [{"role": "user", "content": "north"}]):
        found = encode(tokenizer, WithTools(prompt, ({},)), "ann", None)
        assert tokenizer.convert_ids_to_tokens(found) == ["<tools>", "<user>", "north", "<end>", "<assistant>"]


# --- training, recipes, mistakes -------------------------------------------------------------------------------------


def test_the_example_learns(model: str) -> None:
    with closing(trainer(model)) as made:
        paid = [made.step(i)["reward"] for i in range(40)]
    assert fmean(paid[:3]) < 0.3
    assert fmean(paid[-5:]) > 0.8


def test_a_recipe_names_functions() -> None:
    component({"name": "tools", "functions": [f"{EXAMPLE}:look"], "turns": 2}, PLAYS, "play")


def undocumented(coin: str) -> str:
    return coin


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        ([], "play.functions is empty; want at least one function"),
        ([look, look], "play.functions: two are named 'look'; rename one"),
        ([undocumented], "play.functions, undocumented: Cannot generate JSON schema for undocumented because it has no "
         "docstring!"),
        (["nowhere.py:f"], "play.functions: no file "),
    ],
)  # fmt: skip
def test_functions_that_cannot_be(functions: list[Any], said: str) -> None:
    assert message(lambda: tools(functions)).startswith(said)
