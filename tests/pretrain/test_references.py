"""Reference-then-answer examples, and the packing of documents."""

import re
from random import Random
from statistics import correlation, mean

import numpy as np
import pytest

from coevolve.pretrain.causal import PackedBatches
from coevolve.pretrain.references import correction, opinion_references, sentence_references
from coevolve.rewards.sentiment import lexicon


def _parts(examples: list[str]) -> tuple[list[str], list[str]]:
    found = [re.fullmatch(r'I can make this sentence "(.*)" more positive: (.*)', text) for text in examples]
    return [match[1] for match in found if match], [match[2] for match in found if match]


def test_the_observer_template_to_the_letter() -> None:
    texts = [
        "The soup was there on my table.",
        "The soup was on my table and good.",
        "The soup was bad and awful here.",
    ]
    assert sorted(sentence_references(Random(0), texts, 5)) == [
        'I can make this sentence "The soup was bad and awful here." more positive: The soup was there on my table.',
        'I can make this sentence "The soup was there on my table." more positive: The soup was on my table and good.',
    ]


def test_answers_are_better_than_their_reference_and_follow_it() -> None:
    references, answers = _parts(opinion_references(Random(0), 1000, "pretrain"))
    assert len(answers) == 1000
    before, after = lexicon(references), lexicon(answers)
    assert mean(after) - mean(before) > 2
    assert correlation(before, after) > 0.6
    assert all(a.split()[:3] == r.split()[:3] for r, a in zip(references, answers, strict=True))


def test_a_correction_spoils_the_answer_alone() -> None:
    text = correction(Random(0), "How many?", "She has 2+12=14 and 1.14 left. The answer is 14.")
    found = re.fullmatch(
        r"Question: How many\? Reference: She has 2\+12=(\d+) and 1\.14 left\. The answer is (\d+)\."
        r" Answer: She has 2\+12=14 and 1\.14 left\. The answer is 14\.",
        text,
    )
    assert found is not None
    assert found[1] == found[2] != "14"
    with pytest.raises(ValueError, match="holds no number"):
        correction(Random(0), "How many?", "None.")
    spoiled = correction(Random(0), "How many?", "It is 14.5 hours and 14,000 of 14.").split(" Answer: ")[0]
    assert "It is 14.5 hours and 14,000 of " in spoiled and not spoiled.endswith(" 14.")


def test_packed_sequences_begin_with_a_document_and_lose_only_the_end_of_the_last() -> None:
    documents = [[i * 10 + 1, i * 10 + 2, 0] for i in range(1, 8)]
    batches = PackedBatches(documents, length=5, batch_size=1, seed=0)
    seen = [batches.at(step)[0].tolist() for step in range(3)]
    for row in seen:
        assert [row[0] % 10, row[1] % 10, row[2], row[3] % 10, row[4] % 10] == [1, 2, 0, 1, 2]
    assert len({row[0] for row in seen} | {row[3] for row in seen}) == 6  # each document once in the first epoch


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    documents = [[int(x) for x in np.arange(i, i + 7)] for i in range(50)]
    forward = PackedBatches(documents, length=16, batch_size=4, seed=3)
    there = [forward.at(step).tolist() for step in range(12)]
    assert forward.at(2).tolist() == there[2]  # backwards too
    assert PackedBatches(documents, length=16, batch_size=4, seed=3).at(9).tolist() == there[9]
    assert PackedBatches(documents, length=16, batch_size=4, seed=4).at(9).tolist() != there[9]
