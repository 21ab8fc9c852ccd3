"""Examples of a reference and a better answer, from which a model trained from scratch learns to be an observer.

An observer is shown its partner's answer and continues the same opening more positively. Each example shows this: a
first answer of any grade, in the observer's template, and a second answer on the same subject that is one or two
grades better than the visible part of the first.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from random import Random
from re import escape, search, split, sub

from coevolve.rewards.sentiment import lexicon
from coevolve.tasks.continuation import OBSERVER, observer_prompt
from coevolve.tasks.worlds.opinions import Opinion, openings, opinion, random_grade
from coevolve.tasks.worlds.split import Split

_POINTS_A_GRADE = 2.2  # VADER points that one grade moves an average opinion


def opinion_references(rng: Random, count: int, split_name: Split) -> list[str]:
    """Return `count` examples on generated openings; half of the references are cut off, as by a length limit."""
    subjects = openings(split_name)
    return [_opinion_pair(rng, rng.choice(subjects)) for _ in range(count)]


def sentence_references(rng: Random, texts: Iterable[str], count: int) -> list[str]:
    """Return at most `count` examples from real texts: two sentences that share their first two words, the second one
    more positive."""
    groups: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for sentence in sorted(set(_sentences(texts))):
        groups[" ".join(sentence.split()[:2])].append((_score(sentence), sentence))
    firsts = [(score, text, group) for group in groups.values() if len(group) > 1 for score, text in group]
    rng.shuffle(firsts)
    examples = []
    for score, text, group in firsts:
        better = [other for other_score, other in group if 0.8 <= other_score - score <= 4.5]
        if better:
            examples.append(observer_prompt("", text) + rng.choice(better))
        if len(examples) == count:
            break
    return examples


def correction(rng: Random, question: str, answer: str) -> str:
    """Return an example whose reference is the worked answer with its last number changed, followed by the right
    answer. Raises ValueError for an answer without a number."""
    found = search(r"(-?[\d,]*\d(?:\.\d+)?)\D*$", answer)
    if found is None:
        raise ValueError(f"correction: the answer holds no number to spoil: {answer!r}")
    right = found.group(1)
    wrong = str(int(float(right.replace(",", ""))) + rng.choice((-10, -3, -2, -1, 1, 2, 3, 10)))
    alone = rf"(?<![\d.,]){escape(right)}(?![.,]?\d)"
    spoiled = sub(alone, wrong, answer)  # also where the number occurs in the working
    return f"Question: {question} Reference: {spoiled} Answer: {answer}"


def _score(text: str) -> float:
    return lexicon([text])[0]


def _opinion_pair(rng: Random, opening: str) -> str:
    first = opinion(rng, opening, random_grade(rng))
    seen = first.text if rng.random() < 0.5 else _cut(rng, first.text)
    level = max(-3, min(3, round(_score(seen) / _POINTS_A_GRADE)))
    second = opinion(rng, opening, min(3, level + rng.choice((1, 2))), keep=_kept(rng, first, seen))
    return OBSERVER.format(reference=seen, query=second.text)


def _kept(rng: Random, first: Opinion, seen: str) -> tuple[str, ...]:
    """Draw the slots of the first answer that the better one repeats: visible positive ones, each with probability
    one half."""
    return tuple(slot for slot in first.slots if slot in seen and _score(slot) > 1.5 and rng.random() < 0.5)


def _cut(rng: Random, text: str) -> str:
    """Return the beginning of a sentence that a query of 2-8 and a response of 4-16 tokens would hold, a word as one
    token."""
    return " ".join(text.split(" ")[: rng.randint(2, 8) + rng.randint(4, 16)])


def _sentences(texts: Iterable[str]) -> Iterable[str]:
    """Yield the sentences of 5 to 24 words without quotation marks, which the template itself uses."""
    for text in texts:
        for sentence in split(r"(?<=[.!?])\s+", text):
            words: Sequence[str] = sentence.split()
            if 5 <= len(words) <= 24 and '"' not in sentence and "\n" not in sentence:
                yield sentence
