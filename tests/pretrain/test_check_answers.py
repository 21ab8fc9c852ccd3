"""The puzzles that are easy to check, and what is said to them."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from random import Random

import pytest
import yaml

import checks_card
from coevolve.diagnose.premise import premise
from coevolve.models.load import load_tokenizer
from coevolve.pretrain.build import train_tokenizer
from coevolve.pretrain.check_answers import checked, guesses, references
from coevolve.pretrain.run import main as pretrain
from coevolve.recipe.read import load_recipe
from coevolve.tasks.checkable import Checkable
from coevolve.tasks.worlds.checks import Puzzle, answer, clauses, puzzles, square, subset
from coevolve.tasks.worlds.split import Split
from coevolve.types import Problem, Turn

RECIPES = Path(__file__).parents[2] / "recipes"

pytestmark = pytest.mark.slow

SPLITS: tuple[Split, ...] = ("pretrain", "train", "test")


def solved(question: str) -> set[str]:
    """The right answers to a question, from its text alone, by trying all."""
    if found := re.fullmatch(r"Which x of (.*) has x\*x mod 41 = (\d+)\?", question):
        return {x for x in found[1].split(", ") if int(x) ** 2 % 41 == int(found[2])}
    if found := re.fullmatch(r"Which of (.*) add up to (\d+)\?", question):
        numbers = found[1].split(", ")
        some = [each for size in (2, 3) for each in combinations(numbers, size)]
        return {", ".join(each) for each in some if sum(map(int, each)) == int(found[2])}
    found = re.fullmatch(r"Which of a, b, c make (.*) true\?", question)
    assert found
    every = [each for size in range(4) for each in combinations("abc", size)]
    right = [each for each in every if eval(found[1], {letter: letter in each for letter in "abc"})]
    return {", ".join(each) or "none" for each in right}


@pytest.mark.parametrize("split", SPLITS)
def test_what_is_right_is_what_the_text_says(split: Split) -> None:
    for puzzle in puzzles(split, 600, Random(1)):
        assert puzzle.right == solved(puzzle.question)
        assert puzzle.right <= set(puzzle.checks)


def test_a_puzzle_of_each_family_by_hand() -> None:
    one = square(Random(0))  # 25*25 = 625 = 15*41 + 10, 27*27 = 729 = 17*41 + 32, 3*3 = 9
    assert (one.question, one.right) == ("Which x of 25, 27, 3 has x*x mod 41 = 32?", {"27"})
    assert one.checks == {
        "25": "25 has 10. 13 no 02 no.",
        "27": "27 has 32. 33 yes 22 yes.",
        "3": "3 has 9. 03 no 92 no.",
    }
    some = subset(Random(0))
    assert (some.question, some.right) == ("Which of 15, 8, 14 add up to 23?", {"15, 8"})
    assert some.checks["15, 14"] == "15+14=29. 22 yes 93 no."
    assert some.checks["15, 8, 14"] == "15+8=23. 23+14=37. 32 no 73 no."
    true = clauses(Random(0))
    assert true.question == "Which of a, b, c make (b or c) and (not a or not c) and (not a or c) and (a or c) true?"
    assert len(true.checks) == 8
    assert true.checks["a"] == (
        "a true b false c false. b false or c false no. not a false or not c true yes. not a false or c false no. "
        "a true or c false yes."
    )


@pytest.mark.parametrize("split", SPLITS)
def test_a_step_of_the_check_says_no_where_an_answer_is_wrong(split: Split) -> None:
    for puzzle in puzzles(split, 300, Random(6)):
        for said, found in puzzle.checks.items():
            assert bool(re.search(r"\bno\b", found)) == (said not in puzzle.right)
            assert all(eval(add.replace("=", "==")) for add in re.findall(r"\d+\+\d+=\d+", found))


def test_what_is_taught_is_what_a_play_shows() -> None:
    """The prompts of documents and of the task are the same tokens, and a check is no longer than is sampled."""
    taught = references(Random(7), 300, "pretrain")
    tokenizer = train_tokenizer(taught, 400, classifier=False)
    for text in taught:
        found = re.fullmatch(r"Question: (.*)\nReference: (.*)\nAnswer: .*", text)
        assert found
        problem = Problem("p", {"question": found[1]})
        said = Turn("pioneer", "ann", problem, 0, 0, (), (), (), f" {found[2]}", True)
        shown = str(Checkable().prompt(problem, "observer", [said]))
        first, both = (tokenizer(part)["input_ids"] for part in (shown, text))
        assert text.startswith(shown)
        assert both[: len(first)] == first
        assert len(both) - len(first) < checks_card.TOKENS
    for text in guesses(Random(7), 30, "pretrain"):
        question = text.split("\n")[0].removeprefix("Question: ")
        assert text.startswith(str(Checkable().prompt(Problem("p", {"question": question}), "pioneer", [])) + " ")


def test_a_guess_is_right_a_third_of_the_time() -> None:
    found = puzzles("test", 1500, Random(2))
    shares = [sum(len(one.right) / len(one.checks) for one in found[family::3]) / 500 for family in range(3)]
    assert shares == pytest.approx([0.34, 0.25, 0.29], abs=0.02)


def told(question: str) -> frozenset[str]:
    """The numbers and the sum or rest, or the clauses, of a question, from its text alone."""
    return frozenset(re.findall(r"\(.*?\)", question) or re.findall(r"\bx\b|= \d+|to \d+|\d+", question))


def test_no_question_is_in_two_splits_in_any_order() -> None:
    assert told("Which of 3, 8, 5 add up to 13?") == {"3", "5", "8", "to 13"}
    one, two, three = ({told(puzzle.question) for puzzle in puzzles(split, 3000, Random(3))} for split in SPLITS)
    assert min(map(len, (one, two, three))) > 500
    assert not (one & two or one & three or two & three)
    assert len({puzzle.question for puzzle in puzzles("test", 900, Random(3), distinct=True)}) == 900
    with pytest.raises(ValueError, match="no split 'validation'"):
        puzzles("validation", 1, Random(0))  # type: ignore[arg-type]


def test_the_last_sentence_is_the_answer() -> None:
    texts = (" 7", "7 has 8. 00 yes 88 yes. Right. 7", "8+5=13. 8, 5.", "a true. none", "", "a, b\n")
    assert [answer(text) for text in texts] == ["7", "7", "8, 5", "none", "", "a, b"]


def test_an_observer_keeps_what_is_right_and_otherwise_guesses() -> None:
    puzzle = Puzzle("?", "?", {"a": "1 0.", "b": "1 1.", "none": "0 0."}, frozenset({"b"}))
    rng = Random(4)
    assert {checked(rng, puzzle, "b") for _ in range(20)} == {" 1 1. Right. b"}
    assert {checked(rng, puzzle, "a") for _ in range(50)} == {f" 1 0. Wrong. {fresh}" for fresh in ("a", "b", "none")}


def test_documents_end_in_an_answer() -> None:
    for text in guesses(Random(5), 30, "pretrain"):
        assert re.fullmatch(r"Question: .*\?\nAnswer: [^.]+", text)
    empty = 0
    for text in references(Random(5), 600, "pretrain"):
        found = re.fullmatch(r"Question: (.*)\nReference: (.*)\nAnswer: (.*)", text)
        assert found
        empty += not found[2]
        if found[2] in solved(found[1]):
            assert answer(found[3]) == found[2]
    assert 30 <= empty <= 90  # a tenth


def test_pretraining_needs_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COEVOLVE_DATA", raising=False)
    monkeypatch.setattr("coevolve.pretrain.corpus.GENERATED_DOCUMENTS", 200)
    monkeypatch.setattr("coevolve.pretrain.corpus.HELD_OUT_DOCUMENTS", 5)
    recipe = yaml.safe_load((Path(__file__).parents[2] / "recipes" / "pretrain-checks.yaml").read_text())
    recipe |= {"steps": 3, "batch_size": 2, "log_every": 1, "output_dir": str(tmp_path / "out")}
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(recipe))
    model = pretrain(tmp_path / "few.yaml", [], resume=False)
    monkeypatch.setattr(checks_card, "PROBLEMS", 4)
    text = checks_card.card(tmp_path / "out", checks_card.measured(tmp_path / "out"))
    assert "4 answers to each of 4 held-out problems" in text
    assert load_tokenizer(str(model)).tokenize(" 12+5=17.") == ["Ġ", "1", "2", "+", "5", "=", "1", "7", "."]


def test_the_packaged_model_reads_its_reference() -> None:
    """Its card has .67 and .20, of 1,000 problems."""
    found = premise(load_recipe(RECIPES / "cory-checkable-tiny.yaml"), problems=100, members=4)
    assert found["slope"] > 0.5
    assert found["gain"] > 0.1
