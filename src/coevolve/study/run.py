"""Training and evaluation of the study's missing runs, by ``sweep``; the same command resumes, here or elsewhere.

Runs lie under ``runs/study/``, so they can be resumed; a result is written once its run has been evaluated, and only
then are the run's checkpoints deleted. Both runs of a pair must be made on one kind of processor: where an arm's
partner was run on another kind, it is run here again.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from coevolve import faults
from coevolve.console import WIDE, console, say
from coevolve.faults import one_line
from coevolve.files import read_json
from coevolve.models.names import is_recipe
from coevolve.recipe.build import Parts, check, pretrain, to_pretrain
from coevolve.recipe.read import load_recipe
from coevolve.recipe.schema import Recipe
from coevolve.report.wording import and_list, many
from coevolve.runs.durable import make_folder, remove, write_text
from coevolve.runs.environment import environment, processor, starts
from coevolve.runs.folder import RunDir, plain
from coevolve.runs.identity import component_settings
from coevolve.runs.lock import alone, sweep_up
from coevolve.study import results
from coevolve.study.claims import Book
from coevolve.study.results import Everywhere, Result, Results, one_per_seed
from coevolve.study.verdicts import MADE_APART, Found, judge
from coevolve.sweep.pool import LOG, run_all, start, train
from coevolve.sweep.run import newest_step, places_for, unfinished
from coevolve.sweep.show import progress
from coevolve.sweep.slots import Slot

RUNS = Path("runs") / "study"

_PREMISES = "premises"
_HOUR = 3600


@dataclass(frozen=True)
class Job:
    """A run to make: an arm, and the recipe with its seed and output directory."""

    arm: str
    recipe: Recipe

    @property
    def name(self) -> str:
        return f"{self.arm}, seed {self.recipe.seed}"


def kept(book: Book) -> Everywhere:
    """Load the results of the study's arms. Raises ValueError for one that does not fit its arm's present settings."""
    found: dict[str, dict[str, dict[int, Result]]] = {}
    for arm in book.study.arms:
        files = sorted((book.results / arm).rglob("*.json"))
        settings = book.settings(arm) if files else {}
        loaded = {file: results.load(file, book.results, settings) for file in files}
        if why := results.other_defaults(loaded):
            raise ValueError(why)
        for one in loaded.values():
            if one.seed < book.study.seeds["full"]:
                found.setdefault(one.machine.processor, {}).setdefault(arm, {})[one.seed] = one
    return {
        processor: {arm: dict(sorted(seeds.items())) for arm, seeds in arms.items()}
        for processor, arms in sorted(found.items())
    }


def premises(book: Book) -> dict[str, Mapping[str, Any]]:
    """Load the measured premises, by name. Raises ValueError for one that was measured with another recipe."""
    found: dict[str, Mapping[str, Any]] = {}
    for name in book.study.premises:
        file = _premise_file(book, name)
        if file.is_file():
            found[name] = read_json(file)
            if results.differs(found[name]["recipe"], results.shared_settings(_recipe_of(book, name))):
                raise ValueError(f"{file} was measured of another recipe than {name} has now; delete it")
    return found


def reproduce(book: Book, claims: Sequence[str], seeds: Sequence[int], jobs: int | None = None) -> None:
    """Make the runs that these claims need at these seeds and that have no result. Prints progress with the time left;
    removes checkpoints that are left of kept runs.

    Raises ValueError, before anything starts, for an invalid recipe; at the end ChildProcessError if anything failed.
    """
    with alone(RUNS) as lock:
        done = kept(book)
        todo, lines = _jobs(book, claims, seeds, done)
        _tidy(done.get(processor(), {}))
        for line in lines:
            say(line)
        unmeasured = _measure_premises(book, claims)
        if not todo:
            say(_nothing(len(seeds), book.study.seeds["full"]))
        failed = _make(book, todo, jobs, lock, one_per_seed(done, first=processor())) if todo else {}
    for place, why in failed.items():
        say(f"failed: {place}: {why}")
    if both := unmeasured + [f"{len(failed)} of {len(todo)} runs"] * bool(failed):
        raise ChildProcessError(f"{and_list(both)} failed; the same command tries them again")


def _nothing(asked: int, full: int) -> str:
    """Return what is printed where all runs asked for are kept."""
    more = f" at {many(asked, 'seed')} (`--tier full` asks for {full})" if asked < full else ""
    return f"nothing to run{more}; `--again ARM/SEED` makes a kept run anew and compares it"


def _tidy(made: Results) -> None:
    """Remove the checkpoints of runs whose results are kept, if they are of this processor too: a command that was
    killed had not come to it. On another one a run may be made again, to be paired, in the same folder."""
    for folder in (RUNS / f"{arm}-{seed}" for arm, seeds in made.items() for seed in seeds):
        if all(one.get("processor") == processor() for one in starts(folder)):
            _remove_checkpoints(folder)


def _remove_checkpoints(folder: Path) -> None:
    for checkpoint in RunDir(folder).checkpoints():
        remove(checkpoint)


def _make(book: Book, todo: Sequence[Job], jobs: int | None, lock: int, done: Results) -> dict[Path, str]:
    """Make the runs; returns log file -> reason, of those that failed."""
    collect = _Collect(book, todo, done)
    for model in dict.fromkeys(model for job in todo for model in to_pretrain(job.recipe)):
        say(f"{model} is pre-trained first, for a time that is not known; runs that need it stay at step 0 until then")
    say(f"{many(len(todo), 'run')} to make{collect.time_left()}")
    try:
        return _train(todo, jobs, lock, collect)
    except KeyboardInterrupt as stop:
        left = len(collect.left) + len(collect.failed)
        said = f"stopped with {many(left, 'run')} left; the same command goes on"
        raise faults.Interrupted(getattr(stop, "number", signal.SIGINT), said) from None


def again(book: Book, arm: str, seed: int) -> tuple[list[str], list[str]]:
    """Make one run anew and compare it with its kept result; returns the keys that differ (``results.differences``) and
    the metrics that the kept one does not have (``results.unkept``).

    After an interruption, the next call resumes. Raises ValueError for a run that has no result to compare with.
    """
    done, here = kept(book), processor()
    first = one_per_seed(done, first=here).get(arm, {}).get(seed)
    if first is None:
        raise ValueError(f"{arm}, seed {seed} has no result in {book.results}; run its claim first")
    say(f"its kept run took {in_words(first.seconds)}{_elsewhere(first, here)}")
    job = Job(arm, book.recipe(arm, seed, RUNS / "again" / f"{arm}-{seed}"))
    check(job.recipe)
    with alone(RUNS / "again") as lock:
        if any(results.commit_of(one) != results.commit_of(environment()) for one in starts(job.recipe.output_dir)):
            remove(job.recipe.output_dir)  # an interrupted one, by other code than is asked now
        collect = _Collect(book, [job], {}, RUNS / "again" / "results")
        failed = _train([job], 1, lock, collect)
    for place, why in failed.items():
        raise ChildProcessError(f"{place}: {why}")
    remove(job.recipe.output_dir)  # the next call makes the run anew
    folder = RUNS / "again" / "results"
    second = results.load(results.result_file(folder, arm, seed, here), folder, book.settings(arm))
    return results.differences(first, second), results.unkept(first, second)


def _elsewhere(first: Result, here: str) -> str:
    """Return on which processor and with which versions a result was made, if with others than a run here would be."""
    now = {"processor": here} | _versions()
    had = {"processor": first.machine.processor} | first.libraries
    made = [f"{name} {had[name]}" for name in had if now.get(name) != had[name]]
    return f", with {', '.join(made)}: numbers may round otherwise here" * bool(made)


def _jobs(book: Book, claims: Sequence[str], seeds: Sequence[int], done: Everywhere) -> tuple[list[Job], list[str]]:
    """Return the runs to make, the arms of a claim and seed next to each other, and lines on those left out and why."""
    here, found = done.get(processor(), {}), {one.id: one.found for one in judge(book.study, done, {})}
    wanted = dict.fromkeys(one for id in claims for one in wanted_by(found[id], seeds))
    ours = cache(lambda: {one.id: one.found for one in judge(book.study, {processor(): here}, {})})
    todo, lines = list[Job](), list[str]()
    for arm, seed in wanted:
        if seed in here.get(arm, {}):
            why = and_list(_refused(claims, ours(), arm, seed))
            lines += [
                f"{arm}, seed {seed} is here, and no pair: {why}; without its result, or its partner's, it is made anew"
            ] * bool(why)
            continue
        job = Job(arm, book.recipe(arm, seed, RUNS / f"{arm}-{seed}"))
        settings = _checked(book, job)
        others = [one for made in done.values() for one in made.get(arm, {}).values()]
        if why := _apart(job.recipe, settings, _partners(book, arm, seed, here), others):
            lines.append(f"{job.name} {why}")
            continue
        todo.append(job)
    elsewhere = one_per_seed(done)
    if anew := sum(job.recipe.seed in elsewhere.get(job.arm, {}) for job in todo):
        are, their = ("is", "its result is") if anew == 1 else ("are", "their results are")
        lines.append(f"{many(anew, 'run')} of these {are} made here again, to be paired; {their} of another processor")
    return todo, lines


def wanted_by(found: Sequence[Found], seeds: Iterable[int]) -> list[tuple[str, int]]:
    """Return the arms and seeds that these comparisons have no pair of, on any processor."""
    return [(arm, seed) for seed in seeds for arm in _missing(found, seed)]


def _missing(found: Sequence[Found], seed: int) -> list[str]:
    """Return the arms of the comparisons that have no pair of this seed on any processor. Runs that are no pair because
    of their results would be none here either; those that are none because of how they were made may be one here."""
    unpaired = [one for one in found if seed not in one.pairs and one.refused.get(seed, MADE_APART[0]) in MADE_APART]
    return list(dict.fromkeys(arm for one in unpaired for side in one.comparison.sides for arm in side))


def _refused(claims: Sequence[str], found: Mapping[str, Sequence[Found]], arm: str, seed: int) -> list[str]:
    """Return why this seed is no pair in comparisons with this arm, where it might be one if it were run anew."""
    every = [one for id in claims for one in found[id] if any(arm in side for side in one.comparison.sides)]
    return list(dict.fromkeys(one.refused[seed] for one in every if one.refused.get(seed) in MADE_APART))


def _checked(book: Book, job: Job) -> dict[str, Any]:
    """Return the settings of algorithm and play, with their defaults. Raises ValueError for a recipe that is invalid or
    cannot be evaluated as the arm says."""
    made = check(job.recipe)
    play = book.study.arms[job.arm].evaluated_by
    try:
        check(job.recipe.model_copy(update={"play": job.recipe.play if play is None else {"name": play}}))
    except ValueError as error:
        raise ValueError(f"{book.file}: arms.{job.arm}.evaluated_by: {error}") from error
    return _settings(made)


def _settings(made: Parts) -> dict[str, Any]:
    """Return the settings of algorithm and play, with their defaults, as every start of a run records them."""
    found: dict[str, Any] = plain(component_settings(algorithm=made.algorithm, play=made.play()))
    return found


def _apart(recipe: Recipe, settings: Mapping[str, Any], partners: Sequence[Result], others: Sequence[Result]) -> str:
    """Return why a run made here and now would be no pair with its partners, or would not fit ``others``, the results
    that its arm already has; empty if it would do both."""
    here = _versions() if partners else {}
    if there := {f"{name} {had}" for one in partners for name, had in one.libraries.items() if here.get(name) != had}:
        made = ", ".join(sorted(there))
        return (
            f"would be no pair: its partners were made with {made}; "
            "install that, or delete their results to make all of them anew"
        )
    for model, digest in results.start_weights(recipe).items():
        if any(one.weights.get(model, digest) != digest for one in partners):
            return (
                f"would be no pair: its partners began with other weights of {model}; "
                "bring those back, or delete their results to make all of them anew"
            )
    before = next((one.defaults for one in others if one.defaults), settings)
    if key := results.first_difference(before, settings):
        return f"would be no run of its arm, whose others had other defaults: {key}; delete their results, or set it"
    return ""


@cache
def _versions() -> dict[str, str]:
    """Return the versions that a result made here will record."""
    return results.versions_in(environment())


def _partners(book: Book, arm: str, seed: int, done: Results) -> list[Result]:
    """Return the results of this seed that the arm is compared with, directly or by way of other arms: all of these
    must be able to form pairs. done: the results of one processor."""
    comparisons = [one for claim in book.study.claims.values() for one in claim.comparisons]
    sides, linked, before = [{*one.sides[0], *one.sides[1]} for one in comparisons], {arm}, 0
    while len(linked) > before:
        before = len(linked)
        linked = linked.union(*(side for side in sides if side & linked))
    return [done[other][seed] for other in sorted(linked - {arm}) if seed in done.get(other, {})]


def _train(todo: Sequence[Job], jobs: int | None, lock: int, collect: _Collect) -> dict[Path, str]:
    """Train and evaluate the runs; returns log file -> reason, of those that failed."""
    recipes = [job.recipe for job in todo]
    left = {recipe.output_dir for recipe in _left(todo)}
    runs = [(one, [train] * (one.output_dir in left) + [collect.evaluate]) for one in recipes]
    with progress(0, len(todo), console(WIDE, highlight=False)) as show:

        def watch(running: Sequence[Recipe], ended: Mapping[Path, str | None]) -> None:
            show(running, ended)
            collect(ended)

        run_all(runs, places_for(recipes, len(todo), jobs), lock, watch)
    return {folder / LOG: why for folder, why in collect.failed.items()}


def _left(todo: Sequence[Job]) -> list[Recipe]:
    """Return the recipes of the runs that have not reached their last step. Raises ValueError for a folder with a run
    of other settings or defaults, or with one begun where numbers round otherwise."""
    found = list[Recipe]()
    for job in todo:
        folder = job.recipe.output_dir
        try:
            if RunDir(folder).checkpoints():
                results.check_starts(folder, _settings(check(job.recipe)))
                found += unfinished([job.recipe])
            else:  # begins at step 0, over metrics that are left: a run is made anew by deleting its result
                newest_step(job.recipe)
                found.append(job.recipe)
        except ValueError as error:
            raise ValueError(f"{job.name}: {error}; or delete {folder}, to make the run anew") from error
    return found


class _Collect:
    """The evaluation of trained runs, as a stage of the pool, and a callable that writes the results of runs that have
    ended; also estimates the time left."""

    def __init__(self, book: Book, todo: Sequence[Job], done: Results, folder: Path | None = None) -> None:
        self.left = {job.recipe.output_dir: job for job in todo}
        self.failed: dict[Path, str] = {}
        """Folder -> reason, of runs that failed; one that was trained and not evaluated keeps its checkpoints."""
        self._arms = book.study.arms
        self._folder = folder or book.results
        self._began: dict[Path, float] = {}
        self._expected = {arm: seconds_of(arm, book, done) for arm in dict.fromkeys(job.arm for job in todo)}
        self._took: dict[str, list[float]] = {}
        self._all = len(todo)

    def evaluate(self, recipe: Recipe, slot: Slot, lock: int) -> subprocess.Popen[bytes]:
        """Start the evaluation of a trained run, with a file of its folder as output."""
        run, job = recipe.output_dir, self.left[recipe.output_dir]
        how, file = self._arms[job.arm].evaluated, self._file(job)
        sweep_up(run)  # what an evaluation that was killed had linked
        file.unlink(missing_ok=True)
        say(f"{job.name}: trained; it is evaluated now")
        self._began[run] = time.monotonic()
        seed = recipe.seed if how.seed is None else how.seed
        words = ["eval", str(run), "--output", str(file), "--decoding", results.DECODING]
        words += ["--samples", str(how.samples), "--evaluation-seed", str(seed)]
        words += [] if how.play is None else ["--play", how.play]
        return start(words, recipe, slot, lock)

    def __call__(self, ended: Mapping[Path, str | None]) -> None:
        for folder in [folder for folder in self.left if folder in ended]:
            job, why = self.left[folder], ended[folder]
            if why is None:
                try:
                    self._took[job.arm] = [*self._took.get(job.arm, ()), self._keep(job)]
                except (ValueError, OSError, RuntimeError) as error:
                    why = one_line(error)
            if why is not None:
                self.failed[folder] = "trained, and could not be evaluated: " * (folder in self._began) + why
            del self.left[folder]
            said = self.failed.get(folder, "kept")
            say(f"{job.name}: {said}; {len(self.left)} of {self._all} left{self.time_left()}")

    def _file(self, job: Job) -> Path:
        """Return the file of the evaluation, of one decoding: the run's ``eval.json`` unless it is of another play."""
        play = self._arms[job.arm].evaluated.play
        return job.recipe.output_dir / ("eval.json" if play is None else f"eval-{play}.json")

    def _keep(self, job: Job) -> float:
        """Write the result of an evaluated run and remove its checkpoints; returns the seconds that the run took."""
        seconds = time.monotonic() - self._began[job.recipe.output_dir]
        found, how = read_json(self._file(job)), self._arms[job.arm].evaluated
        result = results.result_of(job.arm, job.recipe, how, found, seconds)
        results.write(result, results.result_file(self._folder, job.arm, job.recipe.seed, result.machine.processor))
        _remove_checkpoints(job.recipe.output_dir)
        return result.seconds

    def time_left(self) -> str:
        """Return the time left in words, as hours of one process; empty while no such run's time is known."""
        each = self._expected | {arm: fmean(seconds) for arm, seconds in self._took.items()}
        known = [second for job in self.left.values() if (second := each[job.arm]) is not None]
        if not known:
            return ""
        least = "at least " * (len(known) < len(self.left))
        return f", {least}{in_words(sum(known))} of one process by what such runs took"


