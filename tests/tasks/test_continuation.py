"""What roles are told and what turns are worth, as literal strings and hand-made sums."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from coevolve.rewards.sentiment import lexicon
from coevolve.tasks.continuation import OBSERVER, Continuation, observer_prompt
from coevolve.types import Case, Problem, Turn

SOUP = "The soup at the cafe was"


def _task(tokenizer: str, low: int = 3, high: int = 3, seed: int = 0, **texts: str) -> Continuation:
    texts = texts or {"soup": SOUP}
    return Continuation(
        texts=lambda split: texts, tokenizer=tokenizer, query_tokens=(low, high), seed=seed, score=lexicon
    )


def test_the_template_is_the_papers() -> None:
    assert OBSERVER == 'I can make this sentence "{reference}" more positive: {query}'
    assert (
        observer_prompt("The film", " was bad") == 'I can make this sentence "The film was bad" more positive: The film'
    )


def test_braces_in_a_text_are_text() -> None:
    assert observer_prompt("{q}", "{a}") == 'I can make this sentence "{q}{a}" more positive: {q}'


def test_the_pioneer_gets_the_bare_query(words: str) -> None:
    task = _task(words)
    assert task.prompt(task.train[0], "pioneer", ()) == "The soup at"


def test_the_observer_gets_the_template(words: str, said: Callable[[Problem, str], Turn]) -> None:
    task = _task(words)
    heard = [said(task.train[0], " the bar was bad.")]
    assert task.prompt(task.train[0], "observer", heard) == (
        'I can make this sentence "The soup at the bar was bad." more positive: The soup at'
    )


def test_the_last_of_a_chain_hears_the_one_before(words: str, said: Callable[[Problem, str], Turn]) -> None:
    task = _task(words)
    heard = [said(task.train[0], " first"), said(task.train[0], " second")]
    assert 'sentence "The soup at second" more' in task.prompt(task.train[0], "closer", heard)


def test_a_role_that_has_spoken_hears_the_others_or_itself(words: str, said: Callable[[Problem, str], Turn]) -> None:
    """In a discussion whoever spoke last before it may be itself; in rounds an empty note follows its own turn."""
    task = _task(words)
    own, other = (
        dataclasses.replace(said(task.train[0], text), role=role) for text, role in ((" mine", "bob"), (" hers", "ann"))
    )
    carl = dataclasses.replace(other, role="carl", text=" his")
    for heard, shown in (
        ([other, own], "hers"),
        ([own, ""], "mine"),
        ([own], "mine"),
        ([dataclasses.replace(other, text=" old"), carl, own, other], "hers"),
    ):
        assert f'sentence "The soup at {shown}" more' in task.prompt(task.train[0], "bob", heard)
    with pytest.raises(ValueError, match=r"role 'bob', problem 'soup': .* no place for feedback, .* gives 'be better'"):
        task.prompt(task.train[0], "bob", [own, "be better"])


def test_what_was_heard_is_not_touched(words: str, said: Callable[[Problem, str], Turn]) -> None:
    """No strip, no space put between: a continuation brings its own, or none."""
    task = _task(words)
    assert 'sentence "The soup attic  \n" more' in task.prompt(
        task.train[0], "observer", [said(task.train[0], "tic  \n")]
    )


def test_a_turn_earns_the_score_of_query_and_own_text(words: str, case: Callable[..., Case]) -> None:
    task = _task(words, 2, 2, good="A good film that ends well", bad="A bad film that ends well")
    good, bad = task.train
    assert (good.data["query"], bad.data["query"]) == ("A good", "A bad")
    # Nobody is paid for what another one said, nor for "positive" (2.3) and the reference in the template.
    assert task.reward([case(good, " film", " and great film"), case(bad, " film")]) == [
        pytest.approx([1.9, 1.9 + 3.1]),
        pytest.approx([-2.5]),
    ]


def test_a_word_may_begin_in_the_query_and_end_in_the_text(letters: str, case: Callable[..., Case]) -> None:
    task = _task(letters, 2, 2, only="great")
    assert task.train[0].data["query"] == "gr"
    assert task.reward([case(task.train[0], "eat", " eat")]) == [pytest.approx([3.1, 0.0])]


def test_no_cases_no_rewards(words: str) -> None:
    assert _task(words).reward([]) == []


def test_query_lengths_cover_both_bounds(words: str) -> None:
    task = _task(words, 2, 5, **{f"p{i}": SOUP for i in range(200)})
    lengths = [len(p.data["query"].split()) for p in task.train]
    assert set(lengths) == {2, 3, 4, 5}
    assert all(30 <= lengths.count(k) <= 70 for k in (2, 3, 4, 5))  # 50 each if uniform


def test_query_lengths_belong_to_seed_split_and_problem(words: str) -> None:
    texts = {f"p{i}": SOUP for i in range(50)}
    first, again, other = (_task(words, 2, 5, seed, **texts) for seed in (0, 0, 1))
    assert [*first.train] == [*again.train]
    assert [*first.train] != [*other.train]
    assert [p.data["query"] for p in first.train] != [p.data["query"] for p in first.test]
    part = _task(words, 2, 5, 0, p7=SOUP)  # whatever else is in the set
    assert part.train[0] == first.train[7]


def test_a_text_shorter_than_its_query_is_taken_whole(words: str) -> None:
    assert _task(words, 8, 8).train[0].data["query"] == SOUP


def test_a_query_may_be_longer_than_what_is_looked_at_first(words: str) -> None:
    text = " ".join(f"w{i}" for i in range(500))  # 512 characters are some 110 words
    long, short = _task(words, 300, 300, only=text), _task(words, 5, 5, only=text)
    assert long.train[0].data["query"] == " ".join(text.split()[:300])
    assert short.train[0].data["query"] == "w0 w1 w2 w3 w4"


def test_queries_end_between_characters(letters: str) -> None:
    """Each byte of "é" is a token here, and half of it would be no text: the query ends after the letter."""
    assert _task(letters, 1, 1, only="éa").train[0].data["query"] == "é"


@pytest.mark.parametrize("bounds", [(0, 3), (4, 3)])
def test_impossible_lengths(words: str, bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="want 1 <= low <= high"):
        _task(words, *bounds)
