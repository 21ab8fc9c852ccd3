"""Questions that a number answers: prompts of every play, rewards, parts, and the three data sets."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from coevolve.engines.scripted import ScriptedEngine
from coevolve.plays import chain, discussion, rounds
from coevolve.recipe.components import component
from coevolve.rewards.numbers import is_right
from coevolve.rollout import Stage, rollout
from coevolve.tasks import TASKS, data
from coevolve.tasks.gsm8k import Gsm8k
from coevolve.tasks.mawps import Mawps
from coevolve.tasks.numbers import EXAMPLE, Numbers, split
from coevolve.tasks.svamp import Svamp
from coevolve.types import Case, Instruction, Problem, Sampling, Turn

PENS = Problem("pens", {"question": "Ann has 3 pens and buys 4. How many has she?", "gold": Fraction(7)})
ASKED = EXAMPLE + "Question: Ann has 3 pens and buys 4. How many has she?\n"


@pytest.fixture
def task() -> Numbers:
    return Numbers(train=[PENS], test=[PENS], judge="last-number")


def turn(role: str, text: str, round: int = 0) -> Turn:
    return Turn(role, "llm", PENS, 0, round, (), (), (), text, True)


def prompts(task: Numbers, play: Any, *roles: str) -> list[tuple[str, str]]:
    """(role, prompt) of every turn of one episode in which everybody answers "R is N" for its role and round."""
    told = []

    class Listening:
        train, test = task.train, task.test
        reward = staticmethod(task.reward)

        def prompt(self, p: Problem, role: str, heard: Sequence[Turn | str]) -> Any:
            made = task.prompt(p, role, heard)
            told.append((role, made if isinstance(made, str) else made[0].text + "".join(made[1:])))
            return made

    engine = ScriptedEngine(lambda role, problem, member, number: f" {role} is {number}")
    rollout(play, [PENS], Stage({role: role for role in roles}, Listening(), engine, Sampling(4)))
    return told


def test_the_example_is_right_by_its_own_rule(task: Numbers) -> None:
    # 4 * 6 = 24, a third of it is 8, 24 - 8 + 5 = 21.
    assert task.judge(EXAMPLE, Fraction(21))


def test_pioneer_and_observer(task: Numbers) -> None:
    assert prompts(task, chain(), "pioneer", "observer") == [
        ("pioneer", ASKED + "Answer:"),
        ("observer", ASKED + "Reference: pioneer is 0\nAnswer:"),
    ]
    assert isinstance(task.prompt(PENS, "pioneer", ()), Instruction)


def test_without_transfer_the_observer_has_the_pioneers_prompt(task: Numbers) -> None:
    assert [text for _, text in prompts(task, chain(transfer=False), "pioneer", "observer")] == [ASKED + "Answer:"] * 2


def test_a_chain_of_three(task: Numbers) -> None:
    assert prompts(task, chain(), "a", "b", "c")[2] == ("c", ASKED + "Reference: a is 0\nReference: b is 0\nAnswer:")


def test_a_discussion(task: Numbers) -> None:
    assert prompts(task, discussion(), "a", "b")[2:] == [
        ("a", " a is 0\n\nReference: b is 0\nAnswer:"),
        ("b", " b is 0\n\nReference: a is 0\nAnswer:"),
    ]


def test_rounds_without_notes_ask_again(task: Numbers) -> None:
    assert prompts(task, rounds(2), "a")[1] == ("a", " a is 0\n\nCheck this answer, then answer again.\nAnswer:")


def test_rounds_with_notes(task: Numbers) -> None:
    def note(problem: Problem, turns: Sequence[Turn]) -> list[str]:
        return ["Mind the units."]

    assert prompts(task, rounds(2, feedback=note), "a")[1] == ("a", " a is 0\n\nMind the units.\nAnswer:")


def test_only_notes_behind_the_own_last_turn_are_new(task: Numbers) -> None:
    heard = [turn("a", "5"), "Old.", turn("a", "6", 1), "New."]
    told = task.prompt(PENS, "a", heard)
    assert told == [heard[2], "\n\nNew.\nAnswer:"]
    assert isinstance(told[1], Instruction)  # the user's next message to a chat model


def test_a_text_before_the_own_turn_is_a_reference(task: Numbers) -> None:
    assert task.prompt(PENS, "a", ["It is 8.\n"]) == ASKED + "Reference: It is 8.\nAnswer:"


def test_each_turn_is_paid_for_its_own_answer(task: Numbers) -> None:
    case = Case(PENS, (turn("a", "3 + 4 = 7"), turn("b", "7 or 8"), turn("c", "It is $7.00.")))
    assert task.reward([case, Case(PENS, (turn("a", "none"),))]) == [[1.0, 0.0, 1.0], [0.0]]


@pytest.mark.parametrize(
    ("answers", "parts"),
    [
        (["7"], {"solved": 1, "numbers": 1}),
        (["no idea"], {"solved": 0, "numbers": 0}),
        (["7", "8"], {"solved": 0, "numbers": 1, "solved_any": 1, "agree": 0}),
        (["8", "7.0"], {"solved": 1, "numbers": 1, "solved_any": 1, "agree": 0}),
        (["8", "it is 8"], {"solved": 0, "numbers": 1, "solved_any": 0, "agree": 1}),
        (["?", "?"], {"solved": 0, "numbers": 0, "solved_any": 0, "agree": 0}),
        (["7", "?", "?", "7"], {"solved": 1, "numbers": 0.5, "solved_any": 1, "agree": 0}),
    ],
)
def test_parts(task: Numbers, answers: list[str], parts: dict[str, float]) -> None:
    turns = tuple(turn(role, text) for role, text in zip("abcd", answers, strict=False))
    assert task.parts([Case(PENS, turns)]) == [parts]


def test_what_a_model_adds_counts(task: Numbers) -> None:
    case = Case(PENS, (turn("a", " 7\n\nQuestion: Bo has 2 cats. How many legs?\nAnswer: 8"),))
    assert task.reward([case]) == [[0.0]]


def test_an_unknown_judge() -> None:
    with pytest.raises(ValueError, match=r"task\.judge is 'last-numbers'; did you mean 'last-number'"):
        Numbers(train=[], test=[], judge="last-numbers")


Put = Callable[[str, list[dict[str, Any]]], None]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    monkeypatch.setenv(data.FOLDER, str(tmp_path))

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))

    return write


def test_gsm8k(put: Put) -> None:
    put("gsm8k_train", [{"question": " How many? ", "answer": "1+1=<<1+1=2>>2\n#### 1,002"}])
    put("gsm8k_test", [{"question": "A", "answer": "#### 0"}, {"question": "B", "answer": "#### -3"}])
    found = Gsm8k()
    assert [*found.train] == [Problem("0", {"question": "How many?", "gold": Fraction(1002)})]
    assert [(p.id, p.data["gold"]) for p in found.test] == [("0", 0), ("1", -3)]


def test_all_of_gsm8k() -> None:
    if not (Path(os.environ.get(data.FOLDER, "")) / "gsm8k_train.jsonl.gz").is_file():
        pytest.skip(f"needs gsm8k_*.jsonl.gz in the folder that {data.FOLDER} names")
    found = Gsm8k()
    assert (len(found.train), len(found.test)) == (7473, 1319)
    for problems, name in ((found.train, "gsm8k_train"), (found.test, "gsm8k_test")):
        assert all(p.data["gold"].denominator == 1 for p in problems)
        solutions = [row["answer"] for row in data.read(name)]
        assert all(is_right(text, p.data["gold"]) for text, p in zip(solutions, problems, strict=True))
        # Without their last line, the answer is the last number of 7,264 and 1,282 solutions: 97.2 %. The others end
        # in another one ("<<2+4=6>>6 kilometers for 2 hours").
        worked = [text.rpartition("####")[0] for text in solutions]
        right = sum(is_right(text, p.data["gold"]) for text, p in zip(worked, problems, strict=True))
        assert right == {"gsm8k_train": 7264, "gsm8k_test": 1282}[name]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"question": "A", "answer": "It is 2."}, r"gsm8k, split 'test', row 1: no '####' in the worked solution"),
        ({"question": "A", "answer": "#### many"}, r"gsm8k, split 'test', row 1: 'many' is no number; want one such"),
        ({"answer": "#### 2"}, r"gsm8k, split 'test', row 1: no text in column 'question'; it has answer"),
        ({"question": "A", "answer": None}, r"gsm8k, split 'test', row 1: no text in column 'answer'; it has"),
    ],
)
def test_a_bad_row_of_gsm8k(put: Put, row: dict[str, Any], why: str) -> None:
    good = {"question": "A", "answer": "#### 2"}
    put("gsm8k_train", [good])
    put("gsm8k_test", [good, row])
    with pytest.raises(ValueError, match=why):
        len(Gsm8k().test)


def test_gsm8k_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(data.FOLDER, raising=False)
    row = {"question": "A", "answer": "#### 2"}
    monkeypatch.setattr(data, "hub", lambda dataset, split, config: [row | {"id": f"{dataset} {config} {split}"}])
    found = Gsm8k()
    assert (found.train[0].id, found.test[0].id) == ("openai/gsm8k main train", "openai/gsm8k main test")


BODIES = [("Ann has 3 pens.", "How many has she?"), ("If Bo buys 2 more cups", "how many are there?")]


def test_svamp_from_both_sources(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put("svamp", [{"id": str(i), "body": b, "question": q, "answer": 3.0} for i, (b, q) in enumerate(BODIES)])
    ours = Svamp()
    assert sorted(p.data["question"] for p in (*ours.train, *ours.test)) == [
        "Ann has 3 pens. How many has she?",
        "If Bo buys 2 more cups, how many are there?",
    ]
    monkeypatch.delenv(data.FOLDER)
    rows = [{"ID": "x", "Body": b, "Question": q, "Answer": "3.0"} for b, q in reversed(BODIES)]
    monkeypatch.setattr(data, "hub", lambda dataset, split, config: rows)
    hubs = Svamp()
    for one, other in ((ours.train, hubs.train), (ours.test, hubs.test)):
        assert sorted(p.data["question"] for p in one) == sorted(p.data["question"] for p in other)
    assert {p.data["gold"] for p in (*hubs.train, *hubs.test)} == {Fraction(3)}


def test_mawps_leaves_out_rounded_answers(put: Put) -> None:
    answers = [0.6666666667, 3.33333, 9.43, 0.125, 2.0]
    put("mawps", [{"id": str(i), "question": f"Q{i}", "answer": a} for i, a in enumerate(answers)])
    found = Mawps()
    assert {p.data["gold"] for p in (*found.train, *found.test)} == {Fraction(943, 100), Fraction(1, 8), Fraction(2)}


def test_mawps_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(data.FOLDER, raising=False)
    rows = [{"id": "m", "question": "Q", "result": "1_000", "result_float": 1000.0}]
    monkeypatch.setattr(data, "hub", lambda dataset, split, config: rows)
    found = Mawps()
    assert [p.data["gold"] for p in (*found.train, *found.test)] == [1000]


def word(i: int) -> str:
    """Another one for each number, without digits."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(i))


