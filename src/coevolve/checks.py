"""Checks of what users pass to a trainer: its parts before anything is loaded, targets and states at every step."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from numbers import Real
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator

from coevolve.faults import blame
from coevolve.files import shown
from coevolve.interfaces import Engine, Learner
from coevolve.models.spec import PolicySpec
from coevolve.names import check_names
from coevolve.settings import Count, CountFromZero, checked_call
from coevolve.types import Algorithm, Batch, Cast, Lesson, Metrics, PolicyName, Problem, Role, Sampling, State, Targets

T = TypeVar("T")

MOST_STEPS = 100_000
"""Number of first steps whose casts are checked before training."""

_MOST_TURNS = 1 << 24

_PARTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "algorithm": (lambda given: isinstance(given, Algorithm), "an Algorithm, such as magrpo()"),
    "sampling": (lambda given: isinstance(given, Sampling), "a Sampling, such as Sampling(max_new_tokens=16)"),
    "play": (callable, "an async function of a problem and its team, such as rounds()"),
    "cast": (callable, "a function of the step, such as fixed(roles)"),
}
"""Argument of the trainer -> (its check, what it should be)."""

_LEARNER, _ENGINE = (
    [*kind.__annotations__, *(name for name, _ in inspect.getmembers(kind) if not name.startswith("_"))]
    for kind in (Learner, Engine)
)
"""The names of the attributes that a learner and an engine need."""


@checked_call("trainer")
def numbers(
    *, steps: Count, batch_size: Count, members: Count, seed: CountFromZero, reset_every: Count | None
) -> tuple[int, int, int, int, int | None]:
    """Return these settings of a training, checked by ``checked_call``."""
    return steps, batch_size, members, seed, reset_every


def _yes_or_no(value: Any) -> Any:
    if not isinstance(value, bool):  # the path of a checkpoint would count as true
        raise ValueError(f"want True or False (a run is resumed from its newest checkpoint), found {shown(value)}")
    return value


@checked_call("run")
def check_run(
    *, resume: Annotated[bool, BeforeValidator(_yes_or_no)], save_every: Count, keep_last: Count, samples: CountFromZero
) -> None:
    """Check the arguments of ``Trainer.run``; ``checked_call`` raises ValueError for a wrong one."""


def check_parts(engine: Any, **parts: Any) -> None:
    """Raise ValueError for an engine, algorithm, sampling, play or cast of a wrong type."""
    for label, part in parts.items():
        fits, want = _PARTS[label]
        if hasattr(part, "makes"):
            raise ValueError(f"trainer: {label} is the function {part.__name__}; call it: {part.__name__}(...)")
        if not fits(part):
            raise ValueError(f"trainer: {label} is {part!r}; want {want}")
    check_engine(engine)
    _check_credit(parts["algorithm"].credit)


def _check_credit(credit: Any) -> None:
    """Raise ValueError for a credit that cannot be called with a step's episodes and the reward."""
    name = getattr(credit, "__name__", type(credit).__name__)
    if hasattr(credit, "makes"):
        raise ValueError(f"algorithm.credit is the function {name}; call it: {name}(...)")
    try:
        inspect.signature(credit, follow_wrapped=False).bind((), None)
    except TypeError as error:  # not callable, or not with two arguments
        raise ValueError(
            f"algorithm.credit is {name}, which takes no (episodes, reward): {error}; if it makes a rule, call it: "
            f"{name}(...); if it is a rule for one episode, use by_episode({name})"
        ) from error
    except ValueError:
        pass  # a callable without a signature


def check_engine(engine: Any) -> None:
    """Raise ValueError for an object without the attributes of an engine."""
    if missing := [part for part in _ENGINE if not hasattr(engine, part)]:
        raise ValueError(f"trainer: engine is {engine!r}, which has no {missing[0]}; want an engine")


def check_cast(cast: Cast, policies: Mapping[PolicyName, Any], steps: int, episodes: int) -> list[PolicyName]:
    """Return the policies that play a role at some step, or all where there are too many steps to check.

    episodes: their number per step. Raises ValueError for a role without a known policy, and for more turns per step
    than any machine can handle.
    """
    if not isinstance(policies, Mapping):
        raise ValueError(f"trainer: policies is {shown(policies)}; want name -> model, PolicySpec or learner")
    check_names("policies", policies)
    if (turns := episodes * len(_cast_at(cast, 0))) > _MOST_TURNS:
        raise ValueError(
            f"a step would be of {turns:,} turns at least (batch_size x members x roles), too many for any machine; "
            f"want at most {_MOST_TURNS:,}"
        )
    seated = set[PolicyName]() if steps <= MOST_STEPS else set(policies)
    for step in range(min(steps, MOST_STEPS)):
        roles = _cast_at(cast, step)
        check_names("roles", roles)
        for role, name in roles.items():
            if name not in policies:
                known = ", ".join(policies)
                raise ValueError(f"role {role!r} is cast with policy {name!r} at step {step}; there are {known}")
            seated.add(name)
    return [name for name in policies if name in seated]


