"""Base of the tasks ``sentiment`` and ``imdb``: continue the beginning of a text positively."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coevolve import noise
from coevolve.rewards.sentiment import Score
from coevolve.tasks.data import Later, Split
from coevolve.tasks.heard import sorted_out
from coevolve.types import Case, Problem, Role, Turn

OBSERVER = 'I can make this sentence "{reference}" more positive: {query}'
"""CORY's observer template (arXiv 2410.06101, section 4). Models are pre-trained on it: not a character may change."""

_HEAD = 512  # first characters of a text that are tokenised; the whole text only where a query needs more


def observer_prompt(query: str, answer: str) -> str:
    """Return the prompt of an observer. answer: its partner's continuation of ``query`` as it was sampled."""
    return OBSERVER.format(reference=query + answer, query=query)


class Continuation:
    """Base class: a problem is the first few tokens of a text; a turn earns the score of the query with its own text.

    texts: split -> id -> text. tokenizer: the one whose tokens are counted. query_tokens: fewest and most tokens of a
    query, both included; its length is drawn once per problem (by ``seed``), and a shorter text is taken whole. A query
    is text that ends where a token ends; the tokenizer of a policy encodes it again. score: texts -> numbers.

    Raises ValueError unless query_tokens is 1 <= low <= high; and, when the problems are first used, for a tokenizer
    that does not say where its tokens end.
    """

    asks = ("query",)

    def __init__(
        self,
        *,
        texts: Callable[[Split], Mapping[str, str]],
        tokenizer: str,
        query_tokens: tuple[int, int],
        seed: int,
        score: Score,
    ) -> None:
        low, high = query_tokens
        if not 1 <= low <= high:
            raise ValueError(f"task: query_tokens is [{low}, {high}]; want 1 <= low <= high")
        self.train = Later(lambda: _problems("train", texts("train"), tokenizer, query_tokens, seed))
        self.test = Later(lambda: _problems("test", texts("test"), tokenizer, query_tokens, seed))
        self.score = score

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> str:
        """Return the query alone, or the observer's template around the last thing heard, exactly as it was said.

        A role that has spoken is shown the last turn of another role, or its own if it has heard no other. Raises
        ValueError for a note behind its turn, which the template has no place for.
        """
        query: str = p.data["query"]
        if not heard:
            return query
        own, _, notes = sorted_out(role, heard)
        if own is None:
            last = heard[-1]
            return observer_prompt(query, last if isinstance(last, str) else last.text)
        if any(notes):
            raise ValueError(
                f"role {role!r}, problem {p.id!r}: this task's prompts have no place for feedback, and the play gives "
                f"{next(filter(None, notes))[:80]!r}; use a play without it"
            )
        others = (turn for turn in reversed(heard) if isinstance(turn, Turn) and turn.role != role)
        return observer_prompt(query, next(others, own).text)

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        """Return one number per turn: the score of query + its own text, never of the prompt that it was given."""
        texts = [case.problem.data["query"] + turn.text for case in cases for turn in case.turns]
        scores = self.score(texts)
        assert len(scores) == len(texts), f"the scorer returned {len(scores)} numbers for {len(texts)} texts"
        rest = iter(scores)
        return [[next(rest) for _ in case.turns] for case in cases]


def _problems(
    split: str, texts: Mapping[str, str], name: str, query_tokens: tuple[int, int], seed: int
) -> list[Problem]:
    from coevolve.models.load import load_tokenizer  # imported late: a recipe is checked without transformers

    tokenizer = load_tokenizer(name)
    if not tokenizer.is_fast:
        raise ValueError(f"task: tokenizer {name!r} cannot say where its tokens end; name one with a tokenizer.json")
    heads = [text[:_HEAD] for text in texts.values()]
    problems = []
    for (id, text), spans in zip(texts.items(), _spans(tokenizer, heads), strict=True):
        length = noise.integer(*query_tokens, "query", seed, split, id)
        if length >= len(spans) and len(text) > _HEAD:
            [spans] = _spans(tokenizer, [text])
        problems.append(Problem(id, {"query": text[: spans[:length][-1][1]]}))
    return problems


def _spans(tokenizer: Any, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return the first and the end character of every token of each text."""
    found = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    spans: list[list[tuple[int, int]]] = found["offset_mapping"]
    return spans
