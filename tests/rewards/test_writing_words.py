"""Word lists from files: the format, what they change in the reward, and what is said about bad ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from coevolve.recipe.build import parts
from coevolve.recipe.read import load_recipe
from coevolve.rewards.writing import TLDR, compare, total
from coevolve.rewards.writing_words import OURS, Words, read_words
from coevolve.tasks import Arxiv, Tldr, WritingMini

STOP = "# what the two texts share\nRed\n dog\n\na\nran\n"
LINKS = "[animals]\ncat\nDOG\n# places\n[places]\nfence\ngarden and\n[none of these]\nsnow\n"

# 8 words, 31 characters, 8 different; 14 words, 70 characters, 14 different.
BRIEF = "A red dog ran over my old fence"
LONG = "However, that big red dog also ran across a muddy garden and it barked"
FIRST_THREE = 0.5 + 1 + 0.225 / 0.7
"""Both lengths are right, 70 / 31 is in the full band, and (14 / 8 - 1.3) / 0.7 of 0.5."""


def _lists(folder: Path, stop: str = STOP, links: str = LINKS) -> dict[str, str]:
    (folder / "stop.txt").write_text(stop, "utf-8")
    (folder / "links.txt").write_text(links, "utf-8")
    return {"stop_words": str(folder / "stop.txt"), "transition_words": str(folder / "links.txt")}


def test_the_format(tmp_path: Path) -> None:
    assert read_words(**_lists(tmp_path)) == Words(
        stop=frozenset({"red", "dog", "a", "ran"}),
        transitions={"animals": ("cat", "dog"), "places": ("fence", "garden and"), "none of these": ("snow",)},
    )
    dos = _lists(tmp_path, "\ufeffred\r\ndog", "[x]\r\ny\r\n")
    assert read_words(**dos) == Words(frozenset({"red", "dog"}), {"x": ("y",)})


def test_ours_where_there_is_no_file(tmp_path: Path) -> None:
    given = _lists(tmp_path)
    assert read_words(None, None) == OURS
    assert read_words(given["stop_words"], None).transitions is OURS.transitions
    assert read_words(None, given["transition_words"]).stop is OURS.stop


def test_totals_by_other_lists(tmp_path: Path) -> None:
    given = _lists(tmp_path)
    stop, links = read_words(given["stop_words"], None), read_words(None, given["transition_words"])

    def paid(words: Words) -> float:
        return total(compare(BRIEF, LONG, TLDR, words), TLDR)

    # Ours: "a", "over", "my", ... are no content, a fifth is shared; seven categories: 0.4 * (0.4 + 3 * 0.05) = 0.22.
    assert paid(OURS) == pytest.approx(FIRST_THREE + 0.6 + 0.22)
    # Without red, dog, a and ran, no word is shared.
    assert paid(stop) == pytest.approx(FIRST_THREE + 0.0 + 0.22)
    # "dog" and "garden and", two of three: 0.4 * 0.45.
    assert paid(links) == pytest.approx(FIRST_THREE + 0.6 + 0.18)
    assert paid(Words(stop.stop, links.transitions)) == pytest.approx(FIRST_THREE + 0.0 + 0.18)


@pytest.mark.parametrize("task", [Tldr, Arxiv, WritingMini])
def test_the_tasks_pay_and_advise_by_them(task: Any, tmp_path: Path) -> None:
    made = task(**_lists(tmp_path), bands={"words": [3, 40], "ratio": [1.1, 1.6, 3.2, 5.0]})
    assert made.words.stop == {"red", "dog", "a", "ran"}
    [pair] = made._pairs({"one": BRIEF, "two": LONG})
    assert (pair.jaccard, "places" in pair.found) == (0.0, True)


def test_feedback_counts_the_categories_of_the_file(tmp_path: Path) -> None:
    from coevolve import Problem
    from coevolve.rewards.function import silent

    task = WritingMini(**_lists(tmp_path))
    turns = silent(Problem("p"), ["short", "detailed"]).turns
    turns[0].text, turns[1].text = "my old cat", "my old cat and a dog left my home"
    assert task.feedback(Problem("p"), turns)[1].endswith(
        "There are transition words of 1 of 3 kinds; add others, such as fence, snow."
    )


def test_a_recipe_names_them_relative_to_itself(tmp_path: Path) -> None:
    _lists(tmp_path)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "task: {name: writing-mini, stop_words: stop.txt, transition_words: links.txt}\nplay: rounds\n"
        "roles: {short: ann, detailed: ann}\npolicies: {ann: coevolve-tiny}\nalgorithm: magrpo\n"
    )
    loaded = load_recipe(recipe)
    assert loaded.record()["task"]["stop_words"] == str(tmp_path / "stop.txt")  # a run's recipe says which list it was
    task = parts(loaded).task()
    assert isinstance(task, WritingMini)
    assert task.words == read_words(str(tmp_path / "stop.txt"), str(tmp_path / "links.txt"))


@pytest.mark.parametrize(
    ("key", "content", "said"),
    [
        ("stop_words", None, "cannot be read as text: No such file"),
        ("stop_words", b"", "holds no words"),
        ("stop_words", b"\n# a comment\n  \n", "holds no words"),
        ("stop_words", b"\xff\xfe\x00\x01", "cannot be read as text: "),
        ("stop_words", b"red\nd\x00g\n", "line 2: it has characters that no text has"),
        ("stop_words", b"red\n[contrast]\n", "line 2: '[contrast]' begins a category"),
        ("transition_words", b"however\n[time]\nnow", "line 1: 'however' is in no category; want a line such as"),
        ("transition_words", b"[time]\n[contrast]\nbut", "the category [time] has no words"),
        ("transition_words", b"[time]\nnow\n[time]\nthen", "line 3: the category [time] is there twice"),
        ("transition_words", b"", "holds no words"),
    ],
)
def test_a_bad_file_is_one_line(key: str, content: bytes | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        Tldr(**{key: str(file)})
    assert str(caught.value).startswith(f"task.{key}: {file}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "words.csv", "words", "nltk/stop\0words.txt"])
def test_a_name_that_is_no_text_file(name: str) -> None:
    with pytest.raises(ValueError, match=r"^task\.stop_words: ") as caught:
        Tldr(stop_words=name)
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_list(tmp_path: Path) -> None:
    (tmp_path / "stop.txt").mkdir()
    with pytest.raises(ValueError, match="cannot be read as text: Is a directory"):
        Tldr(stop_words=str(tmp_path / "stop.txt"))
