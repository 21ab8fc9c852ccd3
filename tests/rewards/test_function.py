"""The user's own reward: who receives what, what comes back, and what is said when it does not fit."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch

from coevolve.rewards.function import batched, user_feedback
from coevolve.rewards.several import rewards_of
from coevolve.types import Case, Problem, Turn

POST = Problem("p1", {"post": "A post", "subreddit": "tips"})
OTHER = Problem("p2", {"post": "Another", "subreddit": "ask"})


def case(problem: Problem = POST, **texts: str) -> Case:
    """One turn per role; action ids 10, 11, ... of as many tokens as there are words."""
    turns = (
        Turn(role, "llm", problem, 0, 0, (), list(range(10, 10 + len(text.split()))), (), text, True)
        for role, text in texts.items()
    )
    return Case(problem, tuple(turns))


PAIR = case(short="a b", detailed="a b c d")
PAIRS = [PAIR, case(OTHER, short="x", detailed="y z")]


def message(call: Callable[[], Any]) -> str:
    """What the ValueError of this call says, in one line."""
    with pytest.raises(ValueError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


# --- one case at a time ----------------------------------------------------------------------------------------------


def test_parameters_are_roles_and_columns() -> None:
    seen = []

    def reward(short, detailed, *, post, **columns):
        seen.append((short, detailed, post, columns))
        return 2

    assert rewards_of(reward)([PAIR]) == [[2.0, 2.0]]
    assert seen == [("a b", "a b c d", "A post", {"subreddit": "tips"})]


def test_a_function_is_called_once_per_case_in_order() -> None:
    seen = []

    def reward(short):
        seen.append(short)
        return len(short)

    assert rewards_of(reward)(PAIRS) == [[3.0, 3.0], [1.0, 1.0]]
    assert seen == ["a b", "x"]


def test_all_roles_at_once() -> None:
    seen = []

    def reward(texts, **columns):
        seen.append((texts, columns))
        return 0.0

    rewards_of(reward)([PAIR])
    assert seen == [({"short": "a b", "detailed": "a b c d"}, {"post": "A post", "subreddit": "tips"})]


def test_a_role_that_spoke_twice_is_heard_last_and_paid_twice() -> None:
    first, last = case(short="first").turns[0], case(short="last").turns[0]
    assert rewards_of(lambda short: {"short": len(short)})([Case(POST, (first, last))]) == [[4.0, 4.0]]


def test_a_parameter_without_a_column_keeps_its_default() -> None:
    seen = []

    def reward(short, *, weight=0.5, post="none"):
        seen.append((weight, post))
        return weight

    assert rewards_of(reward)([PAIR]) == [[0.5, 0.5]]
    assert rewards_of(partial(reward, weight=3))([PAIR]) == [[3.0, 3.0]]
    assert seen == [(0.5, "A post"), (3, "A post")]


@pytest.mark.parametrize(
    ("result", "paid"),
    [
        (1.5, [1.5, 1.5]),
        (True, [1.0, 1.0]),
        ({"detailed": 2, "short": 1}, [1.0, 2.0]),
        ([3, 4], [3.0, 4.0]),
        ((3, 4), [3.0, 4.0]),
        (np.float32(0.5), [0.5, 0.5]),
        (np.array([1.0, 2.0]), [1.0, 2.0]),
        (torch.tensor(0.25), [0.25, 0.25]),
        ({"short": torch.tensor(1.0), "detailed": np.int64(7)}, [1.0, 7.0]),
    ],
)
def test_a_number_for_the_team_or_one_per_role_or_turn(result: Any, paid: list[float]) -> None:
    found = rewards_of(lambda short: result)([PAIR])
    assert found == [paid]
    assert all(type(number) is float for number in found[0])


def test_turns_are_paid_in_the_order_in_which_they_were_scored() -> None:
    swapped = case(detailed="d", short="s")
    assert rewards_of(lambda texts: {"short": 1, "detailed": 2})([swapped]) == [[2.0, 1.0]]


@pytest.mark.parametrize(
    "result",
    ["1", math.nan, math.inf, {"short": 1.0}, {"short": 1, "detailed": 2, "third": 3}, {"short": 1, "third": 2},
     {"short": 1, "detailed": None}, [1.0], [1.0, 2.0, 3.0], [1.0, math.nan], [[1.0, 2.0]], np.array([[1.0, 2.0]]), 1j],
)  # fmt: skip
def test_other_results(result: Any) -> None:
    def brevity(short):
        return result

    shown = result.tolist() if isinstance(result, np.ndarray) else result
    assert message(lambda: rewards_of(brevity)([PAIR])) == (
        f"reward 'brevity' on problem 'p1' returned {shown!r}; want a finite number for the team, at most 1e+12 in "
        "size, a dict of them with exactly the roles short, detailed, or a list of 2, one per turn"
    )


# --- batched ---------------------------------------------------------------------------------------------------------


def test_a_batched_function_receives_lists() -> None:
    seen = []

    @batched
    def reward(short, texts, post, **columns):
        seen.append((short, texts, post, columns))
        return [1, {"short": 2, "detailed": 3}]

    assert rewards_of(reward)(PAIRS) == [[1.0, 1.0], [2.0, 3.0]]
    assert seen == [
        (
            ["a b", "x"],
            [{"short": "a b", "detailed": "a b c d"}, {"short": "x", "detailed": "y z"}],
            ["A post", "Another"],
            {"subreddit": ["tips", "ask"]},
        )
    ]


def test_what_partial_has_set_no_column_changes() -> None:
    weighed = Problem("p3", {"weight": 7})

    def reward(texts: Any, weight: int = 1, **columns: Any) -> float:
        return float(weight * 10 + len(columns))

    assert rewards_of(partial(reward, weight=2))([case(weighed, short="a")]) == [[20.0]]
    assert rewards_of(reward)([case(weighed, short="a")]) == [[70.0]]


def test_a_role_called_completion_is_not_verifiers() -> None:
    def feedback(completion: str, subreddit: str) -> dict[str, str]:
        return {"completion": subreddit}

    assert user_feedback(feedback, ["completion"])[1] == ("subreddit",)
    assert user_feedback(feedback, ["short"])[1] == ()  # verifiers' name for what was said


def test_a_mark_survives_partial_and_methods() -> None:
    class Judge:
        @batched
        def reward(self, short, scale=1):
            assert short == ["a b", "x"]
            return [scale * len(text) for text in short]

    assert rewards_of(Judge().reward)(PAIRS) == [[3.0, 3.0], [1.0, 1.0]]
    assert rewards_of(partial(Judge().reward, scale=2))(PAIRS) == [[6.0, 6.0], [2.0, 2.0]]


def test_a_batch_may_be_paid_by_an_array() -> None:
    reward = batched(lambda short: np.array([0.5, 2.0]))
    assert rewards_of(reward)(PAIRS) == [[0.5, 0.5], [2.0, 2.0]]


def test_no_cases_are_no_call() -> None:
    def reward(short):
        raise AssertionError

    assert rewards_of(batched(reward))([]) == []
    assert rewards_of(reward)([]) == []


def test_columns_that_only_some_problems_have() -> None:
    seen = []
    some = [PAIR, case(Problem("p3", {"post": "Third"}), short="s", detailed="d")]

    @batched
    def reward(short, subreddit="none", flair="none", **columns):
        seen.append((subreddit, flair, columns))
        return [0, 0]

    rewards_of(reward)(some)
    assert seen == [(["tips", None], "none", {"post": ["A post", "Third"]})]
    assert message(lambda: rewards_of(batched(lambda short, subreddit: [0, 0]))(some)) == (
        "reward '<lambda>', problem 'p3': parameter 'subreddit' has no value; there are short, detailed, texts, and "
        "the columns post"
    )


@pytest.mark.parametrize(
    ("results", "found"),
    [([1.0], "1 results"), ([1, 2, 3], "3 results"), (1.0, "1.0"), ({"short": [1]}, "{'short': [1]}"), (None, "None")],
)  # fmt: skip
def test_another_number_of_results(results: Any, found: str) -> None:
    assert message(lambda: rewards_of(batched(lambda short: results))(PAIRS)) == (
        f"reward '<lambda>' on 2 cases, problems 'p1' to 'p2', returned {found}; want a list of 2, one per case"
    )


@pytest.mark.parametrize(("paid", "said"), [(10**400, "a whole number of 1329 bits"), (1e300, "1e\\+300")])
def test_a_number_that_no_learner_can_count_with_is_refused(paid: float, said: str) -> None:
    with pytest.raises(ValueError, match=rf"on problem 'p1' returned {said}; want a finite number"):
        rewards_of(lambda short: paid)([PAIR])


def test_one_bad_number_of_a_batch_names_its_problem() -> None:
    said = message(lambda: rewards_of(batched(lambda short: [0.0, math.nan]))(PAIRS))
    assert said.startswith("reward '<lambda>' on problem 'p2' returned nan; want a finite number")


# --- TRL -------------------------------------------------------------------------------------------------------------

ASKED = Problem("q1", {"prompt": "2 + 2 =", "answer": "4"})
ALONE = [case(ASKED, solver="4"), case(Problem("q2", {"prompt": "1 + 2 =", "answer": "3"}), solver="5 or so")]


def test_trls_arguments() -> None:
    seen = []

    def reward(completions, prompts, completion_ids, answer, trainer_state=None, **kwargs):
        seen.append((completions, prompts, completion_ids, answer, trainer_state, kwargs))
        return [float(said == right) for said, right in zip(completions, answer, strict=True)]

    assert rewards_of(reward)(ALONE) == [[1.0], [0.0]]
    columns = {"prompt": ["2 + 2 =", "1 + 2 ="]}
    assert seen == [(["4", "5 or so"], ["2 + 2 =", "1 + 2 ="], [[10], [10, 11, 12]], ["4", "3"], None, columns)]


def test_everything_reaches_trls_keywords() -> None:
    seen = []

    def reward(completions, **kwargs):
        seen.append(kwargs)
        return torch.zeros(2)

    assert rewards_of(reward)(ALONE) == [[0.0], [0.0]]
    assert seen == [
        {
            "prompt": ["2 + 2 =", "1 + 2 ="],
            "answer": ["4", "3"],
            "completion_ids": [[10], [10, 11, 12]],
            "prompts": ["2 + 2 =", "1 + 2 ="],
        }
    ]


def test_prompts_are_a_column() -> None:
    assert rewards_of(lambda completions, prompts=None: [float(prompts is None)])([case(short="a")]) == [[1.0]]
    assert message(lambda: rewards_of(lambda completions, prompts: [0.0])([case(short="a")])) == (
        "reward '<lambda>', problem 'p1': parameter 'prompts' is the column 'prompt', which the problem lacks; it has "
        "post, subreddit"
    )


def test_a_conversation_is_answered_by_a_message() -> None:
    talk = [{"role": "user", "content": "Hi"}]

    def reward(completions, prompts):
        assert prompts == [talk]
        return [float(len(completion[0]["content"])) for completion in completions]

    chat = case(Problem("c", {"prompt": talk}), solver="Hello")
    assert rewards_of(reward)([chat]) == [[5.0]]
    assert rewards_of(lambda completions: [float(completions == [[{"role": "assistant", "content": "Hello"}]])])(
        [chat]
    ) == [[1.0]]


def test_a_team_is_not_trls() -> None:
    def accuracy(completions, **kwargs):
        return [0.0]

    assert message(lambda: rewards_of(accuracy)([PAIR])) == (
        "reward 'accuracy' has a parameter `completions`, as TRL's for one agent, but problem 'p1' has 2 turns; for a "
        "team write def reward(short, detailed, **columns)"
    )


def test_a_column_named_as_trls_argument() -> None:
    clash = case(Problem("p", {"completions": "?"}), solver="4")
    assert message(lambda: rewards_of(lambda completions: [0.0])([clash])) == (
        "reward '<lambda>', problem 'p': parameter 'completions' could be two things: the problem has a column of that "
        "name too; rename one of them"
    )


def test_trls_logs() -> None:
    def reward(completions, log_metric, log_extra, **kwargs):
        log_metric("share", 0.25)
        log_metric("share", 0.75)
        log_extra("length", [len(text) for text in completions])
        log_extra("seen", completions)
        assert "log_metric" not in kwargs
        return [0.0, 1.0]

    rewards = rewards_of(reward)
    parts = rewards.parts()
    assert rewards(ALONE) == [[0.0], [1.0]]
    assert parts(ALONE) == [
        {"reward_share": 0.5, "reward_length": 1.0},
        {"reward_share": 0.5, "reward_length": 7.0},
    ]


# --- verifiers -------------------------------------------------------------------------------------------------------


def test_verifiers_arguments() -> None:
    seen = []
    asked = Problem("v", {"question": "2 + 2 =", "answer": "4", "info": '{"level": 1}', "kind": "sum"})

    def reward(prompt, completion, answer, state, info, task, kind, **kwargs):
        seen.append((prompt, completion, answer, info, task, kind, kwargs))
        assert completion[-1].content == completion[-1]["content"]
        assert state["answer"] == answer and state["kind"] == "sum" and state["completion"] == completion
        return float(answer in completion[-1]["content"])

    first, last = case(asked, solver="5").turns[0], case(asked, solver="or 4").turns[0]
    assert rewards_of(reward)([Case(asked, (last,), ((first,),))]) == [[1.0]]
    said = [{"role": "assistant", "content": "5"}, {"role": "assistant", "content": "or 4"}]
    told = {"question": "2 + 2 ="}
    assert seen == [([{"role": "user", "content": "2 + 2 ="}], said, "4", {"level": 1}, "default", "sum", told)]


def test_a_rubric_is_its_functions_with_weights_and_objects() -> None:
    class Parser:
        def parse_answer(self, completion):
            return completion[-1]["content"].strip()

    class Rubric:
        def __init__(self, funcs, weights, parser):
            self.funcs, self.weights, self.class_objects = funcs, weights, {"parser": parser}

    async def right(parser, completion, answer):
        return float(parser.parse_answer(completion) == answer)

    def brief(completion, **kwargs):
        assert "parser" in kwargs
        return float(len(completion[0]["content"]) < 3)

    rewards = rewards_of(Rubric([right, brief], [1.0, 0.5], Parser()))
    assert rewards(ALONE) == [[1.5], [0.0]]
    assert rewards.parts()(ALONE) == [{"right": 1.0, "brief": 1.0}, {"right": 0.0, "brief": 0.0}]


def test_a_column_or_a_role_named_completion_is_what_it_was() -> None:
    column = case(Problem("p", {"completion": "gold"}), solver="4")
    assert rewards_of(lambda completion: float(completion == "gold"))([column]) == [[1.0]]
    assert rewards_of(lambda completion: float(completion == "x"))([case(completion="x")]) == [[1.0]]


@pytest.mark.parametrize(
    ("columns", "asked"), [({"question": "2 + 2 =", "prompt": None}, "2 + 2 ="), ({"prompt": None}, None)]
)
def test_a_prompt_that_is_null_is_none(columns: dict[str, Any], asked: str | None) -> None:
    def reward(prompt, completion):
        assert [one.content for one in prompt] == ([] if asked is None else [asked])
        return 1.0

    assert rewards_of(reward)([case(Problem("n", columns), solver="4")]) == [[1.0]]


def test_a_team_is_not_verifiers() -> None:
    assert "as verifiers' for one agent" in message(lambda: rewards_of(lambda completion: 0.0)([PAIR]))


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_a_parameter_that_is_neither_role_nor_column() -> None:
    def reward(short, detaild):
        return 0

    assert message(lambda: rewards_of(reward)([PAIR])) == (
        "reward 'reward', problem 'p1': parameter 'detaild' has no value; did you mean 'detailed'?; there are short, "
        "detailed, texts, and the columns post, subreddit"
    )


def test_a_column_named_like_a_role() -> None:
    clash = case(Problem("p", {"short": "column"}), short="text")
    assert "parameter 'short' could be two things" in message(lambda: rewards_of(lambda short: 0)([clash]))
    assert rewards_of(lambda texts, **columns: float(columns == {"short": "column"}))([clash]) == [[1.0]]


@pytest.mark.parametrize(
    ("style", "where"),
    [(lambda function: function, "on problem 'p1'"), (batched, "on 1 cases, problems 'p1' to 'p1'")],
    ids=["one", "batched"],
)
@pytest.mark.parametrize("error", [TypeError, KeyError, ZeroDivisionError])
def test_what_the_function_raises_is_what_is_said(
    style: Callable[..., Any], where: str, error: type[Exception]
) -> None:
    """Also a TypeError that reads like a wrong call: the function ran, once, and was not called in another way."""
    calls = []

    def reward(short, detailed):
        calls.append(1)
        raise error("reward() missing 1 required positional argument: 'post'")

    with pytest.raises(ValueError) as caught:
        rewards_of(style(reward))([PAIR])
    assert calls == [1]
    assert type(caught.value.__cause__) is error
    said = f"reward 'reward' {where}: raised {error.__name__}: {caught.value.__cause__} ("
    assert str(caught.value).startswith(said) and re.search(r"test_function\.py, line \d+\)$", str(caught.value))


def test_a_function_that_calls_another_wrongly() -> None:
    def helper(a, b):
        return a + b

    said = message(lambda: rewards_of(lambda short: helper(short))([PAIR]))
    assert said.startswith("reward '<lambda>' on problem 'p1': raised TypeError: ")
    assert re.search(r"helper\(\) missing 1 required positional argument: 'b' \(.*test_function\.py, line \d+\)$", said)


class Later:
    async def __call__(self, short):
        return float(len(short))


async def later(short):
    return float(len(short))


@pytest.mark.parametrize("function", [later, partial(later), Later()])
def test_an_async_function_is_awaited(function: Any) -> None:
    assert rewards_of(function)(PAIRS) == [[3.0, 3.0], [1.0, 1.0]]


def test_async_calls_wait_side_by_side() -> None:
    inside, most = 0, 0
    everybody = asyncio.Event()

    async def reward(short):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 2:
            everybody.set()
        await asyncio.wait_for(everybody.wait(), 10)  # one after the other they would never meet
        return 1.0

    assert rewards_of(reward)(PAIRS) == [[1.0, 1.0], [1.0, 1.0]]
    assert most == 2


def test_no_more_than_64_async_calls_wait_side_by_side() -> None:
    inside, most = 0, 0

    async def reward(short):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        return 1.0

    assert rewards_of(reward)([PAIR] * 200) == [[1.0, 1.0]] * 200
    assert most == 64


def test_an_async_function_for_lists() -> None:
    @batched
    async def reward(short, post):
        await asyncio.sleep(0)
        return [float(len(text)) for text in post]

    assert rewards_of(reward)(PAIRS) == [[6.0, 6.0], [7.0, 7.0]]
    short_of_one = batched(lambda short: [1.0])
    assert "returned 1 results; want a list of 2" in message(lambda: rewards_of(short_of_one)(PAIRS))


def test_what_an_async_function_raises_is_what_is_said() -> None:
    async def reward(short):
        await asyncio.sleep(0)
        raise KeyError("gone")

    said = message(lambda: rewards_of(reward)(PAIRS))
    assert said.startswith("reward 'reward' on problem 'p1': raised KeyError: 'gone' (")
    assert "test_function.py, line" in said


def test_one_loop_for_all_calls() -> None:
    """Clients of servers belong to the loop in which they first asked."""
    seen = set()

    async def reward(short):
        seen.add(asyncio.get_running_loop())
        return 0.0

    for _ in range(2):
        rewards_of(reward)(PAIRS)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (Later, f"reward 'Later' is {Later!r}; want a function"),
        (7, "reward 'int' is 7; want a function"),
        (lambda *a: 0, "reward '<lambda>': parameter 'a' cannot be given by name; name a role or a column instead"),
        (lambda a, /: 0, "reward '<lambda>': parameter 'a' cannot be given by name; name a role or a column instead"),
    ],
)  # fmt: skip
def test_what_cannot_be_called_is_refused_at_once(spec: Any, said: str) -> None:
    assert message(lambda: rewards_of(spec)) == said


def test_feedback_is_not_awaited() -> None:
    said = "feedback 'later' is async; want a plain def, which may wait for what it calls"
    assert message(lambda: user_feedback(later, ())) == said


def test_check_finds_what_is_missing_without_a_call() -> None:
    def reward(short, detailed, post):
        raise AssertionError

    rewards_of(reward).check(POST, ["short", "detailed"])
    assert "parameter 'detailed' has no value" in message(lambda: rewards_of(reward).check(POST, ["short"]))
    bare = Problem("bare")
    assert message(lambda: rewards_of(reward).check(bare, ["short", "detailed"])).endswith("and the columns none")


# --- from a file -----------------------------------------------------------------------------------------------------


def test_a_function_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        dedent("""
        from coevolve.rewards.function import batched

        @batched
        def words(short):
            return [len(text.split()) for text in short]

        class Judge:
            def __call__(self, short):
                return 9

        judge = Judge()
        """)
    )
    assert rewards_of(f"{path}:words")(PAIRS) == [[2.0, 2.0], [1.0, 1.0]]
    assert rewards_of(f"{path}:judge")([PAIR]) == [[9.0, 9.0]]
    assert message(lambda: rewards_of(f"{path}:word")) == f"reward: {path} has no 'word'; did you mean 'words'?"
    assert message(lambda: rewards_of("words")) == "reward: unknown name 'words'; known: file.py:Name"
    assert message(lambda: rewards_of(f"{path}:words")([case(detailed="d")])) == (
        f"reward '{path}:words', problem 'p1': parameter 'short' has no value; there are detailed, texts, and the "
        "columns post, subreddit"
    )


# --- feedback --------------------------------------------------------------------------------------------------------


def told(function: Callable[..., Any], given: Case = PAIR) -> Sequence[str]:
    feedback, _ = user_feedback(function, given.said())
    return feedback(given.problem, list(given.turns))


def test_feedback_says_which_columns_it_asks_for() -> None:
    def note(texts, short, post, subreddit="none", *, hint, **columns):
        raise AssertionError

    assert user_feedback(note, ("short", "detailed"))[1] == ("post", "hint")
    assert user_feedback(lambda completions, post: "", ("short",))[1] == ()  # as TRL calls it


def test_feedback_is_a_text_for_all_or_one_per_role() -> None:
    def note(texts, post, **columns):
        assert (texts, post, columns) == ({"short": "a b", "detailed": "a b c d"}, "A post", {"subreddit": "tips"})
        return "Again."

    assert told(note) == ["Again.", "Again."]
    assert told(lambda texts: {role: f"{role}: {text}" for role, text in reversed(texts.items())}) == [
        "short: a b",
        "detailed: a b c d",
    ]


@pytest.mark.parametrize("result", [None, 1, ["a", "b"], {"short": "a"}, {"short": "a", "detailed": 1}])
def test_other_feedback(result: Any) -> None:
    assert message(lambda: told(lambda texts: result)) == (
        f"feedback '<lambda>' on problem 'p1' returned {result!r}; want a text for all, or a dict of texts with "
        "exactly the roles short, detailed"
    )


def test_what_feedback_raises_is_what_is_said() -> None:
    said = message(lambda: told(lambda texts: texts["third"]))
    assert said.startswith("feedback '<lambda>' on problem 'p1': raised KeyError: 'third' (")
