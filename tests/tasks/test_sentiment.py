"""Task sentiment: the packaged one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coevolve.models.names import resolve
from coevolve.tasks import TASKS, Sentiment
from coevolve.tasks.worlds.opinions import openings
from coevolve.types import Case


def test_queries_are_beginnings_of_openings(words: str) -> None:
    task = Sentiment(tokenizer=words)
    assert [p.id for p in task.train] == openings("train")
    assert [p.id for p in task.test] == openings("test")
    assert not {p.id for p in task.train} & {p.id for p in task.test}
    for problem in task.train:
        query = problem.data["query"]
        assert problem.id.startswith(query)
        assert 2 <= len(query.split()) <= 8


def test_the_reward_is_the_lexicon(words: str, case: Callable[..., Case]) -> None:
    task = Sentiment(tokenizer=words)
    problem = next(p for p in task.train if "Our film my" in p.id)
    assert task.reward([case(problem, " was great", " was bad")]) == [pytest.approx([3.1, -2.5])]


@pytest.mark.skipif(not (resolve("coevolve-tiny") / "tokenizer.json").is_file(), reason="coevolve-tiny is not built")  # type: ignore[operator]
def test_out_of_the_box() -> None:
    task = TASKS["sentiment"]()
    assert all(p.id.startswith(p.data["query"]) for p in (*task.train, *task.test))
