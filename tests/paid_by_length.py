"""Tasks that pay for long answers too: a model that can neither program nor count has something to learn on them."""

from collections.abc import Sequence

from coevolve import tasks
from coevolve.types import Case


class _PaidByLength:
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


class Gsm8k(_PaidByLength, tasks.Gsm8k):
    pass
