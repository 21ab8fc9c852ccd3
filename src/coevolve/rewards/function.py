"""The user's own reward: a plain function that is called with the values its parameters name.

def reward(short, detailed, *, post, **columns):      # one case at a time: texts of roles, columns of the problem
    return 1.0 if len(detailed) > 2 * len(short) else 0.0

@batched
def reward(short, detailed, post):                    # all cases at once: every argument is a list
    return [1.0 if len(d) > 2 * len(s) else 0.0 for s, d in zip(short, detailed)]

def reward(completions, prompts=None, **columns):     # one agent, as for TRL's GRPOTrainer
    return [float(len(text)) for text in completions]

async def reward(completion, answer):                 # one agent, one case at a time, as in a Rubric of verifiers
    return float(answer in completion[-1]["content"])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from coevolve.files import shown
from coevolve.pay import LARGEST, is_payable
from coevolve.play import Feedback
from coevolve.rewards.calling import BATCHED, Log, UserFunction, by_turn, plain, read
from coevolve.rewards.waiting import Paid, Started, each
from coevolve.types import Case, Problem, Role, Turn

Marked = TypeVar("Marked", bound=Callable[..., Any])


def batched(function: Marked) -> Marked:
    """Mark a reward to be called once for all cases: every argument is a list with one entry per case."""
    setattr(function, BATCHED, True)
    return function


@dataclass(frozen=True)
class UserReward:
    """The user's function as a task's ``reward``: cases -> one number per turn.

    A parameter named like a role receives the last text of that role in the case, ``texts`` all of them as a dict of
    role -> text, any other parameter the problem's column of that name, and ``**rest`` the columns that no parameter
    names. A parameter with a default may have no column. A ``batched`` function receives lists; where some problems
    lack a column that others have, the lists of ``**rest`` and of parameters with a default hold None for them.

    A function with a parameter ``completions`` or ``completion_ids`` is called as TRL calls it, for cases of one turn:
    with these two, ``prompts`` (the column ``prompt``, if there is one), and the columns, all as lists; ``log_metric``
    and ``log_extra`` if it names them. Where the prompt is a list of messages, so is a completion. TRL's
    ``trainer_state`` is never passed: give it a default. A function with a parameter ``completion``, which is neither
    a role nor a column, is called as verifiers calls it, one case at a time (``rewards.calling``).

    The function returns, per case, a number for the team (every turn is paid it), a dict of role -> number with exactly
    the roles of the case, or a list of numbers, one per turn; None if it does not apply, where it is one of several
    rewards. Arrays and tensors count as the values they hold. An async function is awaited for all cases concurrently.

    Raises ValueError, in one line that names the function and the problem, for a parameter without a value, another
    kind or number of results, a number that is not finite, and whatever the function raises.
    """

    function: UserFunction

    @property
    def name(self) -> str:
        return self.function.short

    @property
    def tells(self) -> bool:
        return self.function.logs

    def start(self, cases: Sequence[Case]) -> Started:
        """Call the function and return one ``Paid`` per case; for an async function, return what will await it."""
        log = Log()
        calls = self.function.calls(cases, log)
        if not self.function.waits:
            return self._settled(cases, [self.function.now(*call) for call in calls], log)

        async def waited() -> list[Paid]:
            return self._settled(cases, await each(partial(self.function.waited, *call) for call in calls), log)

        return waited

    def _settled(self, cases: Sequence[Case], results: Sequence[Any], log: Log) -> list[Paid]:
        return [
            Paid(_paid(self.function.name, case, result), log.of(place))
            for place, (case, result) in enumerate(zip(cases, self.function.by_case(cases, results), strict=True))
        ]

    def check(self, p: Problem, roles: Sequence[Role]) -> None:
        """Raise ValueError if the function could not be called on one turn of each role; does not call it."""
        self.function.arguments(silent(p, roles))


def user_feedback(spec: str | Callable[..., Any], roles: Iterable[Role]) -> tuple[Feedback, tuple[str, ...]]:
    """Turn a function, or ``file.py:name``, into a task's ``feedback``, (problem, turns) -> one text per turn; also
    return the columns that it requires in a task with these roles.

    Its parameters are named as those of a reward for one case at a time, for example ``(texts, **columns)``. It returns
    one text for all roles, or a dict of role -> text with exactly the roles that spoke; anything else is a ValueError.
    """
    function = read(spec, "feedback")
    if function.waits:
        raise ValueError(f"{function.name} is async; want a plain def, which may wait for what it calls")

    def feedback(p: Problem, turns: Sequence[Turn]) -> list[str]:
        case = Case(p, tuple(turns))
        told = function.on(case)
        notes = by_turn(case, told) if isinstance(told, Mapping) else [told] * len(turns)
        if notes is None or not all(isinstance(note, str) for note in notes):
            raise ValueError(
                f"{function.name} on problem {p.id!r} returned {told!r}; want a text for all, or a dict of texts with "
                f"exactly the roles {', '.join(case.said())}"
            )
        return notes

    return feedback, function.columns(roles)


def silent(p: Problem, roles: Sequence[Role]) -> Case:
    """Return a case with one turn of each role, all of them empty texts."""
    return Case(p, tuple(Turn(role, "", p, 0, 0, (), (), (), "", True) for role in roles))


def _paid(name: str, case: Case, result: Any) -> list[float] | None:
    """Return one number per turn from the function's result on one case; None for None."""
    value, turns = plain(result), len(case.turns)
    if value is None:
        return None
    if isinstance(value, Mapping):
        paid = by_turn(case, value)
    else:
        paid = list(value) if isinstance(value, list | tuple) else [value] * turns
    numbers = [plain(number) for number in paid or ()]
    if len(numbers) != turns or not all(map(is_payable, numbers)):
        raise ValueError(
            f"{name} on problem {case.problem.id!r} returned {shown(value)}; want a finite number for the team, at "
            f"most {LARGEST:g} in size, a dict of them with exactly the roles {', '.join(case.said())}, or a list of "
            f"{turns}, one per turn"
        )
    return [float(number) for number in numbers]