def _measure_premises(book: Book, claims: Sequence[str]) -> list[str]:
    """Measure the premises of these claims on their start policies, where that has not been done; returns those for
    which it failed, which stops nothing else."""
    done, failed = premises(book), list[str]()
    for name in dict.fromkeys(name for id in claims for name in book.study.claims[id].premise):
        try:
            if name in done:
                _check_weights(book, name, done[name])
            else:
                _measure(book, name)
        except (ValueError, OSError, RuntimeError) as error:
            failed.append(f"premise {name}")
            say(f"failed: {failed[-1]}: {one_line(error)}")
    return failed


def _measure(book: Book, name: str) -> None:
    from coevolve.diagnose.premise import premise

    recipe = _recipe_of(book, name)
    pretrain(recipe)
    say(f"premise {name}: the start policies play")
    about = {"recipe": results.shared_settings(recipe), "weights": results.start_weights(recipe)}
    found = {**about, "processor": processor(), **plain(premise(recipe))}
    make_folder(book.results / _PREMISES)
    write_text(_premise_file(book, name), json.dumps(found, indent=1) + "\n")


def _check_weights(book: Book, name: str, measured: Mapping[str, Any]) -> None:
    """Raise ValueError if a premise was measured of other start weights than are here."""
    before, now = measured.get("weights", {}), results.start_weights(_recipe_of(book, name))
    here = measured.get("processor") == processor()  # another one pre-trains other weights
    known = {model: digest for model, digest in before.items() if here or not is_recipe(model)}
    if any(now.get(model, digest) != digest for model, digest in known.items()):
        file = _premise_file(book, name)
        raise ValueError(f"{file} is of other start weights than are here; bring those back, or delete it")


