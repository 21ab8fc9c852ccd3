"""Do two texts make a good pair? The gated reward of MAGRPO's writing tasks (arXiv 2508.04652, section "Writing").

Four levels, and the first one that fails ends the sum:

    1 structure    +0.5   the words of both texts are within bounds, else nothing at all
    2 ratio       <=+1.0  characters of the second / of the first: full inside its band, linear to 0 at the outer edges
    3 unique      <=+0.5  different words of the second / of the first, likewise
    4 style       <=+1.0  0.6 for shared content words (Jaccard, capped) and 0.4 for transition words

A level fails where its number is outside the outer edges. On an edge it earns exactly 0 and the sum goes on. The most
there is to earn is 2.98, because the transition words of all twelve categories are worth 0.95.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from math import inf
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter

from coevolve.recipe.inputs import validate
from coevolve.rewards.writing_words import OURS, Words

Ramp = tuple[float, float, float, float]
"""(zero_low, full_low, full_high, zero_high) of a ratio: 1 in the inner two, linear to 0 at the outer two, all
included. Two equal neighbours are a cliff; a last pair of infinities is no upper bound."""

LEVELS = 4

_PAYS = ("structure_pays", "ratio_pays", "unique_pays", "jaccard_pays", "transitions_pay")

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Bands:
    """Every threshold of the reward.

    words: fewest and most words (white space between them) of each text. ratio: of the characters, second text / first.
    unique: of the different words, second / first. jaccard: the similarity that earns all there is. transitions: worth
    of the first category found and of each further one. searched: whose text must have them, of the second or of
    both (joined without a space). Then what each part pays at most.
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
            if not 0 < edges[0] <= edges[1] <= edges[2] <= edges[3] or edges[0] == inf:  # NaN is in no order
                raise ValueError(f"{name} is {list(edges)}; want 0 < zero_low <= full_low <= full_high <= zero_high")
            if (edges[2] == inf) != (edges[3] == inf):
                raise ValueError(
                    f"{name} is {list(edges)}; a slope down to infinity has no middle, want both or neither"
                )
        if self.searched not in ("second", "both"):
            raise ValueError(f"searched is {self.searched!r}; want second or both")
        if not 0 < self.jaccard <= 1:  # a similarity is a share: nobody could reach more
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
        """The most of each part: structure, ratio, unique, jaccard, transitions."""
        return tuple(getattr(self, name) for name in _PAYS)

    def changed(self, changes: Mapping[str, Any]) -> Bands:
        """With what a recipe's ``task.bands`` says in place of some. ValueError: an unknown key, a wrong value."""
        return validate(TypeAdapter(Bands), {**asdict(self), **changes}, "task.bands")


TLDR = Bands(words=(8, 256), ratio=(1.1, 1.6, 3.2, 5.0), unique=(1.3, 2.0, inf, inf), jaccard=0.03, searched="second")
ARXIV = Bands(words=(128, 256), ratio=(0.8, 1.3, 1.6, 2.0), unique=(0.5, 0.7, 1.3, 1.7), jaccard=0.23, searched="both")


@dataclass(frozen=True)
class Pair:
    """What the reward looks at. A ratio to an empty text is 0, which is outside every band."""

    words: tuple[int, int]
    ratio: float
    unique: float
    jaccard: float
    found: tuple[str, ...]
    """The transition categories of the text or texts that are searched."""


def compare(first: str, second: str, bands: Bands, words: Words = OURS) -> Pair:
    """The statistics of two texts. Texts count as they are, white space at their ends included."""
    return Pair(
        words=(len(first.split()), len(second.split())),
        ratio=_ratio(len(second), len(first)),
        unique=_ratio(len(vocabulary(second)), len(vocabulary(first))),
        jaccard=jaccard(first, second, words),
        found=transitions(first + second if bands.searched == "both" else second, words),
    )


def vocabulary(text: str) -> set[str]:
    """Its different words in lower case, runs of letters and digits."""
    return set(_WORD.findall(text.lower()))


def jaccard(first: str, second: str, words: Words = OURS) -> float:
    """Shared content words / all content words of both, 0 to 1; 1 where neither text has one."""
    a, b = vocabulary(first) - words.stop, vocabulary(second) - words.stop
    return len(a & b) / len(a | b) if a | b else 1.0


def transitions(text: str, words: Words = OURS) -> tuple[str, ...]:
    """The categories of transition words in a text, found as substrings whatever their case."""
    lower = text.lower()
    found = (name for name, phrases in words.transitions.items() if any(phrase in lower for phrase in phrases))
    return tuple(found)


def ramp(x: float, edges: Ramp) -> float | None:
    """0 to 1 inside the outer edges, None outside."""
    zero_low, full_low, full_high, zero_high = edges
    if not zero_low <= x <= zero_high:
        return None
    if x < full_low:
        return (x - zero_low) / (full_low - zero_low)
    return 1.0 if x <= full_high else (zero_high - x) / (zero_high - full_high)


def shares(pair: Pair, bands: Bands) -> list[float | None]:
    """What each part earns of what it pays, 0 to 1, in the order of ``Bands.pays``; None where a level fails."""
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
    """The reward of a pair, 0 to 2.98 (with the weights as they are)."""
    return _paid(_gated(shares(pair, bands)), bands)


def components(pair: Pair, bands: Bands) -> dict[str, float]:
    """The columns of the paper's tables as fractions, and what they come from.

    structure: levels 1-3 / 2.0. consistency: the Jaccard part / 0.6. coherence: the transition part / 0.4. return: the
    sum / 3. All of them gated, and ``ungated_``: every level on its own, whether or not an earlier one failed. Then
    length_ratio (characters) and unique_ratio (different words), second / first; and levels_passed, 0 to 4: of 2 the
    third level has failed.
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
    """Zeros from the first level that fails."""
    kept = _passed(earned)
    return [share or 0.0 for share in earned[:kept]] + [0.0] * (len(earned) - kept)


def _passed(earned: list[float | None]) -> int:
    """How many parts come before the first level that fails. The two of the last level never do."""
    return len(list(takewhile(lambda share: share is not None, earned)))


def _paid(earned: list[float], bands: Bands) -> float:
    return sum(pay * share for pay, share in zip(bands.pays, earned, strict=False))


def _ratio(second: int, first: int) -> float:
    return second / first if first else 0.0
