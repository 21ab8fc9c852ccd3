"""Guesses, and answers of somebody who has checked a guess: what a start model for `checkable` learns to say.

An answer to a bare question is a guess. An answer to a reference says what one finds when one tries it, whether that is
right, and then the reference again if it is, else a fresh guess: an observer that keeps what is right and otherwise
tries afresh.
"""

from __future__ import annotations

from random import Random

from coevolve.tasks.numbers import ANSWER, QUESTION, REFERENCE
from coevolve.tasks.worlds.checks import Puzzle, puzzles
from coevolve.tasks.worlds.split import Split

EMPTY = 0.1  # of references have nothing in them, and are followed by a guess


def guesses(rng: Random, count: int, split: Split) -> list[str]:
    """``count`` questions of a split with a guess each."""
    return [prompt(puzzle) + f" {guess(rng, puzzle)}" for puzzle in puzzles(split, count, rng)]


def references(rng: Random, count: int, split: Split) -> list[str]:
    """``count`` questions of a split with a guess as reference and the answer of somebody who has checked it."""
    return [_heard(rng, puzzle) for puzzle in puzzles(split, count, rng)]


def prompt(puzzle: Puzzle, *heard: str) -> str:
    """What the task `checkable` shows: the question, and what was said to it before."""
    told = "".join(REFERENCE.format(text=text.strip()) for text in heard)
    return QUESTION.format(question=puzzle.question) + told + ANSWER


def guess(rng: Random, puzzle: Puzzle) -> str:
    """One of the possible answers, each as likely."""
    return rng.choice(list(puzzle.checks))


def checked(rng: Random, puzzle: Puzzle, reference: str) -> str:
    """What was found of a reference, a verdict of one word, and then the reference or a fresh guess.

    Without the word, and without the "yes" or "no" of each step, a model would have to compare whole numbers at one
    token, which small ones did not learn.
    """
    right = reference in puzzle.right
    kept = reference if right else guess(rng, puzzle)
    return f" {puzzle.checks[reference]} {'Right' if right else 'Wrong'}. {kept}"


def _heard(rng: Random, puzzle: Puzzle) -> str:
    if rng.random() < EMPTY:
        return prompt(puzzle, "") + f" {guess(rng, puzzle)}"
    reference = guess(rng, puzzle)
    return prompt(puzzle, reference) + checked(rng, puzzle, reference)
