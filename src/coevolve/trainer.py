"""The training step and the training loop, for any algorithm, play and task."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from coevolve import checks, defaults, noise
from coevolve.ahead import Ahead, staleness_of
from coevolve.cautions import Cautions
from coevolve.collate import collate, plain_rows, rows_of
from coevolve.dynamic_sampling import with_others
from coevolve.engines.local import LocalEngine
from coevolve.evaluate import SEED, choose, evaluate
from coevolve.faults import ShortageError, blame, closed_after, during, one_line
from coevolve.interfaces import Engine, Learner, Task
from coevolve.learners.build import build_policies
from coevolve.live import pay
from coevolve.measure import Clock, learnt, note_parts, step_metrics
from coevolve.models.spec import PolicySpec
from coevolve.progress import Listener, progress
from coevolve.rollout import Stage, rollout
from coevolve.runs import checkpoint
from coevolve.runs.callbacks import Arguments, CallbackHandler, check_callbacks
from coevolve.runs.folder import RunDir
from coevolve.runs.identity import component_settings
from coevolve.runs.lock import alone
from coevolve.runs.record import Lessons, records
from coevolve.runtime.placement import most_tokens, product_threads, side_by_side
from coevolve.runtime.shared_memory import trim
from coevolve.settings import Workers
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

Saved = tuple[list[dict[str, Any]], Path]
"""Records of held-out problems, and the checkpoint that was written with them."""

_CAST_WINDOW = 64
"""Number of first steps whose casts are part of a run's identity: enough to tell when roles change."""

_NUMBERS = ("steps", "batch_size", "members", "seed", "reset_every")