def test_a_split_by_content() -> None:
    made = [Problem(str(i), {"question": f"What is {word(i)}?"}) for i in range(1000)]
    train, test = split(made, 0.3)
    # Binomial(1000, 0.3): 300 +- 14.5; five standard deviations.
    assert 228 < len(test) < 372
    assert sorted([p.id for p in (*train, *test)], key=int) == [p.id for p in made]
    again = split([Problem("new", p.data) for p in reversed(made)], 0.3)
    assert {p.data["question"] for p in again[1]} == {p.data["question"] for p in test}


@pytest.mark.parametrize("name", ["svamp", "mawps"])
def test_three_tenths_are_held_out(name: str, put: Put) -> None:
    put(name, [{"question": f"What is {word(i)}?", "body": f"So {word(i)}.", "answer": 2.0} for i in range(1000)])
    made: Any = component({"name": name}, TASKS, "task")
    assert len(made.train) + len(made.test) == 1000
    assert 228 < len(made.test) < 372  # as above


@pytest.mark.parametrize("name", ["svamp", "mawps"])
def test_what_differs_in_numbers_only_is_on_one_side(name: str, put: Put) -> None:
    """For svamp what is told, whatever is asked of it; each of 40 stories has five problems."""
    told = [(f"{word(i)} has {n} nuts.", f"How many {word(n)}?" if name == "svamp" else "How many?", float(i))
            for i in range(40) for n in range(10, 60, 10)]  # fmt: skip
    rows = [{"body": body, "question": asked if name == "svamp" else f"{body} {asked}", "answer": answer}
            for body, asked, answer in told]  # fmt: skip
    put(name, rows)
    made: Any = component({"name": name}, TASKS, "task")
    sides = [{p.data["question"].split()[0] for p in side} for side in (made.train, made.test)]
    assert [bool(side) for side in sides] == [True, True]
    assert len(made.train) + len(made.test) == 200
    assert sides[0].isdisjoint(sides[1])


