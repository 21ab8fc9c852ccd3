"""The writing tasks' problems: rows as they come, the real ones where the machine has them, and generated ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest

from coevolve.recipe.components import component
from coevolve.tasks import TASKS, Arxiv, Tldr, WritingMini, data
from coevolve.tasks.worlds.opinions import openings
from coevolve.tasks.writing import first_words
from coevolve.types import Case, Problem, Turn

real = pytest.mark.skipif(not os.environ.get(data.FOLDER), reason="COEVOLVE_DATA is not set: no posts, no abstracts")


def serve(monkeypatch: pytest.MonkeyPatch, *rows: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Makes every data set hold these rows; the list says which were asked for."""
    asked: list[tuple[str, str, str]] = []

    def rows_of(name: str, *, dataset: str, split: str) -> list[dict[str, Any]]:
        asked.append((name, dataset, split))
        return [dict(row) for row in rows]

    monkeypatch.setattr(data, "rows", rows_of)
    return asked


def case(problem: Problem, **texts: str) -> Case:
    return Case(problem, tuple(Turn(role, "llm", problem, 0, 0, (), (), (), texts[role], True) for role in texts))


# --- rows ------------------------------------------------------------------------------------------------------------


def test_where_posts_and_abstracts_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = serve(monkeypatch, {"prompt": "POST: x\n\nTL;DR:", "abstract_text": "y"})
    assert all(len(task.train) == len(task.test) == 1 for task in (Tldr(), Arxiv()))
    assert asked == [
        ("tldr_reddit2013", "trl-lib/tldr", "train"),
        ("tldr_openai", "trl-lib/tldr", "test"),
        ("arxiv_train", "OpenMLRL/arXiv_abstract", "train"),
        ("arxiv_val", "OpenMLRL/arXiv_abstract", "val"),
    ]


def test_a_problem_keeps_its_rows_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"prompt": " POST: My cat.\n\nTL;DR:", "completion": " cat", "flagged": False}
    serve(monkeypatch, row | {"flagged": True, "prompt": ""}, row)
    # A row of the hub has no id; its position serves, and flagged ones count.
    assert [*Tldr().test] == [Problem("1", row | {"text": "POST: My cat."})]
    serve(monkeypatch, {"article_id": "2510.1", "abstract_text": "We study cats.\n"})
    assert [*Arxiv().train] == [
        Problem("2510.1", {"article_id": "2510.1", "abstract_text": "We study cats.\n", "text": "We study cats."})
    ]


@pytest.mark.parametrize(
    ("count", "cut"),
    [
        (1, "TITLE:"),
        (3, "TITLE: Cat\n\nPOST:"),
        (5, "TITLE: Cat\n\nPOST: My  cat."),
        (99, "TITLE: Cat\n\nPOST: My  cat."),
    ],
)
def test_the_first_words_of_a_text(count: int, cut: str) -> None:
    assert first_words("TITLE: Cat\n\nPOST: My  cat.", count) == cut


def test_max_words_cuts_what_prompts_show(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {"prompt": "TITLE: Cat\n\nPOST: My cat ran.\n\nTL;DR:"})
    task = Tldr(max_words=4)
    assert task.train[0].data["text"] == "TITLE: Cat\n\nPOST: My"
    assert str(task.prompt(task.train[0], "short", ())).endswith("post.\n\nTITLE: Cat\n\nPOST: My\n\nTL;DR:")
    with pytest.raises(ValueError, match=r"task.max_words is 0; want at least 1, or none"):
        len(Tldr(max_words=0).train)


