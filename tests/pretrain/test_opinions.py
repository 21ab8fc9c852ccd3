"""The generated opinions: their splits, and that their grades mean what they say."""

from random import Random
from statistics import mean

import pytest

from coevolve.rewards.sentiment import lexicon
from coevolve.tasks.worlds.opinion_words import ADJECTIVES, CLAUSES, TOPICS
from coevolve.tasks.worlds.opinions import GRADES, openings, opinion, plain_opinions


def test_the_splits_share_nothing_and_are_large_enough() -> None:
    splits = [openings(split) for split in ("pretrain", "train", "test")]
    assert len(set().union(*splits)) == sum(map(len, splits))
    assert len(splits[1]) >= 1000
    assert len(splits[2]) >= 200
    assert all(4 <= len(opening.split()) <= 11 for split in splits for opening in split)


def test_openings_do_not_depend_on_the_process() -> None:
    assert [openings(split)[0] for split in ("pretrain", "train", "test")] == [
        "The film at the old cinema was",
        "The film my sister picked was",
        "The film we saw last night was",
    ]


def test_an_unknown_split_is_an_error() -> None:
    with pytest.raises(ValueError, match="no split 'dev'"):
        openings("dev")  # type: ignore[arg-type]


@pytest.mark.parametrize("table", [ADJECTIVES, CLAUSES])
def test_every_word_and_clause_has_the_sign_of_its_grade(table: dict[int, tuple[str, ...]]) -> None:
    for grade, entries in table.items():
        for entry, score in zip(entries, lexicon(entries), strict=True):
            assert (score > 0) - (score < 0) == (grade > 0) - (grade < 0), entry


def test_what_is_judged_is_neutral() -> None:
    words = [word for topic in TOPICS for field in topic for word in field]
    assert [word for word, score in zip(words, lexicon(words), strict=True) if score] == []


def test_better_grades_score_higher_and_the_mean_is_near_neutral() -> None:
    rng = Random(0)
    found = openings("pretrain")
    means = [mean(lexicon([opinion(rng, rng.choice(found), grade).text for _ in range(100)])) for grade in GRADES]
    assert means == sorted(means)
    assert abs(mean(lexicon(plain_opinions(rng, 1000, "pretrain")))) < 0.5