def test_a_problem_of_training_in_other_words_is_not_held_out() -> None:
    """Other numbers, another answer or other words make another problem. By its story, "a" is one to train."""
    asked = [
        (0, "Tim has 2 balls and buys 3 balls now. How many has he?", 5),
        (1, "Tim has 2 balls, and buys 3 balls now. How many balls has he got?", 5),
        (2, "Tim has 2 balls, and buys 4 balls now. How many balls has he got?", 5),
        (3, "Tim has 2 balls, and buys 3 balls now. How many balls has he lost?", 1),
        (4, "A train of 3 cars gets 2 more cars at a station. What is its length?", 5),
        (5, "Tim has 2 balls and buys 3 now. How many are his own?", 5),  # 8 of 12 words
        (6, "Tim has 2 balls and buys 3 today. How many are his own?", 5),  # 7 of 13
    ]
    made = [Problem(str(i), {"question": q, "gold": Fraction(gold), "story": "abcdefg"[i]}) for i, q, gold in asked]
    train, test = split(made, 0.5)
    assert ([p.id for p in train], [p.id for p in test]) == (["0"], ["2", "3", "4", "6"])


def test_a_question_that_repeats_is_kept_once() -> None:
    made = [Problem(str(i), {"question": q}) for i, q in enumerate(["How  many ?", "how many?", "How much?"])]
    train, test = split(made, 0.5)
    assert sorted(p.id for p in (*train, *test)) == ["0", "2"]


