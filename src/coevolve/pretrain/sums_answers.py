"""Training texts of `coevolve-sums`: worked answers with known flaws, and answers to a reference.

An answer is its steps and then the result once more: " 7+5=12. 12*2=24. 24". Flaws are drawn independently at the rates
below, so that right answers are not too rare, and reinforcement learning has flaws to remove. The wrong operation
is the likelier one for "times" and "share": there even the single most likely answer is wrong.
"""

from __future__ import annotations

from random import Random

from coevolve.tasks.numbers import ANSWER, QUESTION, REFERENCE
from coevolve.tasks.worlds.split import Split
from coevolve.tasks.worlds.sums import LARGEST, Operation, WordProblem, apply, possible, problems

CONFUSED: dict[Operation, tuple[Operation, float]] = {
    "+": ("-", 0.15),
    "-": ("+", 0.15),
    "*": ("+", 0.65),
    "/": ("-", 0.65),
}
"""The right operation -> the one that is used instead, and its probability."""

SLIP = 0.18  # a result off by one, two or ten
STOP = 0.25  # after a step that is not the last
WRONG_LAST = 0.12  # the number at the end is another one of the working

COPY_RIGHT, COPY_WRONG = 0.7, 0.2  # share of answers that repeat a right, a wrong reference
CORRECT = 0.1  # share of answers to a wrong reference that are made without a flaw


def answers(rng: Random, count: int, split: Split) -> list[str]:
    """Return ``count`` questions of a split with a flawed answer each."""
    return [prompt(p) + flawed(rng, p) for p in problems(split, count, rng)]


def references(rng: Random, count: int, split: Split) -> list[str]:
    """Return ``count`` questions of a split, each with a flawed reference and an answer that may copy it."""
    return [_heard(rng, p) for p in problems(split, count, rng)]


def prompt(problem: WordProblem, *references: str) -> str:
    """Return the prompt of the task `arithmetic`: the question, and the earlier answers to it."""
    heard = "".join(REFERENCE.format(text=text.strip()) for text in references)
    return QUESTION.format(question=problem.question) + heard + ANSWER


def right(problem: WordProblem) -> str:
    """Return the answer without a flaw."""
    value, said = problem.start, ""
    for operation, number in problem.steps:
        result = apply(operation, value, number)
        said += f" {value}{operation}{number}={result}."
        value = result
    return f"{said} {value}"


def flawed(rng: Random, problem: WordProblem) -> str:
    """Draw an answer in which each flaw occurs at its rate."""
    value, said, numbers = problem.start, "", {problem.start}
    for operation, number in problem.steps:
        if said and rng.random() < STOP:
            break
        done = _misread(rng, operation, value, number)
        result = apply(done, value, number)
        if rng.random() < SLIP:
            result = rng.choice([result + d for d in (-10, -2, -1, 1, 2, 10) if 1 <= result + d <= LARGEST])
        said += f" {value}{done}{number}={result}."
        numbers |= {number, result}
        value = result
    others = sorted(numbers - {value})
    return f"{said} {rng.choice(others) if others and rng.random() < WRONG_LAST else value}"


def _misread(rng: Random, operation: Operation, value: int, number: int) -> Operation:
    """Draw the operation itself, or at its rate the one it is confused with; any possible one if the operation cannot
    be applied, as after an earlier flaw."""
    fit = possible(value, number, LARGEST)
    confused, rate = CONFUSED[operation]
    if rng.random() < rate and confused in fit:
        return confused
    return operation if operation in fit else rng.choice(fit)


def _heard(rng: Random, problem: WordProblem) -> str:
    reference = flawed(rng, problem)
    is_right = reference.split(" ")[-1] == str(problem.gold)
    luck = rng.random()
    if luck < (COPY_RIGHT if is_right else COPY_WRONG):
        answer = reference
    elif not is_right and luck < COPY_WRONG + CORRECT:
        answer = right(problem)
    else:
        answer = flawed(rng, problem)
    return prompt(problem, reference) + answer
