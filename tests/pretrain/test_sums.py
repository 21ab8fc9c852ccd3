"""The word problems, the flawed answers to them, and the model that was trained on both."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
import yaml

from coevolve.models.load import load_causal_lm, load_tokenizer
from coevolve.models.names import resolve
from coevolve.pretrain.run import main as pretrain
from coevolve.pretrain.sums_answers import answers, flawed, references, right
from coevolve.tasks.worlds.split import Split
from coevolve.tasks.worlds.sums import WordProblem, apply, possible, problems
from sums_test import pass_rates

SENTENCES = {
    r"(?:\w+|At first \w+) has (\d+) \w+\.": lambda value, n: n,
    r"There are (\d+) \w+ on the desk of \w+\.": lambda value, n: n,
    r"\w+ has (\d+) boxes with (\d+) \w+ each\.": lambda value, n, k: n * k,
    r"\w+ fills (\d+) bags with (\d+) \w+ each\.": lambda value, n, k: n * k,
    r"\w+ gives \w+ (\d+) more\.": lambda value, k: value + k,
    r"\w+ finds (\d+) more\.": lambda value, k: value + k,
    r"\w+ buys (\d+) from \w+\.": lambda value, k: value + k,
    r"\w+ gives \w+ (\d+)\.": lambda value, k: value - k,
    r"\w+ loses (\d+) of them\.": lambda value, k: value - k,
    r"\w+ sells (\d+) to \w+\.": lambda value, k: value - k,
    r"A year later \w+ has (\d+) times as many\.": lambda value, k: value * k,
    r"\w+ comes back with (\d+) times as many\.": lambda value, k: value * k,
    r"\w+ makes (\d+) equal piles and keeps one\.": lambda value, k: value / k,
    r"\w+ and others share them, each of the (\d+) gets the same\.": lambda value, k: value / k,
}
"""What each sentence does to the number of things, read from the text alone."""


def read(question: str) -> float:
    """The answer to a question, from its sentences."""
    value = 0.0
    *told, asked = re.split(r"(?<=\.) ", question)
    assert re.fullmatch(r"How many \w+ does \w+ have now\?|With how many \w+ does \w+ end\?", asked)
    for sentence in told:
        (value,) = (
            does(value, *map(int, found.groups()))
            for pattern, does in SENTENCES.items()
            if (found := re.fullmatch(pattern, sentence))
        )
    return value


def pattern(question: str) -> str:
    """A question without its names and its things."""
    things = re.search(r"(?:How many|With how many) (\w+) does", question)
    assert things
    return re.sub(
        r"\b(Ann|Ben|Cleo|Dan|Eva|Finn|Gus|Hana|Ivo|Jana|Kim|Leo|Mia|Nils|Olga|Tom)\b", "X", question
    ).replace(things.group(1), "them")


PEARS = WordProblem("", 7, (("+", 5), ("*", 2), ("/", 3), ("-", 1)))


def test_a_problem_by_hand() -> None:
    # 7 + 5 = 12, 12 * 2 = 24, 24 / 3 = 8, 8 - 1 = 7.
    assert PEARS.gold == 7
    assert right(PEARS) == " 7+5=12. 12*2=24. 24/3=8. 8-1=7. 7"


def test_operations() -> None:
    assert [apply(op, 12, 3) for op in ("+", "-", "*", "/")] == [15, 9, 36, 4]
    assert possible(12, 3, largest=36) == ("+", "-", "*", "/")
    assert possible(12, 5, largest=36) == ("+", "-")  # 12 * 5 = 60, and 5 does not divide 12
    assert possible(3, 3, largest=5) == ("/",)  # 3 - 3 = 0, 3 + 3 = 6
    with pytest.raises(ValueError, match="12 cannot be divided by 5"):
        apply("/", 12, 5)


@pytest.mark.parametrize("split", ["pretrain", "train", "test"])
def test_the_gold_answer_is_what_the_text_says(split: Split) -> None:
    found = problems(split, 1000, Random(1))
    assert [p.gold for p in found] == [read(p.question) for p in found]
    assert {len(p.steps) for p in found} == {1, 2, 3}
    assert {op for p in found for op, _ in p.steps} == {"+", "-", "*", "/"}


def test_templates_and_numbers_of_one_split_never_come_together_in_another() -> None:
    splits: tuple[Split, ...] = ("pretrain", "train", "test")
    one, two, three = ({pattern(p.question) for p in problems(s, 5000, Random(2))} for s in splits)
    assert not (one & two or one & three or two & three)
    with pytest.raises(ValueError, match="no split 'validation'"):
        problems("validation", 1, Random(0))  # type: ignore[arg-type]


def test_distinct_problems() -> None:
    found = problems("test", 2000, Random(3), distinct=True)
    assert len({p.question for p in found}) == 2000


def test_flaws_happen_at_their_rates() -> None:
    # One step "7 + 5": 15 % subtract instead, 18 % of results slip, 12 % end in 7, in 5 or in a number of the working.
    rng, one = Random(4), WordProblem("", 7, (("+", 5),))
    said = [flawed(rng, one) for _ in range(4000)]
    assert sum(text.startswith(" 7-5=") for text in said) / 4000 == pytest.approx(0.15, abs=0.02)
    assert sum(text.startswith(" 7+5=12.") for text in said) / 4000 == pytest.approx(0.85 * 0.82, abs=0.02)
    assert sum(text == " 7+5=12. 12" for text in said) / 4000 == pytest.approx(0.85 * 0.82 * 0.88, abs=0.02)
    # "7 * 5" is 7+5 in 65 %; of two steps the second is left out in 25 %.
    times, two = WordProblem("", 7, (("*", 5),)), WordProblem("", 7, (("+", 5), ("-", 1)))
    assert sum(flawed(rng, times).startswith(" 7+5=") for _ in range(4000)) / 4000 == pytest.approx(0.65, abs=0.025)
    assert sum(flawed(rng, two).count("=") == 1 for _ in range(4000)) / 4000 == pytest.approx(0.25, abs=0.02)


def test_answers_follow_right_references_more_often() -> None:
    repeats: dict[bool, list[bool]] = {True: [], False: []}
    rights: dict[bool, list[bool]] = {True: [], False: []}
    for text in references(Random(5), 4000, "pretrain"):
        found = re.fullmatch(r"Question: (.*)\nReference: (.*)\nAnswer: (.*)", text)
        assert found
        gold = str(int(read(found[1])))
        heard = found[2].split()[-1] == gold
        repeats[heard].append(found[2] == found[3])
        rights[heard].append(found[3].split()[-1] == gold)
    share = {kind: sum(values) / len(values) for kind, values in repeats.items()}
    # 70 % and 20 % are copies, and a new answer may come out the same.
    assert 0.7 < share[True] < 0.9
    assert 0.2 < share[False] < 0.3
    # A wrong reference is put right in 10 % and by the share of new answers that are right.
    assert 0.1 < sum(rights[False]) / len(rights[False]) < 0.4 < sum(rights[True]) / len(rights[True])


def test_an_answer_is_what_a_bare_question_ends_in() -> None:
    (text,) = answers(Random(6), 1, "pretrain")
    assert re.fullmatch(r"Question: .*\?\nAnswer:( \d+[-+*/]\d+=\d+\.)+ \d+", text)


def test_pretraining_needs_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COEVOLVE_DATA", raising=False)
    monkeypatch.setattr("coevolve.pretrain.corpus.GENERATED_DOCUMENTS", 300)
    monkeypatch.setattr("coevolve.pretrain.corpus.HELD_OUT_DOCUMENTS", 5)
    recipe = yaml.safe_load((Path(__file__).parents[2] / "recipes" / "pretrain-sums.yaml").read_text())
    recipe |= {"steps": 3, "batch_size": 2, "log_every": 1, "output_dir": str(tmp_path / "out")}
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(recipe))
    model = pretrain(tmp_path / "few.yaml", [], resume=False)
    tokenizer = load_tokenizer(str(model))
    assert tokenizer.tokenize(" 12+5=17.") == ["Ġ", "1", "2", "+", "5", "=", "1", "7", "."]


def test_it_is_small_enough_to_ship() -> None:
    folder = Path(resolve("coevolve-sums"))
    assert (folder / "model.safetensors").stat().st_size <= 3e6
    assert sum(p.numel() for p in load_causal_lm("coevolve-sums").parameters()) <= 1.5e6
    assert (folder / "README.md").is_file()


@pytest.mark.slow
def test_it_starts_with_something_to_learn_and_reads_its_reference() -> None:
    found = pass_rates(load_causal_lm("coevolve-sums"), load_tokenizer("coevolve-sums"), count=200)
    assert 0.15 <= found["none"] <= 0.30
    assert found["right"] > found["none"] + 0.05
    assert found["own_right"] > found["own_wrong"] + 0.1
