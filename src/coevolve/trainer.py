"""The training step, and the loop around it. The trainer knows no algorithm, protocol or task by name."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from coevolve import defaults, noise
from coevolve.ahead import Ahead, check_corrected, staleness_of
from coevolve.collate import collate, plain_rows, rows_of
from coevolve.engines.local import LocalEngine
from coevolve.faults import ShortageError, blame, closed_after, during
from coevolve.interfaces import Engine, Learner, Task
from coevolve.learners.build import build_policies
from coevolve.lessons import checked, plain_state
from coevolve.measure import Clock, averaged_away, learnt, note_parts, spoken, step_metrics
from coevolve.models.spec import PolicySpec
from coevolve.names import check_names
from coevolve.progress import Listener, progress
from coevolve.rollout import Stage, pay, rollout
from coevolve.runs import checkpoint
from coevolve.runs.callbacks import Arguments, Told, check_callbacks
from coevolve.runs.folder import RunDir
from coevolve.runs.lock import alone
from coevolve.runs.record import Lessons, records
from coevolve.runtime.placement import side_by_side
from coevolve.runtime.shared_memory import trim
from coevolve.settings import Count, CountFromZero, Workers, checked_call
from coevolve.types import (
    Algorithm,
    Batch,
    Cast,
    Episode,
    Lesson,
    Metrics,
    Play,
    PolicyName,
    Problem,
    Role,
    Row,
    Sampling,
    State,
    Targets,
)

T = TypeVar("T")

_CAST_WINDOW = 64
"""Steps of the cast that identify a run: long enough to see when it changes."""

_MOST_TURNS = 1 << 24
_CHECKED = 100_000  # steps of which the cast is checked before the first
_NUMBERS = ("steps", "batch_size", "members", "seed", "reset_every")
_PARTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "algorithm": (lambda given: isinstance(given, Algorithm), "an Algorithm, such as magrpo()"),
    "sampling": (lambda given: isinstance(given, Sampling), "a Sampling, such as Sampling(max_new_tokens=16)"),
    "play": (callable, "an async function of a problem and its team, such as rounds()"),
    "cast": (callable, "a function of the step, such as fixed(roles)"),
}
"""What a trainer is made of: is it that, and what it should be."""

_LEARNER, _ENGINE = (
    [*kind.__annotations__, *(name for name, _ in inspect.getmembers(kind) if not name.startswith("_"))]
    for kind in (Learner, Engine)
)
"""What a learner and an engine have."""

_TRUNCATED = (
    "top_k, top_p or repetition_penalty is on: tokens are drawn from another distribution than is scored, so gradients "
    "and ratios are approximations; the metric excess says how far off, in nats per token"
)

_MANY_ALONE = 0.25
"""A share of turns without peers that is worth a warning."""

_DEAD = 20
"""Steps in a row of a critic worse than none that are worth a warning."""

_AGAINST = "agents paid against each other"
"""Among what was warned of."""


class Trainer:
    """A team that learns a task.

    policies: name -> model name, PolicySpec, or a learner (``interfaces.Learner``), one of ours or of the user's. cast:
    step -> role -> policy. batch_size: problems per step; members: times each is played. reset_every: the control that
    rebuilds everything at each exchange as the released CORY script does (optimiser, KL weight, reward statistics, and
    the noise starts over). workers: policies on the CPU sample and learn in worker processes, one a core; "auto": where
    a step is long enough for them to pay (``runtime.placement``). threads: of PyTorch in this process
    (``learners.build``); neither concerns learners that are built already. engine: what samples
    (``interfaces.Engine``), ``LocalEngine`` if None. callbacks: told of the events of every ``run`` (``callbacks``).
    Raises ValueError for a cast that names an unknown policy, an empty task, or a team of which nobody learns.
    """

    def __init__(
        self,
        *,
        task: Task,
        play: Play,
        cast: Cast,
        policies: Mapping[PolicyName, str | PolicySpec | Learner],
        algorithm: Algorithm,
        sampling: Sampling = defaults.SAMPLING,
        steps: int = defaults.STEPS,
        batch_size: int = defaults.BATCH_SIZE,
        members: int = defaults.MEMBERS,
        seed: int = defaults.SEED,
        reset_every: int | None = defaults.RESET_EVERY,
        workers: Workers = defaults.WORKERS,
        threads: int | None = None,
        engine: Engine | None = None,
        callbacks: Sequence[Any] = (),
    ) -> None:
        self.task, self.play, self.cast, self.algorithm, self.sampling = task, play, cast, algorithm, sampling
        self.steps, self.batch_size, self.members, self.seed = steps, batch_size, members, seed
        self.reset_every, self.callbacks = reset_every, check_callbacks(callbacks)
        self.engine = LocalEngine() if engine is None else engine
        _check(self, policies)
        check_corrected(self.engine, algorithm)  # before models are loaded and servers started
        self.policies = _built(self, policies, workers, threads)
        if not any(policy.trainable for policy in self.policies.values()):
            raise ValueError("all policies are frozen, so nobody learns; give one other weights than frozen")
        _check_critics(algorithm.critic, self.policies)
        for told in (_TRUNCATED if sampling.truncated else "", algorithm.caution):
            if told:
                warnings.warn(told, stacklevel=2)
        self.made_here = [one for name, one in self.policies.items() if one is not policies[name]]
        """Learners that were not given, whose processes end when a run does."""
        self.speakers = _speakers(self)
        """Who is cast at some step."""
        self.publish(self.policies, 0)
        self.ahead = Ahead(self.sampled, staleness_of(self.engine))
        self._begin()

    def _begin(self) -> None:
        """What steps leave behind, before the first one."""
        self.state: State = plain_state(self.algorithm.start)
        """What the algorithm carries from step to step."""
        self.warned: set[str] = set()
        """What was reported once: policies with groups of one or without targets, and pay that credit averages away."""
        self.read: set[tuple[PolicyName, PolicyName]] = set()
        """Who reads whom, where their tokenizers were compared."""
        self.worse_than_nothing: dict[PolicyName, int] = {}
        """For how many steps in a row each critic has been."""
        self.episodes: list[Episode] = []
        """The episodes of the last step."""
        self.lessons: Lessons = {}
        """What each policy learnt from at the last step."""

    def step(self, i: int) -> Metrics:
        """Play, pay, and update every trained policy of this step's cast from its own turns."""
        clock = Clock()
        with clock("step"), during(f"step {i}"):
            if self.reset_every and i % self.reset_every == 0:
                self.reset()
            cast = self.cast(i)
            self.episodes = self.ahead.episodes(i, clock)
            agents = {}
            for name in dict.fromkeys(cast.values()):
                if turns := [t for e in self.episodes for t in e.turns if t.policy == name]:
                    agents[name] = spoken(turns)  # this step's play had no use for the others
            self.engine.rest()
            updates = self.learn(i, clock)
            for name, metrics in updates.items():
                agents[name] = agents.get(name, {}) | metrics
            with clock("publish"):
                self.publish(updates, i + 1)
            note_parts(self.episodes, self.task)
        return step_metrics(self.episodes, agents, clock)

    def sampled(self, i: int, clock: Clock) -> list[Episode]:
        """The episodes of step i by the weights that are published."""
        problems = batch_of(self.task.train, i, self.batch_size, self.seed)
        return rollout(self.play, problems, self.stage(i, clock), members=self.members)

    def publish(self, names: Iterable[PolicyName], version: int) -> None:
        """Have the engine sample these policies as they are now; version: the step that these weights are for.

        Who never speaks, a critic or a judge, has the version too, but the engine is not told: a server would load it.
        """
        try:
            news = [self.policies[name].published(version) for name in names]
            self.engine.publish([new for new in news if new.name in self.speakers])
        except ShortageError:
            raise  # which says it all
        except OSError as error:
            where = f"the engine {type(self.engine).__name__} could not be given version {version} of the weights"
            raise OSError(f"{where}: {error}") from error

    def learn(self, i: int, clock: Clock) -> dict[PolicyName, Metrics]:
        """One update of every policy that the algorithm has targets for. Devices learn side by side."""
        with clock("describe"):
            lesson, targets, state = self.lesson(i, clock), dict[PolicyName, Targets](), self.state
            if lesson.batches:
                with blame(f"the advantage, step {i}"):
                    targets, state = checked(self.algorithm.advantage(lesson, self.state), lesson)
                self._warn_of_no_targets([name for name in lesson.batches if name not in targets])
        self.lessons = ready = {name: (lesson.batches[name], aims) for name, aims in targets.items()}
        metrics = {name: learnt(*pair) for name, pair in ready.items()}
        with clock("update"), self.ahead.sampling(i + 1 if i + 1 < self.steps else None):
            updated, self.state = self._updated(i, lesson, targets, state)
        for name in ready:
            metrics[name] |= updated[name]
            self._warn_of_lonely_turns(name, metrics[name])
            self._warn_of_a_dead_critic(name, metrics[name])
        return metrics

    def _updated(
        self, i: int, lesson: Lesson, targets: Mapping[PolicyName, Targets], state: State
    ) -> tuple[dict[PolicyName, Metrics], State]:
        """Every policy that has targets after its update, side by side or in turn; the metrics, and the next state."""
        objective = dataclasses.replace(self.algorithm.objective, staleness=self.ahead.staleness)
        follow = self.algorithm.follow

        def update(name: PolicyName) -> Metrics:
            return self.policies[name].update(lesson.batches[name], targets[name], objective, i)

        if follow is None:
            return self._side_by_side(list(targets), update), state
        updated, names = dict[PolicyName, Metrics](), list(targets)
        for number in noise.permutation(len(names), self.seed, "in turn", i):
            name = names[number]
            updated |= self._side_by_side([name], update)
            policy: Any = self.policies[name]
            with blame(f"what follows from an update, step {i}"):
                found = follow(lesson, name, policy.logps(lesson.batches[name]), targets, state)
                targets, state = checked(found, lesson)
        return updated, state

    def _side_by_side(self, names: Sequence[PolicyName], work: Callable[[PolicyName], T]) -> dict[PolicyName, T]:
        """What ``work`` finds for each policy."""

        def there(some: Sequence[PolicyName]) -> dict[PolicyName, T]:
            found = {}
            for name in some:
                with during(f"policy {name!r}"):
                    found[name] = work(name)
            return found

        return side_by_side(self.policies, names, there, _place)

    def lesson(self, i: int, clock: Clock) -> Lesson:
        """What there is to learn: the step's turns with their credit and what the algorithm adds, described."""
        rows = self.rows(i, clock)
        speakers = dict.fromkeys((*self.cast(i).values(), *self.policies))
        names = [n for n in speakers if self.policies[n].trainable and any(row.turn.policy == n for row in rows)]
        return Lesson(self.episodes, self._side_by_side(names, lambda n: self._described(n, collate(rows, n))))

    def _described(self, name: PolicyName, batch: Batch) -> Batch:
        """What the policy says of its batch."""
        policy = self.policies[name]
        found = policy.describe(batch)
        return found.replace(logp_old_BT=policy.logps(batch)) if self.algorithm.logp_old else found  # type: ignore[attr-defined]

    def rows(self, i: int, clock: Clock) -> list[Row]:
        """The step's turns with their credit, then what the algorithm adds."""
        with blame(f"the credit, step {i}"):
            rows = rows_of(self.episodes, self.algorithm.credit, partial(pay, stage=self.stage(i, clock)))
        if _AGAINST not in self.warned and averaged_away(self.episodes, rows):
            self.warned.add(_AGAINST)
            warnings.warn(
                "the task pays one agent what it takes from the others, and the credit pays them all alike, so that "
                "nobody has anything to learn; set algorithm.credit to own_return or own_reward",
                stacklevel=2,
            )
        if self.algorithm.rows is None:
            return rows
        with blame(f"the rows of the algorithm, step {i}"):
            more = [dataclasses.replace(row, extra=True) for row in self.algorithm.rows(self.episodes, rows)]
            if unknown := [row.turn.policy for row in more if row.turn.policy not in self.policies]:
                raise ValueError(f"one is for policy {unknown[0]!r}; there are {', '.join(self.policies)}")
            self._check_tokens(self._reads(rows, more, self.cast(i)))
        return rows + more

    def _reads(
        self, rows: Sequence[Row], more: Sequence[Row], cast: Mapping[Role, PolicyName]
    ) -> set[tuple[PolicyName, PolicyName]]:
        """(reader, speaker): critics by name read whom they value, and others who never speak everybody."""
        if not isinstance(self.algorithm.critic, bool):
            return {(row.turn.policy, cast[row.turn.role]) for row in more}
        speakers = {row.turn.policy for row in rows}
        return {(row.turn.policy, speaker) for row in more if row.turn.policy not in speakers for speaker in speakers}

    def _check_tokens(self, read: set[tuple[PolicyName, PolicyName]]) -> None:
        """Who reads gets the ids of the speaker's tokenizer."""
        for reader, speaker in sorted(read - self.read):
            if self.policies[reader].tokenizer.get_vocab() != self.policies[speaker].tokenizer.get_vocab():
                raise ValueError(
                    f"policy {reader!r} is to read what policy {speaker!r} said, as token ids, and has another "
                    "tokenizer; give it a model with the same one"
                )
        self.read |= read

    def _warn_of_no_targets(self, names: Iterable[PolicyName]) -> None:
        """A warning, once, of policies that the algorithm left out."""
        for name in names:
            if (told := f"{name}: no targets") not in self.warned:
                self.warned.add(told)
                warnings.warn(
                    f"policy {name!r}: the advantage gave it no targets, so its turns taught it nothing; a policy that "
                    "is not to learn has weights: frozen",
                    stacklevel=2,
                )

    def _warn_of_lonely_turns(self, name: PolicyName, metrics: Metrics) -> None:
        """A warning, once, of turns that taught nothing."""
        if metrics.get("groups_of_one", 0.0) > _MANY_ALONE and name not in self.warned:
            self.warned.add(name)
            warnings.warn(
                f"policy {name!r}: {metrics['groups_of_one']:.0%} of its turns have no peers to be compared with and "
                "teach nothing; raise members, or the k of the play",
                stacklevel=2,
            )

    def _warn_of_a_dead_critic(self, name: PolicyName, metrics: Metrics) -> None:
        """A warning, once, of values that have been worse than one number for all for many steps in a row."""
        below = metrics.get("explained_variance", 0.0) < 0
        self.worse_than_nothing[name] = self.worse_than_nothing.get(name, 0) + 1 if below else 0
        if self.worse_than_nothing[name] >= _DEAD and (told := f"{name}: a dead critic") not in self.warned:
            self.warned.add(told)
            warnings.warn(
                f"policy {name!r}: its critic has explained less than nothing of the returns (explained_variance below "
                f"0) for {_DEAD} steps, so it adds noise to the advantages; set value_learning_rate of the policy to "
                "some 30 times its learning_rate and value_coef to 1, or compare members instead (marloo, rloo)",
                stacklevel=2,
            )

    def stage(self, i: int, clock: Clock) -> Stage:
        """Who answers the play at step i, and under which names its random numbers are drawn."""
        named = i % self.reset_every if self.reset_every else i
        length = noise.integer(*self.sampling.length_range, self.seed, "length", named)
        return Stage(self.cast(i), self.task, self.engine, self.sampling.at_length(length), self.seed, named, clock)

    def reset(self) -> None:
        """Fresh optimisers and the algorithm's start state; the weights and value heads stay."""
        self.state = plain_state(self.algorithm.start)
        for policy in self.policies.values():
            if policy.trainable:
                policy.reset_optimizer()

    def run(
        self,
        output_dir: str | Path,
        *,
        resume: bool = False,
        save_every: int = defaults.SAVE_EVERY,
        keep_last: int = defaults.KEEP_LAST,
        samples: int = defaults.SAMPLES,
        listeners: Sequence[Listener] | None = None,
        callbacks: Sequence[Any] = (),
        recipe: Mapping[str, Any] | None = None,
    ) -> Path:
        """Train to the last step, writing a run directory (``rundir``); returns its path.

        save_every: steps between checkpoints (the last step always saves). samples: problems whose episodes are
        written per step, and held-out problems played at the start and at every checkpoint. listeners: called with the
        metrics of every step; None is progress on the terminal. callbacks: further ones, of this run. recipe: the
        resolved recipe, kept for ``coevolve eval`` and compared on resume. Raises ValueError if the directory holds a
        run and resume is off, no run and resume is on, a run of another recipe or beyond the last step, anything else,
        while another process trains there, and for what a callback raises.
        """
        _run_numbers(save_every=save_every, keep_last=keep_last, samples=samples)
        run = RunDir(Path(output_dir))
        identity = dict(recipe) if recipe is not None else self.identity()
        run.check(self.steps, resume)  # before the lock, which is a file: nothing is written where no run belongs
        args = Arguments(str(run.path), self.steps, save_every, self.seed)
        with alone(run.path), _told(listeners, self.steps) as told, closed_after(self.made_here):
            start = checkpoint.resume(self, run, identity, keep_last) if resume else run.create()
            self.ahead.forget()
            if start:
                self.publish(self.policies, start)
            run.begin(identity, self.seed, self.computing(), fresh=start == 0)
            tell = Told((*self.callbacks, *check_callbacks(callbacks)), args, start, trainer=self)
            tell("on_train_begin")
            if start == 0:
                noise.seed_everything(self.seed)
                tell.evaluated(self._sample(run, 0, samples))
            for i in range(start, self.steps):
                if tell.control.should_training_stop:
                    break
                tell("on_step_begin")
                line = {"step": i, "cast": dict(self.cast(i)), **self.step(i)}
                run.append(line, records(self.episodes[: samples * self.members], self.tokenizers(), self.lessons))
                for listener in told:
                    listener(line)
                tell.stepped(line)
                last = i + 1 == self.steps or tell.control.should_training_stop
                if last or tell.control.should_save or (i + 1) % save_every == 0:
                    found = self._sample(run, i + 1, samples)
                    saved = checkpoint.save(self, run, i + 1, identity, keep_last)  # before anybody's code can fail
                    self.ahead.forget()
                    tell.evaluated(found)
                    tell.saved(saved)
                    trim()
                if last:
                    break
            tell("on_train_end")
        return run.path

    def _sample(self, run: RunDir, step: int, n: int) -> list[dict[str, Any]]:
        """What the team says on held-out problems, written down."""
        found = self.sample(n)
        run.append_samples(step, found)
        return found

    def close(self) -> None:
        """End the processes and servers of learners and engine, those that were given too: for who has made them."""
        with closed_after([*self.policies.values(), self.engine]):
            pass

    def sample(self, n: int) -> list[dict[str, Any]]:
        """Records of the team as it starts (step 0's cast) on n held-out problems, the same with the same noise always,
        with the KL of its tokens where there is a reference."""
        stage = dataclasses.replace(self.stage(0, Clock()), step="sample")
        chosen = noise.permutation(len(self.task.test), "sample")[:n]
        episodes = rollout(self.play, [self.task.test[i] for i in chosen], stage)
        note_parts(episodes, self.task)
        names = {turn.policy for episode in episodes for turn in episode.turns}
        rows = plain_rows(episodes)
        found = {name: (self.policies[name].describe(collate(rows, name)), None) for name in names}
        return records(episodes, self.tokenizers(), found, prompts=True)

    def computing(self) -> dict[str, Any]:
        """What computes: for every policy, what samples, threads of this process."""
        return {
            "policies": {name: policy.about for name, policy in self.policies.items()},
            "engine": getattr(self.engine, "about", type(self.engine).__name__),
            "threads": torch.get_num_threads(),
        }

    def tokenizers(self) -> dict[PolicyName, Any]:
        """Each policy's."""
        return {name: policy.tokenizer for name, policy in self.policies.items()}

    def identity(self) -> dict[str, Any]:
        """What identifies this training, for a run that was built without a recipe."""
        return {
            "task": type(self.task).__name__,
            "problems": len(self.task.train),
            "policies": {name: dataclasses.asdict(policy.spec) for name, policy in self.policies.items()},
            "play": getattr(self.play, "__qualname__", type(self.play).__name__),
            "cast": [dict(self.cast(step)) for step in range(_CAST_WINDOW)],
            "algorithm": dict(self.algorithm.settings),
            "sampling": dataclasses.asdict(self.sampling),
            **{key: getattr(self, key) for key in _NUMBERS},
        }