def _premise_file(book: Book, name: str) -> Path:
    return book.results / _PREMISES / f"{name}.json"


def _recipe_of(book: Book, premise: str) -> Recipe:
    found = book.study.premises[premise]
    return load_recipe(book.file.parent / found.recipe, found.overrides)


def seconds_of(arm: str, book: Book, kept: Results) -> float | None:
    """Return the mean seconds of the arm's runs, else of the most similar runs; None if there are no similar ones."""
    runs = [run for other in ([arm] if arm in kept else _similar(arm, book, kept)) for run in kept[other].values()]
    untrained = book.study.arms[arm].untrained
    return fmean(run.took.evaluation if untrained else run.seconds for run in runs) if runs else None


def _similar(arm: str, book: Book, kept: Results) -> list[str]:
    """Return the arms with the same models and the same recipe, else those on the same task, else on any task."""
    arms, asked = book.study.arms, book.first(arm)
    models = results.start_models(asked).keys()
    same = [other for other in kept if results.start_models(book.first(other)).keys() == models]
    return (
        [other for other in same if arms[other].recipe == arms[arm].recipe]
        or [other for other in same if book.first(other).task["name"] == asked.task["name"]]
        or same
    )


def in_words(seconds: float) -> str:
    """Return a duration as text: ``12 min``, ``3.4 h``."""
    return f"{seconds / _HOUR:.1f} h" if seconds >= _HOUR else f"{max(1, round(seconds / 60))} min"