class Trainer:
    """The training of a team on a task.

    policies: name -> model name, PolicySpec, or a learner (``interfaces.Learner``). cast: step -> role -> policy.
    batch_size: problems per step; members: episodes per problem. reset_every: as a control, reset optimiser, KL weight
    and reward statistics, and start the random numbers of sampling over, every so many steps, as the released CORY
    script does at each exchange. workers: whether policies on the CPU sample and learn in worker processes, one per
    core; "auto": where steps are long enough for this to be faster (``runtime.placement``). threads: PyTorch threads of
    this process (``learners.build``); neither setting affects learners that are already built. engine: the inference
    engine (``interfaces.Engine``), ``LocalEngine`` if None. callbacks: called at the events of every ``run``
    (``runs.callbacks``). Raises ValueError for a cast that names an unknown policy, a policy that plays no role, or an
    empty task; a team without a policy that learns, and greedy sampling, are refused by ``run`` and ``step``.
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
        self.steps, self.batch_size, self.members, self.seed, self.reset_every = checks.numbers(
            steps=steps, batch_size=batch_size, members=members, seed=seed, reset_every=reset_every
        )
        self.engine = LocalEngine() if engine is None else engine
        self.callbacks, self.cautions = check_callbacks(callbacks), Cautions()
        checks.check_parts(self.engine, algorithm=algorithm, sampling=sampling, play=play, cast=cast)
        self.speakers = checks.check_cast(cast, policies, self.steps, self.batch_size * self.members)
        """Policies that play a role at some step; all, of a run of more than 100,000 steps."""
        if algorithm.rows is None:  # which may be for any policy
            critics = () if isinstance(algorithm.critic, bool) else algorithm.critic
            later = checks.seated_later(cast, self.steps, _CAST_WINDOW)
            seen = max(self.steps, _CAST_WINDOW)
            checks.check_idle(policies, {*self.speakers, *later, *critics}, f"the cast of the first {seen} steps")
        checks.check_task(task)
        # Before models are loaded and servers started.
        checks.check_corrected(getattr(self.engine, "staleness", 0), algorithm)
        self.policies = _built(self, policies, workers, threads)
        checks.check_critics(self.policies, algorithm.critic)
        self.cautions.of_settings(sampling, algorithm)
        self.cautions.of_problems(self.batch_size, self.members, len(task.train))
        self.made_here = [one for name, one in self.policies.items() if one is not policies[name]]
        """Learners that this trainer built; their processes end with a run."""
        self.versions = dict[PolicyName, int]()
        """The version under which each policy was last published."""
        self.publish(self.policies, 0)
        self.ahead = Ahead(self.sampled, staleness_of(self.engine))
        self._begin()

    def _begin(self) -> None:
        """Initialise the attributes that steps change."""
        self.state: State = checks.plain_state(self.algorithm.start)
        """The algorithm's state between steps."""
        self.read: set[tuple[PolicyName, PolicyName]] = set()
        """(reader, speaker) pairs whose tokenizers were compared."""
        self.episodes: list[Episode] = []
        """The episodes of the last step."""
        self.lessons: Lessons = {}
        """Each policy's batch and targets of the last step."""
        self.begun: int | None = None
        """The last step whose update has begun, finished or not."""

    def step(self, i: int) -> Metrics:
        """Run step i: sample episodes, score them, update each trained policy on its own turns; returns metrics."""
        checks.check_taught(self.policies, self.sampling)
        clock = Clock()
        with clock("step"), during(f"step {i}"):
            if self.reset_every and i % self.reset_every == 0:
                self.reset()
            self.episodes = self.ahead.episodes(i, clock)
            self.engine.rest()
            updates = self.learn(i, clock)
            with clock("publish"):
                self.publish(updates, i + 1)
            note_parts(self.episodes, self.task)
        settings = getattr(self.play, "settings", None)  # of a play of one's own they may be anything
        stops = isinstance(settings, Mapping) and settings.get("done") is not None
        return step_metrics(self.episodes, updates, clock, stops)

    def sampled(self, i: int, clock: Clock) -> list[Episode]:
        """Return the episodes of step i, sampled with the published weights."""

        def played(problems: Sequence[Problem]) -> list[Episode]:
            return rollout(self.play, problems, self.stage(i, clock), members=self.members)

        episodes = played(batch_of(self.task.train, i, self.batch_size, self.seed))
        return with_others(episodes, self.task.train, played, self.algorithm.resample, self.seed, i)

    def publish(self, names: Iterable[PolicyName], version: int) -> None:
        """Publish the current weights of these policies to the engine; version: the step that they are for.

        A policy that never speaks (a critic, a judge) gets the version too, but not the engine: a server would load it.
        """
        try:
            news = [self.policies[name].published(version) for name in names]
            self.versions |= {new.name: version for new in news}
            self.engine.publish([new for new in news if new.name in self.speakers])
        except ShortageError:
            raise  # its message is complete
        except OSError as error:
            where = f"the engine {type(self.engine).__name__} could not be given version {version} of the weights"
            raise OSError(f"{where}: {error}") from error

    def learn(self, i: int, clock: Clock) -> dict[PolicyName, Metrics]:
        """Update every policy that the algorithm has targets for, those at different places at the same time."""
        with clock("describe"):
            lesson, targets, state = self.lesson(i, clock), dict[PolicyName, Targets](), self.state
            if lesson.batches:
                with blame(f"the advantage, step {i}"):
                    targets, state = checks.checked(self.algorithm.advantage(lesson, self.state), lesson)
                if i >= self.algorithm.warmup:
                    self.cautions.of_targets(lesson, targets)
        self.lessons = ready = {name: (lesson.batches[name], aims) for name, aims in targets.items()}
        metrics = {name: learnt(*pair) for name, pair in ready.items()}
        with clock("update"), self.ahead.sampling(i + 1 if i + 1 < self.steps else None):
            updated, self.state = self._updated(i, lesson, targets, state)
        for name in ready:
            metrics[name] = checks.plain_metrics(name, metrics[name] | updated.get(name, {}))
            if name in updated:
                self.cautions.of_learning(name, metrics[name])
        return metrics

    def _updated(
        self, i: int, lesson: Lesson, targets: Mapping[PolicyName, Targets], state: State
    ) -> tuple[dict[PolicyName, Metrics], State]:
        """Update every policy that has targets, in parallel or one by one; returns metrics and the next state."""
        objective = dataclasses.replace(self.algorithm.objective, staleness=self.ahead.staleness)
        follow = self.algorithm.follow

        def update(name: PolicyName) -> Metrics:
            self.begun = i
            policy = self.policies[name]
            found = policy.update(lesson.batches[name], targets[name], objective, i)
            return checks.check_returned(policy, "update", found, Mapping, "a mapping of metrics, {} for none")

        if follow is None:
            return self._side_by_side(list(targets), update), state
        updated, names = dict[PolicyName, Metrics](), list(targets)
        for number in noise.permutation(len(names), self.seed, "in turn", i):
            name = names[number]
            if name not in targets:  # left out by ``follow``
                continue
            updated |= self._side_by_side([name], update)
            policy: Any = self.policies[name]
            with blame(f"what follows from an update, step {i}"):
                found = follow(lesson, name, policy.logps(lesson.batches[name]), targets, state)
                targets, state = checks.checked(found, lesson)
        return updated, state

    def _side_by_side(self, names: Sequence[PolicyName], work: Callable[[PolicyName], T]) -> dict[PolicyName, T]:
        """Return what ``work`` returns for each policy; policies at different places run at the same time."""

        def there(some: Sequence[PolicyName]) -> dict[PolicyName, T]:
            found = {}
            for name in some:
                with during(f"policy {name!r}"):
                    found[name] = work(name)
            return found

        return side_by_side(self.policies, names, there, _place)

    def lesson(self, i: int, clock: Clock) -> Lesson:
        """Return the lesson of a step: the described batches of its rows, those that the algorithm adds included."""
        rows = self.rows(i, clock)
        speakers = dict.fromkeys((*self.cast(i).values(), *self.policies))
        names = [n for n in speakers if self.policies[n].trainable and any(row.turn.policy == n for row in rows)]
        return Lesson(self.episodes, self._side_by_side(names, lambda n: self._described(n, collate(rows, n))))

    def _described(self, name: PolicyName, batch: Batch) -> Batch:
        """Return the batch as its policy describes it (``Learner.describe``)."""
        policy = self.policies[name]
        found = checks.check_returned(policy, "describe", policy.describe(batch), Batch, "the batch, or a changed copy")
        return found.replace(logp_old_BT=policy.logps(batch)) if self.algorithm.logp_old else found  # type: ignore[attr-defined]

    def rows(self, i: int, clock: Clock) -> list[Row]:
        """Return the step's turns with their credit, then the rows that the algorithm adds."""
        with blame(f"the credit, step {i}"):
            rows = rows_of(self.episodes, self.algorithm.credit, partial(pay, stage=self.stage(i, clock)))
        self.cautions.of_pay(self.episodes, rows)
        if self.algorithm.rows is None:
            return rows
        with blame(f"the rows of the algorithm, step {i}"):
            more = [dataclasses.replace(row, extra=True) for row in self.algorithm.rows(self.episodes, rows)]
            if unknown := [row.turn.policy for row in more if row.turn.policy not in self.policies]:
                raise ValueError(f"one is for policy {unknown[0]!r}; there are {', '.join(self.policies)}")
            read = self._reads(rows, more, self.cast(i))
            for reader, speaker in sorted(read - self.read):
                checks.check_tokens(reader, speaker, self.policies)
            self.read |= read
        return rows + more

    def _reads(
        self, rows: Sequence[Row], more: Sequence[Row], cast: Mapping[Role, PolicyName]
    ) -> set[tuple[PolicyName, PolicyName]]:
        """Return (reader, speaker) pairs: critics that the algorithm names read those whose turns they value, other
        policies that never speak (judges) read all speakers."""
        if not isinstance(self.algorithm.critic, bool):
            return {(row.turn.policy, cast[row.turn.role]) for row in more}
        speakers = {row.turn.policy for row in rows}
        return {(row.turn.policy, speaker) for row in more if row.turn.policy not in speakers for speaker in speakers}

    def stage(self, i: int, clock: Clock) -> Stage:
        """Return the rollout's settings at step i, with the names of its random numbers."""
        named = i % self.reset_every if self.reset_every else i
        length = noise.integer(*self.sampling.length_range, self.seed, "length", named)
        return Stage(self.cast(i), self.task, self.engine, self.sampling.at_length(length), self.seed, i, clock, named)

    def reset(self) -> None:
        """Reset the optimisers and the algorithm's state; weights, value heads and their state (``kept``) stay."""
        kept = {} if self.algorithm.kept is None else self.algorithm.kept(self.state)
        self.state = checks.plain_state({**self.algorithm.start, **kept})
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
        """Train to the last step, writing a run directory (``runs.folder``); returns its path.

        save_every: steps between checkpoints (the last step always saves). keep_last: checkpoints that are kept.
        samples: problems whose episodes are written per step, and held-out problems played at the start and at every
        checkpoint. listeners: called with the metrics of every step; None shows progress on the terminal. callbacks:
        further ones, for this run only. recipe: the resolved recipe, kept for ``coevolve eval`` and compared on resume.
        Raises ValueError if the directory holds a run and resume is off, no run and resume is on, a run of another
        recipe or beyond the last step, or other files; while another process trains there; if a callback raises.
        """
        checks.check_run(resume=resume, save_every=save_every, keep_last=keep_last, samples=samples)
        checks.check_taught(self.policies, self.sampling)
        run, place = RunDir(Path(output_dir)), RunDir(Path(output_dir).absolute())  # user code may change directories
        identity = dict(recipe) if recipe is not None else self.identity(save_every)
        run.check(self.steps, resume)  # before the lock, which is a file in the directory
        args = Arguments(str(run.path), self.steps, save_every, self.seed)
        with alone(run.path), _told(listeners, self.steps) as told, closed_after(self.made_here):
            self._check_fresh(bool(resume and run.checkpoints()))
            start = checkpoint.resume(self, run, identity, keep_last) if resume else run.create()
            self.ahead.forget()
            if start:
                for version in sorted(set(self.versions.values())):  # not all steps update all policies
                    self.publish([name for name, its in self.versions.items() if its == version], version)
            run = place
            run.begin(identity, self.seed, self.computing(), self.settings(), fresh=start == 0)
            tell = CallbackHandler((*self.callbacks, *check_callbacks(callbacks)), args, start, trainer=self)
            tell("on_train_begin")
            if start == 0:
                noise.seed_everything(self.seed)
                tell.evaluated(self._sample(run, 0, samples))
            save = partial(self._save, run, samples, identity, keep_last)
            self._train(run, start, told, tell, save, save_every, samples)
            tell("on_train_end")
        return Path(output_dir)

    def _train(
        self,
        run: RunDir,
        start: int,
        listeners: Sequence[Listener],
        tell: CallbackHandler,
        save: Callable[[int], Saved],
        save_every: int,
        samples: int,
    ) -> None:
        """Run the steps from ``start`` on, writing each one's line and records, and the checkpoints that are due."""
        for i in range(start, self.steps):
            if tell.control.should_training_stop:
                break
            tell("on_step_begin")
            line = {"step": i, "cast": dict(self.cast(i)), **self.step(i)}
            run.append(line, records(self.episodes[: samples * self.members], self.tokenizers(), self.lessons))
            due = i + 1 == self.steps or (i + 1) % save_every == 0
            _tell_of(line, listeners, tell, partial(save, i + 1) if due else None)
            last = i + 1 == self.steps or tell.control.should_training_stop
            if due or last or tell.control.should_save:
                found, saved = save(i + 1)
                tell.evaluated(found)
                tell.saved(saved)
                trim()
            if last:
                break

    def _check_fresh(self, restored: bool) -> None:
        """Raise ValueError if a new run would begin with weights that were already updated."""
        learnt = max(self.versions.values())
        if not restored and (learnt or self.begun is not None):
            what = f"{learnt} steps" if learnt else f"a part of step {self.begun}"
            raise ValueError(
                f"this trainer has learnt {what} already, and a run begins with the weights it was made with; "
                "make another trainer, or resume the run that has its checkpoints"
            )

    def _sample(self, run: RunDir, step: int, n: int) -> list[dict[str, Any]]:
        """Sample the team on held-out problems, write the records to the run and return them."""
        found = self.sample(n)
        run.append_samples(step, found)
        return found

    def _save(self, run: RunDir, samples: int, identity: Mapping[str, Any], keep_last: int, step: int) -> Saved:
        """Sample held-out problems and write a checkpoint, before callbacks hear of either and can fail."""
        found = self._sample(run, step, samples)
        saved = checkpoint.save(self, run, step, identity, keep_last)
        self.ahead.forget()
        return found, saved

    def close(self) -> None:
        """End the processes and servers of all learners and the engine, also of those that were given."""
        with closed_after([*self.policies.values(), self.engine]):
            pass

    def sample(self, n: int) -> list[dict[str, Any]]:
        """Return records of the team (with step 0's cast) on n held-out problems, always the same ones with the same
        random numbers; with the KL of each token where there is a reference."""
        stage = dataclasses.replace(self.stage(0, Clock()), step="sample", named=None)
        chosen = noise.permutation(len(self.task.test), "sample")[:n]
        episodes = rollout(self.play, [self.task.test[i] for i in chosen], stage)
        note_parts(episodes, self.task)
        names = {turn.policy for episode in episodes for turn in episode.turns}
        rows = plain_rows(episodes)
        found = {name: (self.policies[name].describe(collate(rows, name)), None) for name in names}
        return records(episodes, self.tokenizers(), found, prompts=True)

    def computing(self) -> dict[str, Any]:
        """Return what computes: each policy's backend, the engine, PyTorch threads, threads of large products."""
        return {
            "policies": {name: policy.about for name, policy in self.policies.items()},
            "engine": getattr(self.engine, "about", type(self.engine).__name__),
            "threads": torch.get_num_threads(),
            "product_threads": product_threads(),
        }

    def evaluate(self, problems: int | None = None, *, samples: int = 1, seed: int = SEED) -> list[dict[str, Any]]:
        """Return the rows of ``coevolve.evaluate``: the team with the cast of the last step that was trained (of the
        first, before any), and each policy alone, on held-out problems, with the weights of now.

        problems: how many (None: 256, or all if there are fewer), always the same ones. samples: episodes of each in
        sampled rows. seed: of the random numbers. After a run, which ends worker processes but no servers, it starts
        the processes again: ``close`` ends all. Raises ValueError for more problems than the task has.
        """
        return evaluate(
            task=self.task,
            play=self.play,
            cast_at=self.cast(max(0, max(self.versions.values(), default=0) - 1)),
            policies=self.policies,
            engine=self.engine,
            sampling=self.sampling,
            problems=choose(self.task, problems),
            alone=self.speakers,
            samples=samples,
            seed=seed,
        )

    def settings(self) -> dict[str, Any]:
        """Return all settings of algorithm and play, defaults included: a recipe holds only those it sets."""
        return component_settings(algorithm=self.algorithm, play=self.play)

    def tokenizers(self) -> dict[PolicyName, Any]:
        """Return each policy's tokenizer."""
        return {name: policy.tokenizer for name, policy in self.policies.items()}

    def identity(self, save_every: int | None = None) -> dict[str, Any]:
        """Return the settings that identify this training, for a run without a recipe. save_every: of the run."""
        # What an engine samples ahead is dropped at every checkpoint.
        ahead = {"save_every": save_every} if self.ahead.staleness else {}
        return ahead | {
            "task": type(self.task).__name__,
            "task_settings": component_settings(task=self.task)["task"],
            "problems": len(self.task.train),
            "policies": {name: dataclasses.asdict(policy.spec) for name, policy in self.policies.items()},
            "play": getattr(self.play, "__qualname__", type(self.play).__name__),
            "play_settings": self.settings()["play"],
            "cast": [dict(self.cast(step)) for step in range(min(self.steps, _CAST_WINDOW))],
            "cast_settings": component_settings(cast=self.cast)["cast"],
            "algorithm": self.settings()["algorithm"],
            "sampling": dataclasses.asdict(self.sampling),
            "engine": {"staleness": self.ahead.staleness},
            **{key: getattr(self, key) for key in _NUMBERS},
        }


