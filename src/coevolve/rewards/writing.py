"""The gated reward of MAGRPO's writing tasks, for a pair of texts (arXiv 2508.04652, section "Writing").

The reward is a sum over four levels; the first level that fails ends the sum:

    1 structure    +0.5   the word counts of both texts are within bounds, else the reward is 0
    2 ratio       <=+1.0  characters of the second / of the first: full inside its band, linear to 0 at the outer edges
    3 unique      <=+0.5  distinct words of the second / of the first, with a band of the same form
    4 style       <=+1.0  0.6 for shared content words (Jaccard, capped) and 0.4 for transition words

A level fails if its number is outside the outer edges. On an edge it earns exactly 0 and the sum goes on. The maximum
is 2.98, because the transition words of all twelve categories are worth 0.95.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from math import inf
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter

from coevolve.recipe.validate import validate
from coevolve.rewards.writing_words import OURS, Words

Ramp = tuple[float, float, float, float]
"""(zero_low, full_low, full_high, zero_high) of a ratio: 1 between the inner two, linear to 0 at the outer two, edges
included. Two equal neighbours make a step; if the last two are infinite, there is no upper bound."""

LEVELS = 4

_PAYS = ("structure_pays", "ratio_pays", "unique_pays", "jaccard_pays", "transitions_pay")

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Bands:
    """Every threshold of the reward.

    words: fewest and most words (separated by white space) of each text. ratio: band for the characters, second text /
    first. unique: band for the distinct words, second / first. jaccard: the similarity that earns the full share.
    transitions: worth of the first category found and of each further one. searched: the text that is searched for
    them, "second" or "both" (joined without a space). The ``_pays`` fields: the most that each part pays.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    words: tuple[int, int]
    ratio: Ramp
    unique: Ramp
    jaccard: float
    searched: Literal["second", "both"]
    transitions: tuple[float, float] = (0.4, 0.05)
    structure_pays: float = 0.5
    ratio_pays: float = 1.0
    unique_pays: float = 0.5
    jaccard_pays: float = 0.6
    transitions_pay: float = 0.4

    def __post_init__(self) -> None:
        if not 0 <= self.words[0] <= self.words[1]:
            raise ValueError(f"words are {list(self.words)}; want 0 <= fewest <= most")
        for name in ("ratio", "unique"):
            edges = getattr(self, name)
            if not 0 < edges[0] <= edges[1] <= edges[2] <= edges[3] or edges[0] == inf:  # fails for NaN, too
                raise ValueError(f"{name} is {list(edges)}; want 0 < zero_low <= full_low <= full_high <= zero_high")
            if (edges[2] == inf) != (edges[3] == inf):
                raise ValueError(
                    f"{name} is {list(edges)}; a slope down to infinity has no middle, want both or neither"
                )
        if self.searched not in ("second", "both"):
            raise ValueError(f"searched is {self.searched!r}; want second or both")
        if not 0 < self.jaccard <= 1:  # a similarity is at most 1
            raise ValueError(f"jaccard is {self.jaccard}; want 0 < jaccard <= 1")
        if not all(0 <= worth < inf for worth in self.transitions):
            raise ValueError(f"transitions are {list(self.transitions)}; want finite numbers of 0 or more")
        for name, pay in zip(_PAYS, self.pays, strict=True):
            if not 0 <= pay < inf:
                raise ValueError(f"{name} is {pay}; want a finite number of 0 or more")
        if sum(self.pays[:3]) <= 0:
            raise ValueError("structure_pays, ratio_pays and unique_pays are 0; want one of them above")

    @property
    def pays(self) -> tuple[float, ...]:
        """The most that each part pays: structure, ratio, unique, jaccard, transitions."""
        return tuple(getattr(self, name) for name in _PAYS)

    def changed(self, changes: Mapping[str, Any]) -> Bands:
        """Return these bands with the changes of a recipe's ``task.bands``. Raises ValueError for an unknown key or a
        wrong value."""
        return validate(TypeAdapter(Bands), {**asdict(self), **changes}, "task.bands")


TLDR = Bands(words=(8, 256), ratio=(1.1, 1.6, 3.2, 5.0), unique=(1.3, 2.0, inf, inf), jaccard=0.03, searched="second")
ARXIV = Bands(words=(128, 256), ratio=(0.8, 1.3, 1.6, 2.0), unique=(0.5, 0.7, 1.3, 1.7), jaccard=0.23, searched="both")


