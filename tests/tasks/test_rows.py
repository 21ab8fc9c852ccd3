"""The user's own rows: what each role is told, who is held out, who is paid, and every mistake by its place."""

from __future__ import annotations

import gzip
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coevolve.engines.scripted import ScriptedEngine
from coevolve.plays import chain, discussion, rounds
from coevolve.recipe.components import component
from coevolve.rollout import Stage, rollout
from coevolve.tasks import data
from coevolve.tasks.rows import Rows
from coevolve.types import Case, Instruction, Play, Problem, Sampling, Turn

POSTS = [{"post": "My cat is ill.", "likes": 3}, {"post": "Buy {nothing}!", "likes": 0.5}]
PROMPTS = {"short": "Sum up: {post} ({likes})", "detailed": "Explain {{this}}: {post}\n{heard}"}


def one(**anything: Any) -> float:
    return 1.0


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes rows as JSON lines into the working folder; returns the file's name."""
    monkeypatch.chdir(tmp_path)

    def write(rows: Sequence[Mapping[str, Any]] = POSTS, name: str = "posts.jsonl") -> str:
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return name

    return write


@pytest.fixture
def task(write: Callable[..., str]) -> Rows:
    return Rows(data=write(), test=write(name="test.jsonl"), prompts=PROMPTS, reward=one)


def message(**settings: Any) -> str:
    """What the ValueError says, in one line."""
    with pytest.raises(ValueError) as error:
        len(Rows(**{"data": "posts.jsonl", "test": "posts.jsonl", "prompts": PROMPTS, "reward": one} | settings).train)
    assert "\n" not in str(error.value)
    return str(error.value)


def turn(role: str, text: str, problem: Problem | None = None) -> Turn:
    return Turn(role, "llm", problem or Problem("p"), 0, 0, (), (), (), text, True)


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_templates_are_filled_with_columns(task: Rows) -> None:
    cat, buy = task.train
    assert task.prompt(cat, "short", ()) == "Sum up: My cat is ill. (3)"
    assert task.prompt(buy, "short", ()) == "Sum up: Buy {nothing}! (0.5)"
    assert task.prompt(cat, "detailed", ()) == "Explain {this}: My cat is ill.\n"
    assert type(task.prompt(cat, "short", ())) is Instruction


def test_what_was_heard_is_where_the_template_wants_it(task: Rows) -> None:
    heard = [turn("short", " Cat {ill}.\n"), "", "A note.", turn("third", "  ")]
    assert task.prompt(task.train[0], "detailed", heard) == "Explain {this}: My cat is ill.\nCat {ill}.\n\nA note."
    assert task.prompt(task.train[0], "short", heard[1:]) == "Sum up: My cat is ill. (3)"


def test_a_template_may_be_what_was_heard_alone(write: Callable[..., str]) -> None:
    task = Rows(data=write(), test=write(name="t.jsonl"), prompts={"one": "{post}", "two": "{heard}"}, reward=one)
    assert task.prompt(task.train[0], "two", ["so it is"]) == "so it is"


def test_a_role_goes_on_from_its_own_last_turn(task: Rows) -> None:
    first, second = turn("short", "Cat."), turn("short", "Cat!")
    assert task.prompt(task.train[0], "short", (first, "Longer.")) == [first, "\n\nLonger.\n\n"]
    assert task.prompt(task.train[0], "short", (first, "")) == [first, "\n\nRevise your answer.\n\n"]
    told = task.prompt(task.train[0], "short", (first, "Longer.", second, "Shorter."))
    assert told == [second, "\n\nShorter.\n\n"]
    assert told[0] is second
    assert type(told[1]) is Instruction


def test_a_role_that_heard_nothing_is_told_what_the_recipe_says(write: Callable[..., str]) -> None:
    prompts = {"one": "{post}"}
    mine = Rows(data=write(), test=write(name="t.jsonl"), prompts=prompts, reward=one, revise="Once more, shorter.")
    first = turn("one", "Cat.")
    assert mine.prompt(mine.train[0], "one", (first,)) == [first, "\n\nOnce more, shorter.\n\n"]