def seated_later(cast: Cast, first: int, last: int) -> set[PolicyName]:
    """Return the policies that play a role at steps from ``first`` to before ``last``, which only a longer run has, as
    far as the cast knows a role for them: it need not, so an error ends the look."""
    found = set[PolicyName]()
    with suppress(Exception):
        for step in range(first, last):
            found |= set(cast(step).values())
    return found


def check_idle(policies: Iterable[PolicyName], busy: Iterable[PolicyName], roles: str) -> None:
    """Raise ValueError for a policy not in ``busy`` (in no role, no critic or judge). roles: the key, for messages."""
    if idle := set(policies) - set(busy):
        raise ValueError(f"policies.{min(idle)} plays no role; name it in {roles} or remove it")


def _cast_at(cast: Cast, step: int) -> Mapping[Role, PolicyName]:
    with blame(f"the cast, step {step}"):
        found = cast(step)
        if not isinstance(found, Mapping):
            raise ValueError(f"it is {found!r}; want role -> policy")
    return found


def check_task(task: Any) -> None:
    """Raise ValueError for an object that is no task (a class is none), for problems of another type, for ids that are
    no text or occur twice, and for no training problems."""
    if inspect.isclass(task):
        raise ValueError(f"the task is the class {task.__name__}; call it: {task.__name__}(...)")
    for part in ("train", "test", "prompt", "reward"):
        if not hasattr(task, part):
            raise ValueError(f"the task {type(task).__name__} has no {part}; a task has train, test, prompt and reward")
    with blame("task"):  # a task may read its data lazily, here
        len(task.train), len(task.test)
    for split in (task.train, task.test):
        if foreign := [problem for problem in split if not isinstance(problem, Problem)]:
            raise ValueError(f"the task {type(task).__name__} has {foreign[0]!r} for a problem; want coevolve.Problem")
        if unnamed := [problem.id for problem in split if not isinstance(problem.id, str)]:
            raise ValueError(f"the task {type(task).__name__} has {unnamed[0]!r} for the id of a problem; want text")
        ids = Counter(problem.id for problem in split)
        if repeated := [id for id, count in ids.items() if count > 1]:
            raise ValueError(
                f"the task {type(task).__name__} has {len(repeated)} ids more than once, such as {repeated[0]!r}; "
                "turns on problems of one id are compared with each other"
            )
    if not task.train:
        raise ValueError(f"the task {type(task).__name__} has no training problems")


def check_learner(name: PolicyName, given: Any, algorithm: Algorithm) -> None:
    """Raise ValueError for an object that is no learner, or one that lacks what this algorithm needs."""
    if lacking := [part for part in _LEARNER if not hasattr(given, part)]:
        raise ValueError(
            f"policies.{name} is {given!r}; want a model name, a PolicySpec or a learner, which has {lacking[0]}"
        )
    if (algorithm.logp_old or algorithm.follow) and given.trainable and not hasattr(given, "logps"):
        raise ValueError(f"policies.{name} is a learner without logps(batch), which this algorithm asks for")
    if given.trainable and hasattr(given, "check_objective"):
        with blame(f"policies.{name}"):
            given.check_objective(algorithm.objective)


def check_returned(learner: Learner, call: str, found: T, kind: type, want: str) -> T:
    """Return what a learner returned from a call. Raises ValueError if it is not of this type."""
    if not isinstance(found, kind):
        whose = f"policy {learner.name!r}: the learner {type(learner).__name__}"
        raise ValueError(f"{whose} returned {shown(found)} from {call}; want {want}")
    return found


def check_taught(policies: Mapping[PolicyName, Learner | PolicySpec], sampling: Sampling) -> None:
    """Raise ValueError for a team that can be evaluated and not trained: nobody learns, or it samples greedily."""
    if sampling.temperature == 0:
        raise ValueError("sampling.temperature is 0: training needs samples; greedy is for evaluation")
    if not any(policy.trainable for policy in policies.values()):
        raise ValueError("all policies are frozen, so nobody learns; give one other weights than frozen")


def check_critics(policies: Mapping[PolicyName, Learner], critics: bool | tuple[PolicyName, ...]) -> None:
    """Raise ValueError unless all policies that the algorithm names as critics learn."""
    for name in () if isinstance(critics, bool) else critics:
        if name not in policies:
            raise ValueError(f"algorithm: critic names the policy {name!r}; there are {', '.join(policies)}")
        if not policies[name].trainable:
            raise ValueError(f"policy {name!r} is a critic and frozen, so it would never learn a value")


