"""Continue the beginning of a text positively: what the tasks ``sentiment`` and ``imdb`` have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from coevolve import noise
from coevolve.rewards.sentiment import Score
from coevolve.tasks.data import Later
from coevolve.types import Case, Problem, Role, Turn

Split = Literal["train", "test"]

OBSERVER = 'I can make this sentence "{reference}" more positive: {query}'
"""CORY's template (arXiv 2410.06101, section 4). Models are pre-trained on it, so not a character may change."""

# Tokens come from this many first characters of a text: enough for any query, and long texts are tokenised for nothing.
_HEAD = 512


def observer_prompt(query: str, answer: str) -> str:
    """What an observer continues. ``answer`` is its partner's continuation of ``query`` as it was sampled."""
    return OBSERVER.format(reference=query + answer, query=query)


class Continuation:
    """Problems are the first few tokens of texts; a turn earns the score of the query and its own continuation.

    texts: split -> id -> text. tokenizer: whose tokens are counted. query_tokens: fewest and most
    tokens of a query, both included; its length is drawn once per problem (by ``seed``), and a shorter text is taken
    whole. A query is the text itself up to the border of a token: the tokenizer of a policy encodes it again. score:
    texts -> numbers.

    ValueError: query_tokens is not 1 <= low <= high; and, when the problems are first used, a tokenizer that does not
    say where its tokens end.
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
        """The query alone, or the observer's template around the last thing heard, exactly as it was said."""
        query: str = p.data["query"]
        if not heard:
            return query
        last = heard[-1]
        return observer_prompt(query, last if isinstance(last, str) else last.text)

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        """Each turn's score on query + its own text, never on the prompt that it was given. One number per turn."""
        texts = [case.problem.data["query"] + turn.text for case in cases for turn in case.turns]
        scores = self.score(texts)
        assert len(scores) == len(texts), f"the scorer returned {len(scores)} numbers for {len(texts)} texts"
        rest = iter(scores)
        return [[next(rest) for _ in case.turns] for case in cases]


def _problems(
    split: str, texts: Mapping[str, str], name: str, query_tokens: tuple[int, int], seed: int
) -> list[Problem]:
    from coevolve.models.load import load_tokenizer  # a recipe is checked without transformers

    tokenizer = load_tokenizer(name)
    if not tokenizer.is_fast:
        raise ValueError(f"task: tokenizer {name!r} cannot say where its tokens end; name one with a tokenizer.json")
    heads = [text[:_HEAD] for text in texts.values()]
    borders = tokenizer(heads, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    problems = []
    for id, head, spans in zip(texts, heads, borders, strict=True):
        length = noise.integer(*query_tokens, "query", seed, split, id)
        problems.append(Problem(id, {"query": head[: spans[:length][-1][1]]}))
    return problems