@pytest.mark.parametrize("broken", [{"post": "x"}, {"prompt": None, "post": "x"}, {"prompt": " ", "post": "x"}])
def test_rows_without_text(monkeypatch: pytest.MonkeyPatch, broken: dict[str, Any]) -> None:
    serve(monkeypatch, {"prompt": "x"}, broken)
    with pytest.raises(ValueError, match=r"tldr, split 'train', row 1: no text in column 'prompt'; it has p"):
        len(Tldr().train)
    serve(monkeypatch, {"abstract": "x"})
    with pytest.raises(
        ValueError, match=r"arxiv, split 'train', row 0: no text in column 'abstract_text'; it has abstract$"
    ):
        len(Arxiv().train)


def test_settings_are_checked_as_a_recipe_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {"prompt": "x"})
    task = component({"name": "tldr", "max_words": 60, "bands": {"words": [3, 40]}}, TASKS, "task")
    assert task.bands.words == (3, 40)
    with pytest.raises(ValueError, match=r"task: unknown key max_word; did you mean 'max_words'"):
        component({"name": "tldr", "max_word": 60}, TASKS, "task")
    with pytest.raises(ValueError, match=r"task.bands: unknown key word; did you mean 'words'"):
        component({"name": "tldr", "bands": {"word": [3, 40]}}, TASKS, "task")


@real
def test_the_real_posts() -> None:
    task = Tldr()
    assert (len(task.train), len(task.test)) == (1535, 278)  # 222 of 500 are flagged
    assert len({p.id for p in (*task.train, *task.test)}) == 1535 + 278
    problem = next(p for p in task.train if p.id == "t3_13jgv7")
    assert problem.data["text"].startswith("SUBREDDIT: r/socialskills\n\nTITLE: Past the opener:")
    prompt = str(task.prompt(problem, "short", ()))
    assert prompt.endswith("\n\nTL;DR:")
    assert prompt.count("TL;DR:") == 1
    # The author's own summary (12 words, one of them "&") beside the first 43 words of the post.
    brief, post = problem.data["summary"], problem.data["post"]
    parts = task.parts([case(problem, short=brief, detailed=" ".join(post.split()[:43]))])[0]
    assert (parts["words_1"], parts["words_2"]) == (12.0, 43.0)


@real
def test_the_real_abstracts() -> None:
    task = Arxiv()
    assert (len(task.train), len(task.test)) == (1100, 1100)
    assert len({p.id for p in (*task.train, *task.test)}) == 2200
    problem = task.train[3]
    text = problem.data["text"]
    assert problem.id == "2510.25976"
    assert text.startswith("Reconstructing images seen by people from their fMRI brain recordings")
    # One abstract twice: ratio 1 is (1 - 0.8) / 0.5 = 0.4, everything else but the transition words is full.
    assert 100 <= len(text.split()) <= 300
    assert task.parts([case(problem, background=text, method=text)])[0]["structure"] == pytest.approx(1.4 / 2)


# --- writing-mini ----------------------------------------------------------------------------------------------------


def test_opinions_on_subjects_that_are_in_no_other_split() -> None:
    task = WritingMini()
    assert sorted(p.id for p in task.train) == sorted(openings("train"))
    assert sorted(p.id for p in task.test) == sorted(openings("test"))
    # The twelve openings on a subject are neighbours in the list; the first twelve problems are on several.
    assert not all("film we saw last night" in p.id for p in task.test[:12])
    for problem in task.train[:50]:
        assert problem.data["text"].count(problem.id) == 2  # two opinions that begin alike
    assert [*WritingMini().train] == [*task.train]


def test_roles_of_mini_have_prompts_of_their_own() -> None:
    task = WritingMini(roles=["a", "b", "c", "d"])
    problem = Problem("p", {"text": "The soup was hot.", "opening": "The soup was"})
    said = 'I can make this sentence "The soup was hot." '
    assert [task.prompt(problem, role, ()) for role in "abcd"] == [
        f"{said}shorter: The soup was",
        f"{said}longer: The soup was",
        f"{said}2 times longer: The soup was",
        f"{said}3 times longer: The soup was",
    ]
    mine = case(problem, b=" so hot.").turns[0]
    others = case(problem, a=" hot.", c=" fine.").turns
    assert task.prompt(problem, "b", (others[0], mine, others[1])) == [
        mine,
        "\n\nThe a one: hot.\n\nThe c one: fine.\n\nComplement it, do not repeat it.\n\nWrite it again, better.\n\n"
        "I can make it longer: The soup was",
    ]