def check_tokens(reader: PolicyName, speaker: PolicyName, policies: Mapping[PolicyName, Learner]) -> None:
    """Raise ValueError unless both policies' tokenizers have the same vocabulary."""
    if policies[reader].tokenizer.get_vocab() != policies[speaker].tokenizer.get_vocab():
        raise ValueError(
            f"policy {reader!r} is to read what policy {speaker!r} said, as token ids, and has another tokenizer; give "
            "it a model with the same one"
        )


def checked(made: Any, lesson: Lesson) -> tuple[dict[PolicyName, Targets], State]:
    """Return the targets and next state that an advantage returned. Raises ValueError for anything else."""
    if not isinstance(made, tuple) or len(made) != 2:
        raise ValueError(f"want the targets and the next state, found {type(made).__name__}")
    return checked_targets(made[0], lesson), plain_state(made[1])


def checked_targets(found: Any, lesson: Lesson) -> dict[PolicyName, Targets]:
    """Return the targets of every policy to update, in the order of the batches.

    Raises ValueError, naming policy and tensor, for a policy without a batch, a tensor of another shape, or an
    advantage that is not finite.
    """
    if not isinstance(found, Mapping) or not all(isinstance(aims, Targets) for aims in found.values()):
        raise ValueError(f"want a mapping from policies to Targets, found {type(found).__name__}")
    if unknown := [name for name in found if name not in lesson.batches]:
        raise ValueError(f"targets for {unknown[0]!r}, which does not learn; there are {', '.join(lesson.batches)}")
    for name, aims in found.items():
        _check_tensors(name, aims, lesson.batches[name])
        plain_metrics(name, aims.metrics)
    return {name: found[name] for name in lesson.batches if name in found}


def _check_tensors(name: PolicyName, aims: Targets, batch: Batch) -> None:
    returns = {} if aims.return_BT is None else {"return_BT": aims.return_BT}
    for label, x in {"adv_BT": aims.adv_BT, **returns, **aims.columns}.items():
        want = {"BT": tuple(batch.mask_BT.shape), "B": (len(batch),)}.get(label.rpartition("_")[2])
        if want is None:
            raise ValueError(f"policy {name!r}: the name of the column {label!r} does not end in _B or _BT")
        if tuple(x.shape) != want:
            raise ValueError(f"policy {name!r}: {label} has the shape {list(x.shape)}; want {list(want)}")
    if not aims.adv_BT.isfinite().all():
        raise ValueError(f"policy {name!r}: adv_BT is not finite")


def plain_metrics(name: PolicyName, given: Mapping[str, Any]) -> Metrics:
    """Return a policy's metrics as plain numbers. Raises ValueError for one that is no number."""
    found: Metrics = {}
    for key, value in given.items():
        try:
            if not isinstance(value, Real) and getattr(value, "ndim", None) != 0:
                raise TypeError
            found[key] = value if isinstance(value, int) and not isinstance(value, bool) else float(value)
        except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a complex tensor
            raise ValueError(f"policy {name!r}: the metric {key!r} is {shown(value)}; want a number") from error
    return found


def plain_state(state: Any) -> State:
    """Return the state as a checkpoint would restore it. Raises ValueError for values that JSON does not hold."""
    try:
        kept = json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"its state is not plain data ({error}); want dicts, lists, text and finite numbers"
        ) from error
    if not isinstance(kept, dict) or kept != state:
        raise ValueError(f"its state would come back as {kept!r}; want a dict with text for keys, and no tuples")
    return kept


def check_corrected(staleness: int, algorithm: Algorithm) -> None:
    """Raise ValueError if turns would be older than the learning weights and the algorithm has no correction for it."""
    where, mismatch = correction(algorithm)
    if staleness and mismatch in (None, "none"):
        raise ValueError(
            f"the engine's staleness is {staleness}, so turns are of weights one update older than those that learn; "
            f"set {where} (tis, icepop or sequence) of an algorithm that has it, or staleness: 0"
        )


def correction(algorithm: Algorithm) -> tuple[str, str | None]:
    """Return the key of the algorithm's correction for a sampler that is not the learner (``maths.mismatch``), and its
    value; None for an algorithm without one."""
    where, settings = "algorithm", algorithm.settings
    if isinstance(settings.get("agents"), Mapping):  # of ``marlhf``: the algorithm of the policies that speak
        where, settings = "algorithm.agents", settings["agents"]
    return f"{where}.mismatch", settings.get("mismatch")
