"""Task ``imdb``: continue the first words of a film review positively."""

from __future__ import annotations

import re
from functools import cache

from coevolve.rewards.sentiment import scorer
from coevolve.tasks import data
from coevolve.tasks.continuation import Continuation


class Imdb(Continuation):
    """CORY's IMDB review task (arXiv 2410.06101, section 4) on Maas et al. 2011.

    Reviews come from ``imdb_train`` and ``imdb_test`` of the folder that COEVOLVE_DATA names, else from the hub
    (stanfordnlp/imdb). tokenizer: the one that counts a query's tokens, usually the policies'. reward_model: "lexicon"
    or a text-classification checkpoint (hub name, folder, or pretrain recipe) whose positive logit is the reward; the
    paper's is lvwerra/distilbert-imdb. min_chars: only reviews longer than this. query_tokens: fewest and most tokens
    of a query, both included. seed: draws the length of each query.

    Deviations from the paper:
    1. Queries are 2-8 tokens as the paper says; its code draws 2-7.
    2. Reviews of more than 200 characters; the code wants 100 for CORY but 200 for PPO, the paper says nothing.
    3. Line breaks of the markup ("<br />") and runs of white space become one space; the code leaves them in.
    4. Continuations are scored and heard without special tokens; the code leaves a literal "<|endoftext|>" in them.

    Raises ValueError, when problems or scores are first used, for missing data or model, or no review long enough.
    """

    def __init__(
        self,
        *,
        tokenizer: str,
        reward_model: str,
        min_chars: int = 200,
        query_tokens: tuple[int, int] = (2, 8),
        seed: int = 0,
    ) -> None:
        judge = cache(lambda: scorer(reward_model))  # loads a model, which only scoring needs
        super().__init__(
            texts=lambda split: _reviews(split, min_chars),
            tokenizer=tokenizer,
            query_tokens=query_tokens,
            seed=seed,
            score=lambda texts: judge()(texts),
        )


def _reviews(split: str, min_chars: int) -> dict[str, str]:
    """Return id -> clean text of the reviews that are long enough. The hub's rows have no id: their position serves."""

    def read(row: data.Row) -> data.Row | None:
        said = row.get("text")
        text = clean(said if isinstance(said, str) else data.text(row, "text"))  # one of blanks is short, not wrong
        return {"text": text} if len(text) > min_chars else None

    rows = data.rows(f"imdb_{split}", dataset="stanfordnlp/imdb", split=split)
    found = {p.id: p.data["text"] for p in data.problems(rows, f"imdb, split {split!r}", read)}
    if not found:
        raise ValueError(f"imdb, split {split!r}: no review is longer than {min_chars} characters; lower min_chars")
    return found


def clean(text: str) -> str:
    """Return the text without line breaks of the markup, and with single spaces."""
    return re.sub(r"(?:<br\s*/?>|\s)+", " ", text).strip()