def test_a_role_that_has_spoken_hears_the_others_wherever_it_stands(task: Rows) -> None:
    short, detailed = turn("short", " Cat. "), turn("detailed", "My cat.")
    assert task.prompt(task.train[0], "short", (short, detailed)) == [short, "\n\nMy cat.\n\n"]
    assert task.prompt(task.train[0], "detailed", (short, detailed)) == [detailed, "\n\nCat.\n\n"]


def test_an_unknown_role(task: Rows) -> None:
    with pytest.raises(ValueError) as error:
        task.prompt(task.train[0], "shor", ())
    assert str(error.value) == "task.prompts has no role 'shor'; did you mean 'short'?; it has short, detailed"


# --- in plays --------------------------------------------------------------------------------------------------------


def asked(task: Rows, play: Play, says: Mapping[tuple[str, int], str]) -> tuple[list[str], Any]:
    """The words of each prompt in order, and the first episode."""
    engine = ScriptedEngine(lambda role, problem, member, number: says[role, number])
    episodes = rollout(play, task.train[:1], Stage(dict.fromkeys(PROMPTS, "llm"), task, engine, Sampling(8)))
    return [engine.read(say.prompt_ids) for call in engine.calls for say in call["llm"]], episodes[0]


def test_a_template_that_shows_nothing_of_what_is_heard_is_told_once(write: Callable[..., str]) -> None:
    task = Rows(data=[{"q": "a"}, {"q": "b"}], test=0.5, prompts={"x": "{q}?", "y": "So {q}."}, reward=lambda x, y: 0.0)
    [problem] = task.train
    heard = Turn("x", "llm", problem, 0, 0, (), (), (), "I say", True)
    with pytest.warns(UserWarning, match=r"task.prompts.y shows nothing of it; put \{heard\} where it belongs"):
        assert task.prompt(problem, "y", [heard]) == Instruction(f"So {problem.data['q']}.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task.prompt(problem, "y", [heard])
        task.prompt(problem, "x", [])
        task.prompt(problem, "x", [""])
    with pytest.warns(UserWarning, match=r"role 'x' hear a text, and task.prompts.x shows nothing of it"):
        task.prompt(problem, "x", ["a hint"])


def test_a_chain(write: Callable[..., str]) -> None:
    def reward(short, detailed, likes):
        return {"short": len(short), "detailed": likes}

    task = Rows(data=write(), test=write(name="test.jsonl"), prompts=PROMPTS, reward=reward)
    prompts, episode = asked(task, chain(), {("short", 0): "Ill cat.", ("detailed", 0): "My cat is ill."})
    assert prompts == ["Sum up: My cat is ill. (3)", "Explain {this}: My cat is ill. Ill cat."]
    assert [t.reward for t in episode.turns] == [8.0, 3.0]


def test_rounds_with_feedback(write: Callable[..., str]) -> None:
    def feedback(texts, post):
        assert post == "My cat is ill."
        return {role: f"{role}: {len(text)} letters." for role, text in texts.items()}

    task = Rows(data=write(), test=write(name="t.jsonl"), prompts=PROMPTS, reward=one, feedback=feedback)
    assert task.feedback_asks == ("post",)
    says = {("short", 0): "Cat.", ("detailed", 0): "A cat.", ("short", 1): "Cat!", ("detailed", 1): "A cat!"}
    prompts, episode = asked(task, rounds(2, feedback=True), says)
    assert prompts[2:] == [
        "Sum up: My cat is ill. (3) Cat. short: 4 letters.",
        "Explain {this}: My cat is ill. A cat. detailed: 6 letters.",
    ]
    assert [joint.rewards for joint in episode.joints] == [(1.0, 1.0), (1.0, 1.0)]
    prompts, _ = asked(task, rounds(2), says)
    assert prompts[2] == "Sum up: My cat is ill. (3) Cat. Revise your answer."


def test_a_discussion(task: Rows) -> None:
    says = {("short", 0): "Cat.", ("detailed", 0): "A cat.", ("short", 1): "Cat!", ("detailed", 1): "A cat!"}
    prompts, _ = asked(task, discussion(1), says)
    assert prompts[2:] == ["Sum up: My cat is ill. (3) Cat. A cat.", "Explain {this}: My cat is ill. A cat. Cat."]


def test_a_play_that_wants_feedback_of_rows_without(task: Rows) -> None:
    with pytest.raises(ValueError, match="the play wants feedback between turns; Rows has no `feedback`"):
        asked(task, rounds(2, feedback=True), {("short", 0): "a", ("detailed", 0): "b"})


def test_a_single_agent_with_a_reward_for_trl(write: Callable[..., str]) -> None:
    def accuracy(completions, answer, **kwargs):
        return [float(right in said) for said, right in zip(completions, answer, strict=True)]

    sums = [{"prompt": "2 + 2 =", "answer": "4"}, {"prompt": "1 + 2 =", "answer": "3"}]
    task = Rows(data=write(sums), test=write(sums, "t.jsonl"), prompts={"solver": "{prompt}"}, reward=accuracy)
    assert task.solo
    assert task.prompt(task.train[0], "solver", ()) == "2 + 2 ="
    assert task.reward([Case(p, (turn("solver", " 4", p),)) for p in task.train]) == [[1.0], [0.0]]


def test_a_team_is_not_tried_alone(task: Rows) -> None:
    assert task.solo is False


# --- rows and splits -------------------------------------------------------------------------------------------------


def test_a_row_keeps_all_its_columns(task: Rows) -> None:
    assert [*task.train] == [Problem("1", POSTS[0]), Problem("2", POSTS[1])]
    assert [*task.test] == [*task.train]


def test_ids_may_be_a_column(write: Callable[..., str]) -> None:
    named = [{"post": "A", "likes": 0, "key": 7}, {"post": "B", "likes": 0, "key": "x"}]
    task = Rows(data=write(named), test=write(named, "t.jsonl"), prompts=PROMPTS, reward=one, id="key")
    assert [p.id for p in task.train] == ["7", "x"]


def test_a_compressed_file(write: Callable[..., str]) -> None:
    packed = write() + ".gz"
    Path(packed).write_bytes(gzip.compress(Path("posts.jsonl").read_bytes()))
    assert Rows(data=packed, test="posts.jsonl", prompts=PROMPTS, reward=one).train[1].data == POSTS[1]


def test_a_fraction_is_held_out(write: Callable[..., str]) -> None:
    many = [{"post": f"post {i}", "likes": i} for i in range(40)]
    name = write(many)

    def split(test: float, seed: int = 0) -> tuple[list[str], list[str]]:
        task = Rows(data=name, test=test, prompts=PROMPTS, reward=one, seed=seed)
        return [p.id for p in task.train], [p.id for p in task.test]

    train, test = split(0.25)
    assert (len(train), len(test)) == (30, 10)
    assert sorted([*train, *test], key=int) == [str(i) for i in range(1, 41)]
    assert train == sorted(train, key=int)
    assert test == sorted(test, key=int)
    assert test != [str(i) for i in range(31, 41)]
    assert split(0.25) == (train, test)
    assert split(0.25, seed=1) != (train, test)
    assert len(split(0.001)[1]) == 1
    assert len(Rows(data=name, prompts=PROMPTS, reward=one).test) == 4  # a tenth


def test_a_hub_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def rows(name: str, *, dataset: str, split: str, config: str | None) -> list[dict[str, Any]]:
        asked.append((name, dataset, split))
        return list(POSTS)

    monkeypatch.setattr(data, "rows", rows)
    assert len(Rows(data="me/posts", test="me/posts", prompts=PROMPTS, reward=one).test) == 2
    assert len(Rows(data="me/posts:all", test=0.5, prompts=PROMPTS, reward=one).test) == 1
    assert asked == [
        ("posts_train", "me/posts", "train"),
        ("posts_test", "me/posts", "test"),
        ("posts_all", "me/posts", "all"),
    ]


def test_a_recipe_names_files(write: Callable[..., str]) -> None:
    Path("mine.py").write_text(
        "def brief(short, **columns):\n    return -len(short)\n\n\ndef note(texts, **columns):\n    return 'Shorter.'\n"
    )
    settings = {"data": write(), "test": 0.5, "prompts": {"short": "{post}"}}
    named = {"reward": "mine.py:brief", "feedback": "mine.py:note"}
    task = component({"name": "rows", **settings, **named}, {"rows": Rows}, "task")
    (problem,) = task.train
    assert task.reward([Case(problem, (turn("short", "four", problem),))]) == [[-4.0]]
    assert task.feedback(problem, [turn("short", "four", problem)]) == ["Shorter."]
    with pytest.raises(ValueError, match="task: unknown key promts; did you mean 'prompts'"):
        component({"name": "rows", "data": "x", "promts": {}, "reward": "y"}, {"rows": Rows}, "task")


def test_any_number_fills_a_prompt() -> None:
    """NumPy's and very large ones too, but none that is infinite."""
    for number in (np.int64(3), np.float32(0.5), 10**400, Fraction(1, 3)):
        rows = Rows(data=[{"n": number}, {"n": 1}], prompts={"a": "{n}"}, reward=lambda n: 0.0)
        assert {number, 1} == {problem.data["n"] for problem in (*rows.train, *rows.test)}
    for number in (math.nan, np.float32("inf")):
        with pytest.raises(ValueError, match="want text or number"):
            len(Rows(data=[{"n": number}, {"n": 1}], prompts={"a": "{n}"}, reward=lambda n: 0.0).train)


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{pst}", "task posts.jsonl, row 1: no column 'pst', which prompts.short names; did you mean 'post'?; it has "
         "post, likes, tags"),
        ("{tags}", "task posts.jsonl, row 1: column 'tags', which prompts.short names, is None; want text or number"),
        ("{post", "task.prompts.short: expected '}' before end of string; want {name}, and {{ or }} for a brace"),
        ("a}", "task.prompts.short: Single '}' encountered in format string; want {name}, and {{ or }} for a brace"),
        ("{}", "task.prompts.short: a brace around ''; want the plain name of a column in it"),
        ("{likes:.1f}", "task.prompts.short: a brace around 'likes'; want the plain name of a column in it"),
        ("{post!r}", "task.prompts.short: a brace around 'post'; want the plain name of a column in it"),
        ("{post.x}", "task.prompts.short: a brace around 'post.x'; want the plain name of a column in it"),
        ("{post[0]}", "task.prompts.short: a brace around 'post[0]'; want the plain name of a column in it"),
    ],
)  # fmt: skip
def test_a_wrong_template(write: Callable[..., str], template: str, said: str) -> None:
    write([{**row, "tags": None} for row in POSTS])
    assert message(prompts={"short": template}) == said


