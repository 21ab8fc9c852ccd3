"""Feedback between turns of the writing tasks: what the writers of neighbouring texts should change, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import inf

from coevolve.rewards.writing import Bands, Pair, Ramp, compare
from coevolve.rewards.writing_words import Words
from coevolve.types import Role

WORDS = "Your text has {n} words; it should have {low} to {high}."
RATIO = "The {second} text is {found:.2f} times as long as the {first} one, and should be {band} times: write {change}."
UNIQUE = (
    "The {second} text has {found:.2f} times as many different words as the {first} one, and should have {band} times: "
    "use {change} different words."
)
SHARED = "The {first} and {second} texts share {found:.1%} of their content words, and should share {wanted:.1%}."
LINKS = "There are transition words of {found} of {all} kinds; add others, such as {examples}."
FINE = "Nothing needs to change."

_EXAMPLES = 3


def advice(texts: Mapping[Role, str], bands: Bands, words: Words) -> dict[Role, str]:
    """Return role -> what keeps its text and its neighbours from the full reward, in the order of the levels.

    A note holds the role's own numbers and those of its pairs, and nothing that another role wrote. A role with too
    many or too few words is told nothing else about its length.
    """
    low, high = bands.words
    said: dict[Role, list[str]] = {}
    for role, text in texts.items():
        n = len(text.split())
        said[role] = [] if low <= n <= high else [WORDS.format(n=n, low=low, high=high)]
    right_length = {role for role, notes in said.items() if not notes}
    for first, second in pairwise(texts):
        pair = compare(texts[first], texts[second], bands, words)
        for role in (first, second):
            said[role] += _on_pair(pair, bands, words, first, second, role, role in right_length)
    return {role: " ".join(dict.fromkeys(notes)) or FINE for role, notes in said.items()}


def _on_pair(
    pair: Pair, bands: Bands, words: Words, first: Role, second: Role, me: Role, right_length: bool
) -> Iterator[str]:
    """Yield what ``me``, one of the two roles, should change about the pair."""
    names = {"first": first, "second": second}
    if right_length and not _within(pair.ratio, bands.ratio):
        change = "more" if _grow(pair.ratio, bands.ratio, me == second) else "less"
        yield RATIO.format(found=pair.ratio, band=_full(bands.ratio), change=change, **names)
    if not _within(pair.unique, bands.unique):
        change = "more" if _grow(pair.unique, bands.unique, me == second) else "fewer"
        yield UNIQUE.format(found=pair.unique, band=_full(bands.unique), change=change, **names)
    if pair.jaccard < bands.jaccard:
        yield SHARED.format(found=pair.jaccard, wanted=bands.jaccard, **names)
    missing = [phrases[0] for category, phrases in words.transitions.items() if category not in pair.found]
    if missing and (me == second or bands.searched == "both"):
        examples = ", ".join(missing[:_EXAMPLES])
        yield LINKS.format(found=len(pair.found), all=len(words.transitions), examples=examples)


def _within(found: float, edges: Ramp) -> bool:
    return edges[1] <= found <= edges[2]


def _grow(found: float, edges: Ramp, second: bool) -> bool:
    """Return whether this text should grow to bring the ratio second / first to its band, rather than shrink."""
    return (found < edges[1]) == second


def _full(edges: Ramp) -> str:
    return f"at least {edges[1]:g}" if edges[2] == inf else f"{edges[1]:g} to {edges[2]:g}"
