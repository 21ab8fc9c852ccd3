"""The user's own reward: a plain function that is handed what its parameters name.

def reward(short, detailed, *, post, **columns):      # one case at a time: what roles said, columns of the row
    return 1.0 if len(detailed) > 2 * len(short) else 0.0

@batched
def reward(short, detailed, post):                    # all cases at once: every argument is a list
    return [1.0 if len(d) > 2 * len(s) else 0.0 for s, d in zip(short, detailed)]

def reward(completions, prompts=None, **columns):     # one agent, as for TRL's GRPOTrainer
    return [float(len(text)) for text in completions]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

from coevolve.play import Feedback
from coevolve.rewards.calling import BATCHED, UserFunction, by_turn, last_texts, plain, read
from coevolve.types import Case, Problem, Role, Turn

Marked = TypeVar("Marked", bound=Callable[..., Any])


def batched(function: Marked) -> Marked:
    """Marks a reward that is called once for all cases: every argument is a list with one entry per case."""
    setattr(function, BATCHED, True)
    return function


@dataclass(frozen=True)
class UserReward:
    """The user's function as a task's ``reward``: cases -> one number per turn.

    A parameter named like a role receives what that role said last in the case, ``texts`` all of it as a dict of role
    -> text, any other the problem's column of that name, and ``**rest`` the columns that no parameter names. A
    parameter with a default may have no column. A ``batched`` function receives lists; where some problems lack a
    column that others have, they have None in the lists of ``**rest`` and of parameters with a default.

    A function with a parameter ``completions`` is called as TRL calls it, for cases of one turn: ``completions`` and
    ``completion_ids``, ``prompts`` (the column ``prompt``, if there is one), and the columns, all as lists. Where the
    prompt is a list of messages, so is a completion. TRL's ``trainer_state``, ``log_extra`` and ``log_metric`` are
    never passed: give them a default.

    It returns, per case, a number for the team (every turn is paid it), a dict of role -> number with exactly the
    roles of the case, or a list of numbers, one per turn. Arrays and tensors count as what they hold.

    Raises ValueError, in one line that names the function and the problem, for a parameter without a value, another
    kind or number of results, a number that is not finite, and whatever the function raises.
    """

    function: UserFunction

    def __call__(self, cases: Sequence[Case]) -> list[list[float]]:
        results = self.function.on_all(cases) if self.function.batched else [self.function.on(case) for case in cases]
        return [_paid(self.function.name, case, result) for case, result in zip(cases, results, strict=True)]

    def check(self, p: Problem, roles: Sequence[Role]) -> None:
        """Raises ValueError if the function could not be called on one turn of each role; does not call it."""
        self.function.arguments(silent(p, roles))


def user_reward(spec: str | Callable[..., Any]) -> UserReward:
    """A function, or ``file.py:name``, as a task's ``reward``. Raises ValueError if it cannot be called by keyword."""
    return UserReward(read(spec, "reward"))


def user_feedback(spec: str | Callable[..., Any]) -> Feedback:
    """A function, or ``file.py:name``, as a task's ``feedback``: (problem, turns) -> one text per turn.

    Its parameters are named as those of a reward for one case at a time, ``(texts, **columns)`` say. It returns one
    text for all, or a dict of role -> text with exactly the roles that spoke; anything else is a ValueError.
    """
    function = read(spec, "feedback")

    def feedback(p: Problem, turns: Sequence[Turn]) -> list[str]:
        case = Case(p, tuple(turns))
        told = function.on(case)
        notes = by_turn(case, told) if isinstance(told, Mapping) else [told] * len(turns)
        if notes is None or not all(isinstance(note, str) for note in notes):
            raise ValueError(
                f"{function.name} on problem {p.id!r} returned {told!r}; want a text for all, or a dict of texts with "
                f"exactly the roles {', '.join(last_texts(case))}"
            )
        return notes

    return feedback


def silent(p: Problem, roles: Sequence[Role]) -> Case:
    """A case in which every role said nothing."""
    return Case(p, tuple(Turn(role, "", p, 0, 0, (), (), (), "", True) for role in roles))


def _paid(name: str, case: Case, result: Any) -> list[float]:
    """One number per turn, from what the function returned for one case."""
    value, turns = plain(result), len(case.turns)
    if isinstance(value, Mapping):
        paid = by_turn(case, value)
    else:
        paid = list(value) if isinstance(value, list | tuple) else [value] * turns
    numbers = [plain(number) for number in paid or ()]
    if len(numbers) != turns or not all(isinstance(n, Real) and math.isfinite(n) for n in numbers):
        raise ValueError(
            f"{name} on problem {case.problem.id!r} returned {value!r}; want a finite number for the team, a dict of "
            f"them with exactly the roles {', '.join(last_texts(case))}, or a list of {turns}, one per turn"
        )
    return [float(number) for number in numbers]
