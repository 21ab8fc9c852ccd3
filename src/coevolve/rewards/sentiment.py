"""Sentiment scores of texts, without a bound, as the raw logits of CORY's reward (arXiv 2410.06101, section 4).

A bounded score would hide reward hacking: with an unbounded sum, repeating "great" pays without end, and the collapse
shows in the metrics and can be held back by the KL penalty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

Score = Callable[[Sequence[str]], list[float]]
"""A function: texts -> one number each, higher for more positive."""

LEXICON = "lexicon"


def scorer(name: str) -> Score:
    """Return the scorer of this name: ``lexicon``, or a text-classification checkpoint."""
    if name == LEXICON:
        return lexicon
    from coevolve.rewards.classifier import Classifier  # here, because a recipe is checked without torch

    return Classifier(name)


class _RawVader(SentimentIntensityAnalyzer):  # type: ignore[misc]  # the library is untyped
    """VADER (Hutto and Gilbert 2014) without its last two steps, emphasis by punctuation and squashing to (-1, 1)."""

    def score_valence(self, sentiments: list[float], text: str) -> dict[str, float]:
        return {"sum": float(sum(sentiments))}


@cache
def _vader() -> _RawVader:
    return _RawVader()


def lexicon(texts: Sequence[str]) -> list[float]:
    """Return the sum of the valences (-4 to 4 each) of each text's words, after VADER's rules for negation, degree and
    "but".

    A text without a word of the lexicon scores 0.
    """
    return [float(_vader().polarity_scores(text)["sum"]) for text in texts]