def test_a_row_that_lacks_a_column(write: Callable[..., str]) -> None:
    write([*POSTS, {"likes": 1}])
    assert message() == "task posts.jsonl, row 3: no column 'post', which prompts.short names; it has likes"
    write([*POSTS, {"post": ["a"], "likes": 1}])
    assert message() == (
        "task posts.jsonl, row 3: column 'post', which prompts.short names, is ['a']; want text or number"
    )


def test_the_test_file_is_checked_too(write: Callable[..., str]) -> None:
    write()
    write([{"post": "x"}], "t.jsonl")
    assert message(test="t.jsonl") == "task t.jsonl, row 1: no column 'likes', which prompts.short names; it has post"


def test_a_column_named_heard(write: Callable[..., str]) -> None:
    write([{**row, "heard": "x"} for row in POSTS])
    assert message() == (
        "task posts.jsonl, row 1: a column 'heard', but in prompts.detailed that is what was heard; rename it"
    )
    made = Rows(data="posts.jsonl", test=0.5, prompts={"short": "{post}"}, reward=one)
    assert made.prompt(made.train[0], "short", ()) == made.train[0].data["post"]


def test_ids_that_are_missing_or_repeat(write: Callable[..., str]) -> None:
    write([{**POSTS[0], "key": "a"}, {**POSTS[1], "key": None}])
    assert message(id="key") == (
        "task posts.jsonl, row 2: no column 'key', which task.id names; it has post, likes, key"
    )
    write([{**POSTS[0], "key": 1}, {**POSTS[1], "key": "1"}])
    assert message(id="key") == (
        "task posts.jsonl, row 2: '1' in column 'key' names an earlier row too; want a column of its own"
    )


