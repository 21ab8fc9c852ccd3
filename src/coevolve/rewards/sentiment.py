"""How positive is a text? Raw logits without a bound, as CORY's reward (arXiv 2410.06101, section 4) is one.

A bounded score would hide what reinforcement learning does to it: with a sum, repeating "great" pays without end, and
the collapse is there to be seen in the metrics and to be held back by the KL penalty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

Score = Callable[[Sequence[str]], list[float]]
"""Texts -> one number each, higher for more positive."""

LEXICON = "lexicon"


def scorer(name: str) -> Score:
    """``lexicon``, or the text-classification checkpoint of this name, as a function of texts."""
    if name == LEXICON:
        return lexicon
    from coevolve.rewards.classifier import Classifier  # a recipe is checked without torch

    return Classifier(name)


class _RawVader(SentimentIntensityAnalyzer):  # type: ignore[misc]  # the library is untyped
    """VADER (Hutto and Gilbert 2014) without its last two steps, emphasis by punctuation and squashing to (-1, 1)."""

    def score_valence(self, sentiments: list[float], text: str) -> dict[str, float]:
        return {"sum": float(sum(sentiments))}


@cache
def _vader() -> _RawVader:
    return _RawVader()


def lexicon(texts: Sequence[str]) -> list[float]:
    """The sum of the valences (-4 to 4 each) of a text's words, after VADER's rules for negation, degree and "but".

    Texts without a word of the lexicon score 0.
    """
    return [float(_vader().polarity_scores(text)["sum"]) for text in texts]
