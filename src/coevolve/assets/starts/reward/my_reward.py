"""A reward, and feedback between turns, for the rows of a file. Named in my_reward.yaml."""

from collections.abc import Mapping
from typing import Any


def reward(short: str, long: str, *, animal: str, **columns: Any) -> float:
    """Return the reward of one joint answer. Parameters: the text of each role by its name, in any order; columns of
    the row by name, and **columns for the rest.

    Return one number for all, or {"short": 0.5, "long": 1.0} to pay each role.
    """
    named = (animal in short) + (animal in long)  # one point for each text that names the animal
    words = len(short.split()), len(long.split())
    return named + min(1.0, words[1] / (2 * words[0] + 1))  # and one for a long text that is twice the short one


def feedback(texts: Mapping[str, str], *, animal: str, **columns: Any) -> dict[str, str]:
    """Return the note that each role hears on its last text, for plays of several turns. The recipe's play is then
    {name: rounds, n: 2, feedback: true}, and its task has feedback: my_reward.py:feedback."""
    return {role: "Good." if animal in text else f"Say {animal}." for role, text in texts.items()}