def _place(learner: Learner) -> object:
    return learner.place


@contextmanager
def _told(listeners: Sequence[Listener] | None, steps: int) -> Iterator[Sequence[Listener]]:
    """Yield the listeners; by default the one that shows progress on the terminal."""
    if listeners is not None:
        yield listeners
        return
    with progress(steps) as show:
        yield [show]


def _tell_of(
    line: dict[str, Any], listeners: Sequence[Listener], tell: CallbackHandler, save: Callable[[], object] | None
) -> None:
    """Call the listeners and callbacks of a finished step. save: writes the checkpoint that is due; called here only if
    one of them fails, so that it is not lost. Else it is saved after them, with the changes that they make."""
    try:
        for listener in listeners:
            listener(line)
        tell.stepped(line)
    except Exception:
        if save is not None:
            try:
                save()
            except OSError as second:
                warnings.warn(f"nor could the checkpoint that was due be written: {one_line(second)}", stacklevel=2)
        raise


def batch_of(problems: Sequence[Problem], step: int, n: int, seed: int) -> list[Problem]:
    """Return the n problems of a step: consecutive pieces of one shuffle per epoch, determined by (seed, step)."""
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
    """Return learners as given; the others are loaded together, so that equal start models share one reference."""
    specs, given = dict[PolicyName, PolicySpec](), dict[PolicyName, Learner]()
    for name, value in policies.items():
        if isinstance(value, str | PolicySpec):
            specs[name] = PolicySpec(model=value) if isinstance(value, str) else value
        else:
            checks.check_learner(name, value, trainer.algorithm)
            given[name] = value
    algorithm, turns = trainer.algorithm, trainer.batch_size * trainer.members * len(trainer.cast(0))
    how: dict[str, Any] = {"reference": algorithm.reference, "critic": algorithm.critic, "workers": workers}
    how |= {"steps": trainer.steps, "seed": trainer.seed, "threads": threads}
    tokens = most_tokens(turns, trainer.sampling, algorithm)
    made: dict[PolicyName, Learner] = {**given, **(build_policies(specs, **how, tokens=tokens) if specs else {})}
    return {name: made[name] for name in policies}
