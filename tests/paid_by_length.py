"""Coding tasks that pay for long answers: on these, too, a model that cannot program has something to learn."""

from collections.abc import Sequence

from coevolve import tasks
from coevolve.tasks.coding import Coding
from coevolve.types import Case


class _PaidByLength(Coding):
    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        """As the task says, and the team's characters: nothing but the signal is replaced."""
        paid = super().reward(cases)
        characters = [sum(len(turn.text) for turn in case.turns) for case in cases]
        return [[reward + n for reward in rewards] for rewards, n in zip(paid, characters, strict=True)]


class HumanEval(_PaidByLength, tasks.HumanEval):
    pass


class CoopHumanEval(_PaidByLength, tasks.CoopHumanEval):
    pass


class Mbpp(_PaidByLength, tasks.Mbpp):
    pass
