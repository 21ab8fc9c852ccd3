"""Task ``sentiment``: continue the opening of a generated opinion positively. Everything it needs is in the package."""

from __future__ import annotations

from coevolve.rewards.sentiment import lexicon
from coevolve.tasks.continuation import Continuation
from coevolve.tasks.worlds.opinions import openings


class Sentiment(Continuation):
    """CORY's sentiment continuation (arXiv 2410.06101, section 4), small enough for a laptop.

    tokenizer: the one that counts the tokens of a query. query_tokens: fewest and most tokens of a query, both
    included. seed: draws the length of each query.

    Deviations from the paper:
    1. Queries begin generated opinions ("The soup at the harbour cafe was"), not film reviews. No opening of either
       split was in the pre-training text of ``coevolve-tiny``.
    2. The reward is the raw sum of VADER's valences, not the logit of a trained classifier.
    3. Queries are 2-8 tokens as the paper says; its code draws 2-7.
    4. Continuations are scored and heard without special tokens; the code leaves a literal "<|endoftext|>" in them.
    """

    def __init__(
        self, *, tokenizer: str = "coevolve-tiny", query_tokens: tuple[int, int] = (2, 8), seed: int = 0
    ) -> None:
        super().__init__(
            texts=lambda split: {opening: opening for opening in openings(split)},
            tokenizer=tokenizer,
            query_tokens=query_tokens,
            seed=seed,
            score=lexicon,
        )