def test_many_writers_earn_the_mean_over_neighbours() -> None:
    task = WritingMini(roles=["a", "b", "c"])
    a = "cat dog owl"  # 3 words, 11 characters
    b = "cat dog owl fox hen sheep"  # 6 words, 25 characters: ratio 2.27, different words 2, Jaccard 1/2: 2.6
    c = "my cat ran"  # 3 words, 10 characters: ratio 0.4 to b, level 1 only: 0.5
    problem = task.train[0]
    # "sheep", "fox", "hen": "then" is not in it; no category in b and c.
    assert task.reward([case(problem, c=c, a=a, b=b)]) == [pytest.approx([1.55, 1.55, 1.55])]
    parts = task.parts([case(problem, a=a, b=b, c=c)])[0]
    assert parts["return"] == pytest.approx(1.55 / 3)
    assert parts["length_ratio"] == pytest.approx((25 / 11 + 10 / 25) / 2)
    assert [parts[f"words_{i}"] for i in (1, 2, 3)] == [3.0, 6.0, 3.0]
    notes = task.feedback(problem, case(problem, a=a, b=b, c=c).turns)
    assert notes[0] == "Nothing needs to change."
    assert "The c text is 0.40 times as long as the b one, and should be 1.6 to 3.2 times: write less." in notes[1]
    assert "write more." in notes[2]
    with pytest.raises(ValueError, match=r"want one turn of each role, a, b, c; were given a, b$"):
        task.reward([case(problem, a=a, b=b)])


def test_a_writer_of_mini() -> None:
    task = WritingMini()
    problem = task.train[0]
    assert task.reward([case(problem, writer="cat dog owl\n---\ncat dog owl fox hen sheep")]) == [pytest.approx([2.6])]
    with pytest.raises(ValueError, match="no role 'writer'; known: a, b, c"):
        WritingMini(roles=["a", "b", "c"]).prompt(problem, "writer", ())


@pytest.mark.parametrize("roles", [["a"], ["a", "a"], ["a", "writer"], []])
def test_roles_that_cannot_be(roles: list[str]) -> None:
    with pytest.raises(ValueError, match=r"task.roles are .*; want two or more different names, none of them writer"):
        WritingMini(roles=roles)


def test_mini_has_smaller_bounds_and_no_other_difference() -> None:
    task = component({"name": "writing-mini", "bands": {"jaccard": 0.1}}, TASKS, "task")
    assert (task.bands.words, task.bands.ratio, task.bands.jaccard) == ((3, 24), (1.1, 1.6, 3.2, 5.0), 0.1)


def test_a_teams_text_is_cut_as_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    post = " TITLE: Cat\n\nPOST: My cat ran.\n\nTL;DR:"
    serve(monkeypatch, {"prompt": post, "abstract_text": "We study big cats.\n"})
    for task, text in ((Tldr(max_words=4), post), (Tldr(), post), (Arxiv(max_words=2), "We study big cats.\n")):
        for role in task.voices:
            trained = str(task.prompt(task.train[0], role, ()))
            assert str(task.prompt(Problem("p", {"text": text}), role, ())) == trained
            shown = str(task.train[0].data["text"])
            assert str(task.prompt(Problem("p", {"text": shown}), role, ())) == trained


def test_a_text_that_was_cut_when_it_was_read_is_not_cut_again(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {"prompt": "POST: My cat. TL;DR: TL;DR:"})
    task = Tldr()
    assert "POST: My cat. TL;DR:\n\nTL;DR:" in str(task.prompt(task.train[0], "short", ()))
