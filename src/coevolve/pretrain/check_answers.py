"""Training texts of a start model for `checkable`: guesses, and answers that check a guess.

An answer to a bare question is a guess. An answer to a reference writes the check of the reference, whether it is
right, and then the reference again if it is, else a new guess: an observer that keeps a right answer and otherwise
guesses anew.
"""

from __future__ import annotations

from random import Random

from coevolve.tasks.numbers import ANSWER, QUESTION, REFERENCE
from coevolve.tasks.worlds.checks import Puzzle, puzzles
from coevolve.tasks.worlds.split import Split

EMPTY = 0.1  # share of references that are empty, and are followed by a guess


def guesses(rng: Random, count: int, split: Split) -> list[str]:
    """Return ``count`` questions of a split with a guess each."""
    return [prompt(puzzle) + f" {guess(rng, puzzle)}" for puzzle in puzzles(split, count, rng)]


def references(rng: Random, count: int, split: Split) -> list[str]:
    """Return ``count`` questions of a split, each with a guess as reference and an answer that checks it."""
    return [_heard(rng, puzzle) for puzzle in puzzles(split, count, rng)]


def prompt(puzzle: Puzzle, *heard: str) -> str:
    """Return the prompt of the task `checkable`: the question, and the earlier answers to it."""
    told = "".join(REFERENCE.format(text=text.strip()) for text in heard)
    return QUESTION.format(question=puzzle.question) + told + ANSWER


def guess(rng: Random, puzzle: Puzzle) -> str:
    """Draw one of the possible answers, all equally likely."""
    return rng.choice(list(puzzle.checks))


def checked(rng: Random, puzzle: Puzzle, reference: str) -> str:
    """Return the check of a reference, a verdict of one word, and then the reference or a new guess.

    Without the verdict, and without the "yes" or "no" of each step, a model would have to compare whole numbers at one
    token, which small models did not learn.
    """
    right = reference in puzzle.right
    kept = reference if right else guess(rng, puzzle)
    return f" {puzzle.checks[reference]} {'Right' if right else 'Wrong'}. {kept}"


def _heard(rng: Random, puzzle: Puzzle) -> str:
    if rng.random() < EMPTY:
        return prompt(puzzle, "") + f" {guess(rng, puzzle)}"
    reference = guess(rng, puzzle)
    return prompt(puzzle, reference) + checked(rng, puzzle, reference)