@pytest.mark.parametrize("name", ["gsm8k", "svamp", "mawps"])
def test_a_recipe_may_name_it(name: str, put: Put) -> None:
    row = {"question": "A b.", "body": "C d.", "answer": "#### 2"}
    for file in ("gsm8k_train", "gsm8k_test"):
        put(file, [row])
    for file in ("svamp", "mawps"):
        put(file, [row | {"answer": 2.0}])
    made: Any = component({"name": name, "judge": "last-number"}, TASKS, "task")
    assert isinstance(made, Numbers)


def test_the_judge_of_a_task_is_the_one_that_is_named(put: Put) -> None:
    """A formula in a box is right for the one that reads formulas; the other takes its last number, 16."""
    for file in ("gsm8k_train", "gsm8k_test"):
        put(file, [{"question": "A b.", "answer": "#### 12"}])
    pay = {}
    for judge in ("last-number", "math-verify"):
        task: Any = component({"name": "gsm8k", "judge": judge}, TASKS, "task")
        problem = task.train[0]
        said = Turn("pioneer", "ann", problem, 0, 0, [1], [2], [0.0], r"It is \boxed{\frac{48}{\sqrt{16}}}.", True)
        pay[judge] = task.reward([Case(problem, (said,), ())])
    assert pay == {"last-number": [[0.0]], "math-verify": [[1.0]]}
