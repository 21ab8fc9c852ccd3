"""The pair reward as literal numbers: every level, each edge of each band, the order of the gates."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from coevolve.rewards.writing import ARXIV, TLDR, Bands, Pair, compare, components, jaccard, total, transitions
from coevolve.rewards.writing_words import STOP_WORDS, TRANSITIONS

ALL = tuple(TRANSITIONS)

# All of TLDR's levels in full, with one category of transition words: 0.5 + 1 + 0.5 + 0.6 + 0.4 * 0.4 = 2.76.
GOOD = Pair(words=(10, 25), ratio=2.0, unique=2.0, jaccard=0.5, found=("cause",))
# The same for arXiv.
FINE = Pair(words=(150, 200), ratio=1.5, unique=1.0, jaccard=0.5, found=("cause",))


def _paid(pair: Pair, bands: Bands = TLDR, **changes: Any) -> float:
    return total(replace(pair, **changes), bands)


# --- statistics of texts ---------------------------------------------------------------------------------------------


def test_statistics_of_a_pair() -> None:
    first = "The cat sat, and the cat slept."  # 7 words, 31 characters, the|cat|sat|and|slept
    second = " A cat also sat on a mat"  # 7 words, 24 characters with the space it begins with, a|cat|also|sat|on|mat
    pair = compare(first, second, TLDR)
    assert pair.words == (7, 7)
    assert pair.ratio == 24 / 31
    assert pair.unique == 6 / 5
    # Content words: cat, sat, slept and cat, also, sat, mat. Two of five are shared.
    assert pair.jaccard == 2 / 5
    assert pair.found == ("addition", "cause")  # "also", and the "so" in it


def test_words_are_what_white_space_separates() -> None:
    assert compare("  one\ttwo -\n\nthree ", "", TLDR).words == (4, 0)


def test_different_words_ignore_case_and_punctuation_but_not_stop_words() -> None:
    # "the" counts once on both sides: 2 different words against 4 (don, t, the, end).
    assert compare("The, the: END!", "Don't end the end", TLDR).unique == 4 / 2


def test_characters_count_the_space_a_text_begins_with() -> None:
    assert compare("abcd", " abc", TLDR).ratio == 1.0


def test_empty_texts_are_outside_every_band() -> None:
    for first, second in (("", ""), ("", "a b"), ("!", "a b")):
        assert compare(first, second, TLDR).unique == 0.0
    assert compare("", "a b", TLDR).ratio == 0.0
    assert compare("", "", TLDR).ratio == 0.0
    assert compare("a b", "", TLDR).ratio == 0.0
    any_length = replace(TLDR, words=(0, 256))
    assert total(compare("", "a b c", any_length), any_length) == 0.5  # level 1 only


@pytest.mark.parametrize(
    ("first", "second", "similarity"),
    [
        ("red house", "red house", 1.0),
        ("red house", "blue garden", 0.0),
        ("red house", "the red garden", 1 / 3),
        ("red red house", "red", 1 / 2),
        ("", "", 1.0),
        ("the of it", "and we", 1.0),  # no content on either side
        ("the of it", "house", 0.0),
    ],
)
def test_jaccard_of_content_words(first: str, second: str, similarity: float) -> None:
    assert jaccard(first, second) == similarity


def test_stop_words_are_words() -> None:
    assert {"the", "and", "was", "i"} <= STOP_WORDS
    assert not STOP_WORDS & {"however", "good", "house"}
    assert all(word.isalpha() and word.islower() for word in STOP_WORDS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("A dog ran.", ()),
        ("HOWEVER it ran", ("contrast", "concession")),
        ("It went also", ("addition", "cause")),  # "so" in "also"
        ("It was", ("time",)),  # "as" in "was"
        ("gift", ("condition",)),  # "if"
        ("For example, in other words", ("examples", "explanation")),
        ("of course", ("emphasis",)),
        ("overall likewise", ("summary", "comparison")),
        ("second", ("order",)),
        ("in  addition", ()),  # two spaces: not the phrase
    ],
)
def test_transition_words_are_found_as_substrings(text: str, found: tuple[str, ...]) -> None:
    assert transitions(text) == found


def test_there_are_twelve_categories_and_each_can_be_found() -> None:
    assert len(TRANSITIONS) == 12
    assert all(phrase == phrase.lower() for phrases in TRANSITIONS.values() for phrase in phrases)
    assert transitions(" ".join(phrases[0] for phrases in TRANSITIONS.values())) == ALL


def test_whose_text_is_searched() -> None:
    assert compare("However", "a dog", TLDR).found == ()
    assert compare("However", "a dog", ARXIV).found == ("contrast", "concession")
    # Joined without a space: "al" + "so" is found, though neither text has it.
    assert compare("it is al", "so", ARXIV).found == ("addition", "cause")
    assert compare("it is a hal", "f so", ARXIV).found == ("cause",)


# --- levels ----------------------------------------------------------------------------------------------------------


def test_everything_in_full() -> None:
    assert _paid(GOOD) == pytest.approx(2.76)
    assert _paid(FINE, ARXIV) == pytest.approx(2.76)


@pytest.mark.parametrize("bands", [TLDR, ARXIV])
def test_all_categories_reach_the_maximum_and_no_more(bands: Bands) -> None:
    # 2 + 0.6 + 0.4 * (0.4 + 11 * 0.05) = 2.98, not the 3.0 that is stated.
    best = {TLDR: GOOD, ARXIV: FINE}[bands]
    assert _paid(best, bands, found=ALL, jaccard=1.0) == pytest.approx(2.98)


@pytest.mark.parametrize(
    ("found", "coherence"), [((), 0.0), (ALL[:1], 0.4), (ALL[:2], 0.45), (ALL[:7], 0.7), (ALL, 0.95)]
)
def test_worth_of_transition_categories(found: tuple[str, ...], coherence: float) -> None:
    assert _paid(GOOD, found=found) == pytest.approx(2.6 + 0.4 * coherence)
    assert components(replace(GOOD, found=found), TLDR)["coherence"] == pytest.approx(coherence)


@pytest.mark.parametrize(
    ("bands", "pair", "inside", "outside"),
    [
        (TLDR, GOOD, [(8, 8), (256, 256), (8, 256)], [(7, 8), (8, 7), (257, 100), (100, 257), (0, 0)]),
        (ARXIV, FINE, [(128, 128), (256, 256)], [(127, 128), (128, 127), (257, 256), (128, 257)]),
    ],
)
def test_level_1_wants_both_texts_within_bounds(
    bands: Bands, pair: Pair, inside: list[tuple[int, int]], outside: list[tuple[int, int]]
) -> None:
    assert [_paid(pair, bands, words=words) for words in inside] == [pytest.approx(2.76)] * len(inside)
    assert [_paid(pair, bands, words=words) for words in outside] == [0.0] * len(outside)


# Paid by level 2 at this ratio; None: it stops there, so 0.5 is all.
@pytest.mark.parametrize(
    ("bands", "pair", "ratio", "level"),
    [
        (TLDR, GOOD, 1.0999, None),
        (TLDR, GOOD, 1.1, 0.0),
        (TLDR, GOOD, 1.35, 0.5),
        (TLDR, GOOD, 1.6, 1.0),
        (TLDR, GOOD, 3.2, 1.0),
        (TLDR, GOOD, 4.1, 0.5),
        (TLDR, GOOD, 4.64, 0.2),
        (TLDR, GOOD, 5.0, 0.0),
        (TLDR, GOOD, 5.0001, None),
        (TLDR, GOOD, 0.0, None),
        (ARXIV, FINE, 0.7999, None),
        (ARXIV, FINE, 0.8, 0.0),
        (ARXIV, FINE, 0.9, 0.2),
        (ARXIV, FINE, 1.3, 1.0),
        (ARXIV, FINE, 1.6, 1.0),
        (ARXIV, FINE, 1.7, 0.75),
        (ARXIV, FINE, 2.0, 0.0),
        (ARXIV, FINE, 2.0001, None),
    ],
)
def test_level_2_pays_for_the_ratio_of_lengths(bands: Bands, pair: Pair, ratio: float, level: float | None) -> None:
    assert _paid(pair, bands, ratio=ratio) == pytest.approx(0.5 if level is None else 1.76 + level)


@pytest.mark.parametrize(
    ("bands", "pair", "unique", "level"),
    [
        (TLDR, GOOD, 1.2999, None),
        (TLDR, GOOD, 1.3, 0.0),
        (TLDR, GOOD, 1.65, 0.25),
        (TLDR, GOOD, 2.0, 0.5),
        (TLDR, GOOD, 1000.0, 0.5),  # no upper bound
        (ARXIV, FINE, 0.4999, None),
        (ARXIV, FINE, 0.5, 0.0),
        (ARXIV, FINE, 0.6, 0.25),
        (ARXIV, FINE, 0.7, 0.5),
        (ARXIV, FINE, 1.3, 0.5),
        (ARXIV, FINE, 1.4, 0.375),
        (ARXIV, FINE, 1.7, 0.0),
        (ARXIV, FINE, 1.7001, None),
    ],
)
def test_level_3_pays_for_different_words(bands: Bands, pair: Pair, unique: float, level: float | None) -> None:
    assert _paid(pair, bands, unique=unique) == pytest.approx(1.5 if level is None else 2.26 + level)


@pytest.mark.parametrize(
    ("bands", "pair", "similarity", "earned"),
    [
        (TLDR, GOOD, 0.0, 0.0),
        (TLDR, GOOD, 0.01, 0.2),
        (TLDR, GOOD, 0.03, 0.6),
        (TLDR, GOOD, 1.0, 0.6),
        (ARXIV, FINE, 0.0575, 0.15),
        (ARXIV, FINE, 0.23, 0.6),
        (ARXIV, FINE, 0.24, 0.6),
    ],
)
def test_level_4_pays_for_shared_content_words(bands: Bands, pair: Pair, similarity: float, earned: float) -> None:
    assert _paid(pair, bands, jaccard=similarity) == pytest.approx(2.16 + earned)


def test_a_level_that_passes_with_exactly_nothing_does_not_stop() -> None:
    assert _paid(GOOD, ratio=1.1, unique=1.3, jaccard=0.0, found=()) == 0.5
    assert _paid(GOOD, ratio=1.1, unique=1.3) == pytest.approx(0.5 + 0.6 + 0.16)
    assert _paid(FINE, ARXIV, ratio=2.0, unique=1.7) == pytest.approx(0.5 + 0.6 + 0.16)


def test_gates_close_in_order() -> None:
    short, far, poor = {"words": (7, 25)}, {"ratio": 6.0}, {"unique": 1.0}
    assert _paid(GOOD, **short) == 0.0  # though every other level is full
    assert _paid(GOOD, **far) == 0.5
    assert _paid(GOOD, **poor) == 1.5
    assert _paid(GOOD, **far, **poor) == 0.5
    assert _paid(GOOD, **short, **far, **poor) == 0.0


# --- components ------------------------------------------------------------------------------------------------------


def test_components_as_in_the_papers_tables() -> None:
    # Levels 0.5, (1.35 - 1.1) / 0.5 = 0.5, 0.5; Jaccard 0.01 / 0.03; three categories 0.4 + 2 * 0.05.
    pair = Pair(words=(10, 25), ratio=1.35, unique=2.0, jaccard=0.01, found=ALL[:3])
    expected = {
        "structure": 0.75,  # 1.5 / 2
        "consistency": 1 / 3,
        "coherence": 0.5,
        "return": (1.5 + 0.2 + 0.2) / 3,
    }
    ungated = {f"ungated_{key}": value for key, value in expected.items()}  # no level failed
    ratios = {"length_ratio": 1.35, "unique_ratio": 2.0}
    assert components(pair, TLDR) == pytest.approx(expected | ungated | ratios | {"levels_passed": 4.0})


@pytest.mark.parametrize(
    ("changes", "gated", "ungated"),
    [
        # structure, consistency, coherence, return
        ({"words": (7, 25)}, (0, 0, 0, 0), (1.5 / 2, 1, 0.4, 2.26 / 3)),
        ({"ratio": 6.0}, (0.5 / 2, 0, 0, 0.5 / 3), (1.0 / 2, 1, 0.4, 1.76 / 3)),
        ({"unique": 1.0}, (1.5 / 2, 0, 0, 1.5 / 3), (1.5 / 2, 1, 0.4, 2.26 / 3)),
        ({"words": (0, 0), "ratio": 0.0, "unique": 0.0}, (0, 0, 0, 0), (0, 1, 0.4, 0.76 / 3)),
    ],
)
def test_gated_and_ungated(changes: dict[str, Any], gated: tuple[float, ...], ungated: tuple[float, ...]) -> None:
    found = components(replace(GOOD, **changes), TLDR)
    names = ("structure", "consistency", "coherence", "return")
    assert tuple(found[name] for name in names) == pytest.approx(gated)
    assert tuple(found[f"ungated_{name}"] for name in names) == pytest.approx(ungated)


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, 4),
        ({"words": (7, 25)}, 0),
        ({"ratio": 6.0}, 1),
        ({"ratio": 5.0}, 4),  # on the edge it earns nothing and does not stop
        ({"unique": 1.0}, 2),
        ({"ratio": 6.0, "unique": 1.0}, 1),
        ({"jaccard": 0.0, "found": ()}, 4),  # the last level earns nothing, and is not failed
    ],
)
def test_the_level_that_stopped_is_a_component(changes: dict[str, Any], passed: int) -> None:
    assert components(replace(GOOD, **changes), TLDR)["levels_passed"] == passed


def test_two_texts_from_beginning_to_end() -> None:
    first = "A red dog ran over my old fence"  # 8 words, 31 characters, 8 different
    second = "However, that big red dog also ran across a muddy garden and it barked"  # 14 words, 70 characters
    pair = compare(first, second, TLDR)
    assert (pair.words, pair.ratio, pair.unique) == ((8, 14), 70 / 31, 14 / 8)
    # Content: red dog ran old fence | however big red dog also ran across muddy garden barked: 3 shared of 12.
    assert pair.jaccard == 3 / 12
    # "however" is contrast and concession, "also" addition and, with its "so", cause.
    assert set(pair.found) == {"contrast", "concession", "addition", "cause"}
    # 0.5 + 1 + 0.5 * (1.75 - 1.3) / 0.7 + 0.6 + 0.4 * (0.4 + 3 * 0.05)
    assert total(pair, TLDR) == pytest.approx(0.5 + 1 + 0.225 / 0.7 + 0.6 + 0.22)


# --- thresholds ------------------------------------------------------------------------------------------------------


def test_thresholds_as_in_the_reward_code() -> None:
    assert Bands((8, 256), (1.1, 1.6, 3.2, 5.0), (1.3, 2.0, inf, inf), 0.03, "second") == TLDR
    assert Bands((128, 256), (0.8, 1.3, 1.6, 2.0), (0.5, 0.7, 1.3, 1.7), 0.23, "both") == ARXIV
    assert TLDR.pays == (0.5, 1.0, 0.5, 0.6, 0.4)
    assert TLDR.transitions == (0.4, 0.05)


def test_a_slope_has_two_ends() -> None:
    with pytest.raises(ValueError, match="a slope down to infinity has no middle"):
        Bands((8, 256), (1.1, 1.6, 3.2, inf), (1.3, 2.0, inf, inf), 0.03, "second")


def test_a_recipe_changes_some_thresholds() -> None:
    changed = TLDR.changed({"words": [3, 40], "searched": "both"})
    assert changed == replace(TLDR, words=(3, 40), searched="both")
    assert TLDR.changed({}) == TLDR


def test_changed_weights_change_what_is_paid_and_its_maximum() -> None:
    only_lengths = TLDR.changed({"ratio_pays": 2.0, "jaccard_pays": 0.0, "transitions_pay": 0.0})
    assert _paid(GOOD, only_lengths, ratio=1.35) == pytest.approx(0.5 + 1.0 + 0.5)
    assert components(GOOD, only_lengths)["return"] == 1.0
    assert components(replace(GOOD, ratio=1.35), only_lengths)["structure"] == pytest.approx(2 / 3)


def test_a_cliff_has_no_slope() -> None:
    cliff = TLDR.changed({"ratio": [1.5, 1.5, 2.0, 2.0]})
    assert [_paid(GOOD, cliff, ratio=r) for r in (1.49, 1.5, 2.0, 2.01)] == pytest.approx([0.5, 2.76, 2.76, 0.5])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wrods": [3, 40]}, r"task.bands: unknown key wrods; did you mean 'words'\?; known: jaccard, jaccard_pays"),
        ({"words": [3]}, r"task.bands: words"),
        ({"words": [40, 3]}, r"task.bands: words are \[40, 3\]; want 0 <= fewest <= most"),
        ({"ratio": [1.6, 1.1, 3.2, 5.0]}, r"task.bands: ratio is \[1.6, 1.1, 3.2, 5.0\]; want 0 < zero_low"),
        ({"unique": [0.0, 1.0, 2.0, 3.0]}, r"task.bands: unique is .*; want 0 < zero_low"),
        ({"jaccard": 0.0}, r"task.bands: jaccard is 0.0; want 0 < jaccard <= 1"),
        ({"jaccard": 1.01}, r"task.bands: jaccard is 1.01; want 0 < jaccard <= 1"),
        ({"jaccard": inf}, r"task.bands: jaccard is inf; want 0 < jaccard <= 1"),
        ({"jaccard": nan}, r"task.bands: jaccard is nan; want 0 < jaccard <= 1"),
        ({"transitions": [0.4, nan]}, r"task.bands: transitions are \[0.4, nan\]; want finite numbers of 0 or more"),
        ({"transitions": [nan, 0.05]}, r"task.bands: transitions are \[nan, 0.05\]"),
        ({"transitions": [inf, 0.05]}, r"task.bands: transitions are \[inf, 0.05\]"),
        ({"jaccard_pays": -0.1}, r"task.bands: jaccard_pays is -0.1; want a finite number of 0 or more"),
        ({"structure_pays": inf}, r"task.bands: structure_pays is inf; want a finite"),
        ({"ratio_pays": nan}, r"task.bands: ratio_pays is nan; want a finite"),
        ({"unique_pays": inf}, r"task.bands: unique_pays is inf; want a finite"),
        ({"transitions_pay": nan}, r"task.bands: transitions_pay is nan; want a finite"),
        ({"structure_pays": 0, "ratio_pays": 0, "unique_pays": 0}, r"task.bands: .* are 0; want one of them above"),
        ({"searched": "first"}, r"task.bands: searched"),
    ],
)
def test_wrong_thresholds(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TLDR.changed(changes)


def test_wrong_thresholds_from_python() -> None:
    with pytest.raises(ValueError, match="searched is 'first'; want second or both"):
        replace(TLDR, searched="first")