@dataclass(frozen=True)
class Pair:
    """The statistics of two texts that the reward is computed from. A ratio to an empty text is 0, which is outside
    every band."""

    words: tuple[int, int]
    ratio: float
    unique: float
    jaccard: float
    found: tuple[str, ...]
    """The transition categories found in the searched text or texts."""


def compare(first: str, second: str, bands: Bands, words: Words = OURS) -> Pair:
    """Return the statistics of two texts, which count as they are, white space at their ends included."""
    return Pair(
        words=(len(first.split()), len(second.split())),
        ratio=_ratio(len(second), len(first)),
        unique=_ratio(len(vocabulary(second)), len(vocabulary(first))),
        jaccard=jaccard(first, second, words),
        found=transitions(first + second if bands.searched == "both" else second, words),
    )


def vocabulary(text: str) -> set[str]:
    """Return a text's distinct words in lower case: runs of letters, digits and underscores."""
    return set(_WORD.findall(text.lower()))


def jaccard(first: str, second: str, words: Words = OURS) -> float:
    """Return the shared content words / all content words of both texts, 0 to 1; 1 if neither text has one."""
    a, b = vocabulary(first) - words.stop, vocabulary(second) - words.stop
    return len(a & b) / len(a | b) if a | b else 1.0


def transitions(text: str, words: Words = OURS) -> tuple[str, ...]:
    """Return the categories of transition words in a text, found as substrings, ignoring case."""
    lower = text.lower()
    found = (name for name, phrases in words.transitions.items() if any(phrase in lower for phrase in phrases))
    return tuple(found)


def ramp(x: float, edges: Ramp) -> float | None:
    """Return a ratio's share of the pay, 0 to 1, inside the outer edges; None outside."""
    zero_low, full_low, full_high, zero_high = edges
    if not zero_low <= x <= zero_high:
        return None
    if x < full_low:
        return (x - zero_low) / (full_low - zero_low)
    return 1.0 if x <= full_high else (zero_high - x) / (zero_high - full_high)


def shares(pair: Pair, bands: Bands) -> list[float | None]:
    """Return the share that each part earns of its pay, 0 to 1, ordered as ``Bands.pays``; None if a level fails."""
    low, high = bands.words
    first, further = bands.transitions
    return [
        1.0 if all(low <= n <= high for n in pair.words) else None,
        ramp(pair.ratio, bands.ratio),
        ramp(pair.unique, bands.unique),
        min(pair.jaccard, bands.jaccard) / bands.jaccard,
        min(1.0, first + further * (len(pair.found) - 1)) if pair.found else 0.0,
    ]


def total(pair: Pair, bands: Bands) -> float:
    """Return the reward of a pair, 0 to 2.98 (with the default weights)."""
    return _paid(_gated(shares(pair, bands)), bands)


def components(pair: Pair, bands: Bands) -> dict[str, float]:
    """Return the columns of the paper's tables as fractions, and the numbers behind them.

    structure: levels 1-3 / 2.0. consistency: the Jaccard part / 0.6. coherence: the transition part / 0.4. return: the
    sum / 3. Each is gated; with the prefix ``ungated_``, every level counts whether or not an earlier one failed. Then
    length_ratio (characters) and unique_ratio (distinct words), second / first; and levels_passed, 0 to 4: 2 means that
    the third level failed.
    """
    earned = shares(pair, bands)
    return {
        **_columns(_gated(earned), bands, ""),
        **_columns([share or 0.0 for share in earned], bands, "ungated_"),
        "length_ratio": pair.ratio,
        "unique_ratio": pair.unique,
        "levels_passed": float(min(_passed(earned), LEVELS)),
    }


def _columns(earned: list[float], bands: Bands, prefix: str) -> dict[str, float]:
    return {
        f"{prefix}structure": _paid(earned[:3], bands) / sum(bands.pays[:3]),
        f"{prefix}consistency": earned[3],
        f"{prefix}coherence": earned[4],
        f"{prefix}return": _paid(earned, bands) / sum(bands.pays),
    }


def _gated(earned: list[float | None]) -> list[float]:
    """Return the shares with 0 from the first level that fails on."""
    kept = _passed(earned)
    return [share or 0.0 for share in earned[:kept]] + [0.0] * (len(earned) - kept)


def _passed(earned: list[float | None]) -> int:
    """Return the number of parts before the first level that fails. The two parts of the last level never fail."""
    return len(list(takewhile(lambda share: share is not None, earned)))


def _paid(earned: list[float], bands: Bands) -> float:
    return sum(pay * share for pay, share in zip(bands.pays, earned, strict=False))


def _ratio(second: int, first: int) -> float:
    return second / first if first else 0.0
