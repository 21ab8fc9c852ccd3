"""Task ``verifiers``: the tasks of a taskset of verifiers, answered in one turn and paid by their own rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from coevolve.faults import blame
from coevolve.recipe.components import from_file
from coevolve.rewards.several import Rewards
from coevolve.rewards.waiting import Paid, Started, each
from coevolve.settings import Fraction
from coevolve.tasks.data import Later, problems
from coevolve.tasks.held_out import split, warn_of_shared
from coevolve.types import Case, Instruction, Message, Problem, Prompt, Role, Turn


class Verifiers:
    """Tasks of the package verifiers (``verifiers.v1``): a role is told a task's prompt, and the task's own rewards pay
    its answer.

    taskset: a function that makes a ``Taskset``, or ``file.py:name``. test: the fraction to hold out, drawn by seed.
    All roles get the same prompt, and each turn is paid by itself: the task is scored on its prompt and this answer, as
    verifiers scores a recorded trace. So rewards that need a runtime, and tasks that need setup, tools or a harness,
    are not supported. The values of a task's rewards and metrics are logged.

    A problem of an exported team that names no ``system_prompt`` is told the one that all tasks share; where they have
    different ones, ``asks`` has that column too.

    Raises ValueError if the package is missing, for what is no taskset, a task without a prompt, and a reward that
    fails.
    """

    def __init__(self, *, taskset: str | Callable[[], Any], test: Fraction = 0.1, seed: int = 0) -> None:
        if isinstance(taskset, str):
            _check_package()  # before the file that imports it
        make = from_file(taskset, (), "task.taskset") if isinstance(taskset, str) else taskset
        tasks = Later(lambda: _tasks(make))
        every = Later(lambda: _problems(tasks))
        splits = Later(lambda: _splits(every, test, seed))
        self._systems = Later(lambda: list(dict.fromkeys(p.data.get("system_prompt") for p in every)))
        self.train: Sequence[Problem] = Later(lambda: splits[0])
        self.test: Sequence[Problem] = Later(lambda: splits[1])
        self.reward = Rewards([_Scores(tasks)], [1.0])
        self.parts = self.reward.parts()

    @property
    def asks(self) -> tuple[str, ...]:
        """The columns of a team's problem; to know them, the taskset is made."""
        return ("prompt",) if len(self._systems) < 2 else ("prompt", "system_prompt")

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt:
        """Return the task's prompt, behind its system prompt if it has one."""
        asked, system = p.data["prompt"], self._system(p)
        if isinstance(asked, str) and system is None:
            return Instruction(asked)
        talk: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        return [*talk, *([{"role": "user", "content": asked}] if isinstance(asked, str) else asked)]

    def _system(self, p: Problem) -> str | None:
        """Return the system prompt of a problem: its own, or, for a team's problem without one, that of all tasks."""
        if "place" in p.data or "system_prompt" in p.data:  # a place: it is of the taskset
            return p.data.get("system_prompt")
        return self._systems[0] if self._systems else None


def _splits(problems: Sequence[Problem], test: float, seed: int) -> tuple[list[Problem], list[Problem]]:
    train, held_out = split(problems, test, seed)
    warn_of_shared(train, held_out, lambda p: (p.data["prompt"], p.data.get("system_prompt")))
    return train, held_out


class _Scores:
    """The ``Scorer`` of this task: it pays what the rewards of verifiers' tasks give."""

    name = "task"
    tells = True

    def __init__(self, tasks: Sequence[Any]) -> None:
        self._tasks = tasks

    def check(self, p: Problem, roles: Sequence[Role]) -> None:
        """Do nothing: a task's rewards look at answers only, whatever the roles."""

    def start(self, cases: Sequence[Case]) -> Started:
        """Return the coroutine function that scores all cases concurrently."""
        return partial(each, [partial(self._of, case) for case in cases])

    async def _of(self, case: Case) -> Paid:
        with blame(f"the rewards of problem {case.problem.id!r}"):
            task = self._tasks[case.problem.data["place"]]
            traces = [await _scored(task, turn.text) for turn in case.turns]
            known = [_numbers(trace) for trace in traces]
            shared = set.intersection(*(set(one) for one in known))
            logged = {name: fmean(one[name] for one in known) for name in known[0] if name in shared}
            return Paid([float(trace.reward) for trace in traces], logged)


async def _scored(task: Any, text: str) -> Any:
    """Return a trace of this task's prompt and the answer, scored by the task."""
    import verifiers.v1 as vf
    from verifiers.v1.state import state_cls

    trace: Any = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        state=state_cls(type(task))(),
    )
    asked = task.data.prompt
    told = [vf.UserMessage(content=asked)] if isinstance(asked, str) else list(asked)
    for message in told:
        trace.nodes.append(vf.MessageNode(message=message, parent=len(trace.nodes) - 1 if trace.nodes else None))
    said = vf.AssistantMessage(content=text)
    trace.nodes.append(vf.MessageNode(message=said, parent=len(trace.nodes) - 1, sampled=True))
    await task.score(trace)
    return trace


def _numbers(trace: Any) -> dict[str, float]:
    """Return the values of the trace's rewards and metrics, by name."""
    rewards = {name: float(found.score) for name, found in trace.rewards.items() if found is not None}
    return rewards | {name: float(found) for name, found in trace.metrics.items() if found is not None}


def _check_package() -> None:
    try:
        import verifiers.v1  # noqa: F401  (an optional dependency)
    except ImportError as error:
        raise ValueError("task.taskset needs a package: pip install 'coevolve[verifiers]'") from error


def _tasks(make: Any) -> list[Any]:
    _check_package()
    with blame("task.taskset"):
        found = make()
        if not isinstance(found, Iterable) or isinstance(found, Mapping | str):
            raise ValueError(f"{found!r} is no taskset; want a function that makes one")
        return list(found)


def _problems(tasks: Sequence[Any]) -> list[Problem]:
    return problems([_columns(place, task) for place, task in enumerate(tasks)], "task.taskset", dict)


def _columns(place: int, task: Any) -> dict[str, Any]:
    """Return a task as the columns of a problem. place: its position among all tasks."""
    data: Any = getattr(task, "data", None)
    if getattr(data, "prompt", None) is None:
        raise ValueError(f"task.taskset, task {place + 1}: {type(task).__name__} has no prompt; want one to begin with")
    columns = data.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    asked = data.prompt if isinstance(data.prompt, str) else [_message(one) for one in data.prompt]
    return {**columns, "prompt": asked, "place": place}


def _message(said: Any) -> Message:
    from verifiers.v1.types import content_text

    return {"role": str(said.role), "content": content_text(said.content)}