def _place(learner: Learner) -> object:
    return learner.place


@contextmanager
def _told(listeners: Sequence[Listener] | None, steps: int) -> Iterator[Sequence[Listener]]:
    """The listeners; by default the one that shows progress on the terminal."""
    if listeners is not None:
        yield listeners
        return
    with progress(steps) as show:
        yield [show]


def batch_of(problems: Sequence[Problem], step: int, n: int, seed: int) -> list[Problem]:
    """The n problems of a step: consecutive pieces of one shuffle per epoch, a function of (seed, step) alone."""
    return [
        problems[_shuffle(len(problems), seed, position // len(problems))[position % len(problems)]]
        for position in range(step * n, (step + 1) * n)
    ]


@lru_cache(maxsize=4)
def _shuffle(n: int, seed: int, epoch: int) -> list[int]:
    return noise.permutation(n, seed, "shuffle", epoch)


def _built(
    trainer: Trainer, policies: Mapping[PolicyName, str | PolicySpec | Learner], workers: Workers, threads: int | None
) -> dict[PolicyName, Learner]:
    """Policies as given, the others loaded together so that equal start models share one reference."""
    specs, given = dict[PolicyName, PolicySpec](), dict[PolicyName, Learner]()
    for name, value in policies.items():
        if isinstance(value, str | PolicySpec):
            specs[name] = PolicySpec(model=value) if isinstance(value, str) else value
        elif lacking := [part for part in _LEARNER if not hasattr(value, part)]:
            raise ValueError(
                f"policies.{name} is {value!r}; want a model name, a PolicySpec or a learner, which has {lacking[0]}"
            )
        else:
            given[name] = value
            asked = trainer.algorithm.logp_old or trainer.algorithm.follow
            if asked and value.trainable and not hasattr(value, "logps"):
                raise ValueError(f"policies.{name} is a learner without logps(batch), which this algorithm asks for")
    algorithm, turns = trainer.algorithm, trainer.batch_size * trainer.members * len(trainer.cast(0))
    how: dict[str, Any] = {"reference": algorithm.reference, "critic": algorithm.critic, "workers": workers}
    how |= {"steps": trainer.steps, "seed": trainer.seed, "threads": threads}
    tokens = turns * trainer.sampling.length_range[1] * algorithm.objective.epochs
    made: dict[PolicyName, Learner] = {**given, **(build_policies(specs, **how, tokens=tokens) if specs else {})}
    return {name: made[name] for name in policies}


@checked_call("trainer")
def _trainer_numbers(
    *, steps: Count, batch_size: Count, members: Count, seed: CountFromZero, reset_every: Count | None
) -> dict[str, Any]:
    return dict(locals())


@checked_call("run")
def _run_numbers(*, save_every: Count, keep_last: Count, samples: CountFromZero) -> None:
    """Nothing but the check."""


def _check(trainer: Trainer, policies: Mapping[PolicyName, Any]) -> None:
    for key, number in _trainer_numbers(**{key: getattr(trainer, key) for key in _NUMBERS}).items():
        setattr(trainer, key, number)
    for label, (fits, want) in _PARTS.items():
        part = getattr(trainer, label)
        if hasattr(part, "makes"):
            raise ValueError(f"trainer: {label} is the function {part.__name__}; call it: {part.__name__}(...)")
        if not fits(part):
            raise ValueError(f"trainer: {label} is {part!r}; want {want}")
    if missing := [part for part in _ENGINE if not hasattr(trainer.engine, part)]:
        raise ValueError(f"trainer: engine is {trainer.engine!r}, which has no {missing[0]}; want an engine")
    check_names("policies", policies)
    if (turns := trainer.batch_size * trainer.members * len(trainer.cast(0))) > _MOST_TURNS:
        raise ValueError(
            f"a step would be of {turns:,} turns at least (batch_size x members x roles), too many for any machine; "
            f"want at most {_MOST_TURNS:,}"
        )
    for step in range(min(trainer.steps, _CHECKED)):
        check_names("roles", trainer.cast(step))
        for role, name in trainer.cast(step).items():
            if name not in policies:
                known = ", ".join(policies)
                raise ValueError(f"role {role!r} is cast with policy {name!r} at step {step}; there are {known}")
    if trainer.sampling.temperature == 0:
        raise ValueError("sampling.temperature is 0: training needs samples; greedy is for evaluation")
    _check_task(trainer.task)


def _speakers(trainer: Trainer) -> set[PolicyName]:
    """Who is cast at some step; everybody where the steps are too many to look at them all."""
    if trainer.steps > _CHECKED:
        return set(trainer.policies)
    steps = range(max(trainer.steps, _CAST_WINDOW))
    return {name for step in steps for name in trainer.cast(step).values()}


def _check_critics(named: bool | tuple[PolicyName, ...], policies: Mapping[PolicyName, Learner]) -> None:
    """Policies that are critics by name: there, and learning."""
    for name in () if isinstance(named, bool) else named:
        if name not in policies:
            raise ValueError(f"algorithm: critic names the policy {name!r}; there are {', '.join(policies)}")
        if not policies[name].trainable:
            raise ValueError(f"policy {name!r} is a critic and frozen, so it would never learn a value")


def _check_task(task: Any) -> None:
    for part in ("train", "test", "prompt", "reward"):
        if not hasattr(task, part):
            raise ValueError(f"the task {type(task).__name__} has no {part}; a task has train, test, prompt and reward")
    with blame("task"):  # it may read its data only now
        len(task.train), len(task.test)
    for split in (task.train, task.test):
        if foreign := [problem for problem in split if not isinstance(problem, Problem)]:
            raise ValueError(f"the task {type(task).__name__} has {foreign[0]!r} for a problem; want coevolve.Problem")
        ids = Counter(problem.id for problem in split)
        if repeated := [id for id, count in ids.items() if count > 1]:
            raise ValueError(
                f"the task {type(task).__name__} has {len(repeated)} ids more than once, such as {repeated[0]!r}; "
                "turns on problems of one id are compared with each other"
            )
    if not task.train:
        raise ValueError(f"the task {type(task).__name__} has no training problems")