def test_a_reward_that_wants_what_is_not_there(write: Callable[..., str]) -> None:
    write()
    assert message(reward=lambda short, answer: 0) == (
        "reward '<lambda>', problem '1': parameter 'answer' has no value; there are short, detailed, texts, and the "
        "columns post, likes"
    )
    assert "for a team write def reward(short, detailed, **columns)" in message(reward=lambda completions: [0])


@pytest.mark.parametrize("test", [0.0, 1.0, -0.5, 3.0])
def test_an_impossible_fraction(write: Callable[..., str], test: float) -> None:
    write()
    assert message(test=test) == (f"task.test is {test}; want a fraction between 0 and 1")


def test_a_fraction_that_takes_all(write: Callable[..., str]) -> None:
    write()
    assert message(test=0.9) == ("task.test: 0.9 of 2 rows leaves none to train on; lower it or add rows")


@pytest.mark.parametrize(
    ("data", "test", "prompts", "said"),
    [
        (POSTS, [{"post": "New.", "likes": 1}], PROMPTS, None),
        (POSTS, [POSTS[0], {"post": "New.", "likes": 1}], PROMPTS, "1 of 2 held-out problems ask what others"),
        (POSTS, POSTS, PROMPTS, "2 of 2 held-out problems ask what others"),
        ([{"n": "1"}], [{"n": 1}], {"a": "{n}"}, "1 of 1 held-out problems ask what others"),
        ([{"n": 1}], [{"n": 1}], {"a": "Write a poem."}, None),
        ([{"post": "p", "from": i} for i in range(10)], 0.2, {"a": "{post}"}, "2 of 2 held-out problems ask what"),
        ([{"post": f"p{i}"} for i in range(10)], 0.2, {"a": "{post}"}, None),
    ],
)
def test_held_out_rows_that_are_trained_on_are_told(data: Any, test: Any, prompts: Any, said: str | None) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert len(Rows(data=data, test=test, prompts=prompts, reward=one).test) > 0
    assert [str(warning.message)[: len(said or "")] for warning in told] == ([] if said is None else [said])


def test_no_roles(write: Callable[..., str]) -> None:
    write()
    assert message(prompts={}) == "task.prompts is empty; want a template for each role"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "posts.jsonl holds no rows"),
        (b'{"a": 1}\n[1]\n', "posts.jsonl, line 2: a list; want a JSON object"),
        (b'{"a": 1}\n{"a": x\n', "posts.jsonl, line 2: Expecting value at column 7; want a JSON object"),
        (b"\xff\n", "posts.jsonl is not UTF-8 text (line 1, byte 0xff); save it as UTF-8"),
    ],
)
def test_a_broken_file(write: Callable[..., str], content: bytes, said: str) -> None:
    Path(write()).write_bytes(content)
    assert message().startswith(said)


def test_no_file(write: Callable[..., str]) -> None:
    assert message(data="none.jsonl") == "none.jsonl does not exist; check the path"


def test_a_file_that_is_not_compressed(write: Callable[..., str]) -> None:
    Path("posts.jsonl.gz").write_text("{}")
    assert message(data="posts.jsonl.gz").startswith("posts.jsonl.gz: Not a gzipped file (b'{}')")
