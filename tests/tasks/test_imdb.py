"""Task imdb: loading, cleaning, filtering; the real reviews where the machine has them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coevolve.tasks import Imdb, data
from coevolve.tasks.imdb import clean
from coevolve.types import Case, Problem

FILLER = " It was shown on a Monday." * 10


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("One.<br /><br />Two.", "One. Two."),
        ("One.<br/>Two.<br>Three.", "One. Two. Three."),
        (" One.  Two.\n\nThree. <br />", "One. Two. Three."),
        ("a < b", "a < b"),
    ],
)
def test_clean(raw: str, cleaned: str) -> None:
    assert clean(raw) == cleaned


def test_short_reviews_are_left_out(words: str, reviews: Callable[..., None]) -> None:
    reviews("A" + "x" * 199, "B" + "x" * 200)
    assert [p.id for p in Imdb(tokenizer=words, reward_model="lexicon").train] == ["r1"]
    assert [p.id for p in Imdb(tokenizer=words, reward_model="lexicon", min_chars=199).test] == ["r0", "r1"]


def test_the_length_counts_after_cleaning(words: str, reviews: Callable[..., None]) -> None:
    reviews("x" * 195 + "<br />" * 10)
    with pytest.raises(
        ValueError, match=r"imdb, split 'train': no review is longer than 200 characters; lower min_chars"
    ):
        len(Imdb(tokenizer=words, reward_model="lexicon").train)


def test_prompts_and_rewards(words: str, reviews: Callable[..., None], case: Callable[..., Case]) -> None:
    reviews("A great<br />film." + FILLER)
    task = Imdb(tokenizer=words, reward_model="lexicon", query_tokens=(3, 3))
    problem = task.train[0]
    assert problem.data["query"] == "A great film."
    assert task.reward([case(problem, " A wonderful story", " It is boring")]) == [
        pytest.approx([3.1 + 2.7, 3.1 - 1.3])
    ]


def test_hub_rows_have_no_id(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(data.FOLDER, raising=False)
    monkeypatch.setattr(
        data, "hub", lambda dataset, split, config: [{"text": f"{dataset} {split}{FILLER}", "label": 0}]
    )
    task = Imdb(tokenizer=words, reward_model="lexicon", query_tokens=(2, 2))
    assert [(p.id, p.data["query"]) for p in task.test] == [("0", "stanfordnlp/imdb test")]


def test_ids_that_repeat_and_ids_that_are_null(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": f"A film {i}{FILLER}", "id": None} for i in range(3)]
    monkeypatch.setattr(data, "rows", lambda name, dataset, split: rows)
    task = Imdb(tokenizer=words, reward_model="lexicon", query_tokens=(2, 2))
    assert [p.id for p in task.test] == ["0", "1", "2"]
    rows[2]["id"] = 0
    with pytest.raises(ValueError, match=r"imdb, split 'test', row 2 \(0\): its name '0' is that of row 0 too; make"):
        len(Imdb(tokenizer=words, reward_model="lexicon").test)


def test_rows_without_text(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "rows", lambda name, dataset, split: [{"review": "A film", "id": "r0"}])
    with pytest.raises(
        ValueError, match=r"imdb, split 'train', row 0 \(r0\): no text in column 'text'; it has review, id$"
    ):
        len(Imdb(tokenizer=words, reward_model="lexicon").train)


def test_a_prompt_needs_no_data_and_no_reward_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: Callable[..., Case]
) -> None:
    monkeypatch.setenv(data.FOLDER, str(tmp_path / "nowhere"))
    task = Imdb(tokenizer=str(tmp_path / "no-tokenizer"), reward_model=str(tmp_path / "no-model"))
    problem = Problem("mine", {"query": "A film"})
    assert task.prompt(problem, "pioneer", ()) == "A film"
    with pytest.raises(ValueError, match=r"data 'imdb_test': .*imdb_test\.jsonl\.gz does not exist"):
        len(task.test)
    with pytest.raises(ValueError, match="no-model': no such folder"):
        task.reward([case(problem, " x")])


@pytest.mark.skipif(not os.environ.get(data.FOLDER), reason="COEVOLVE_DATA is not set: no reviews here")
def test_the_real_reviews(words: str) -> None:
    task = Imdb(tokenizer=words, reward_model="lexicon")
    assert len(task.train) > 4000
    assert len(task.test) > 900
    for split in (task.train, task.test):
        assert len({p.id for p in split}) == len(split)
        assert all(2 <= len(p.data["query"].split()) <= 8 for p in split)
        assert not any("<br" in p.data["query"] for p in split)
