"""The splits of generated problems stay: packaged models are pre-trained on one, and runs that are compared share
another."""

from __future__ import annotations

from random import Random

import pytest

from coevolve.tasks.worlds import checks, coop, opinions, sums
from coevolve.tasks.worlds.split import Split

FIRST = {
    "pretrain": (
        "At first Nils has 13 cups. Kim gives Nils 9 more. With how many cups does Nils end?",
        "Which x of 9, 37, 5 has x*x mod 41 = 16?",
        "negate|make at most 5",
        "The film at the old cinema was",
    ),
    "train": (
        "Ann fills 2 bags with 5 apples each. Ann finds 9 more. Ann loses 3 of them. How many apples does Ann have "
        "now?",
        "Which x of 2, 35, 1 has x*x mod 41 = 36?",
        "subtract 9|add 8",
        "The film my sister picked was",
    ),
    "test": (
        "Tom has 14 rings. Tom comes back with 2 times as many. With how many rings does Tom end?",
        "Which x of 2, 25, 28 has x*x mod 41 = 5?",
        "make at most 2|negate",
        "The film we saw last night was",
    ),
}


@pytest.mark.parametrize("split", ["pretrain", "train", "test"])
def test_the_first_problems_of_every_world_stay(split: Split) -> None:
    found = (
        sums.problems(split, 1, Random(1))[0].question,
        checks.puzzles(split, 1, Random(1))[0].question,
        "|".join(step.words for step in coop.wanted(split, "decomposable", 1, Random(1))[0].steps),
        opinions.openings(split)[0],
    )
    assert found == FIRST[split]
