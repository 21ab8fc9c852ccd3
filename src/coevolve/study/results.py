"""The result of a run: a small JSON file, enough to decide claims and to tell whether a second run gives the same."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from coevolve.defaults import STEPS
from coevolve.files import read_json
from coevolve.models.names import is_recipe, is_to_pretrain, resolve
from coevolve.recipe.schema import Recipe
from coevolve.recipe.validate import validate
from coevolve.report.runs import Run, read
from coevolve.runs.durable import make_folder, write_text
from coevolve.runs.environment import differing, environment, lasting, processor, starts
from coevolve.runs.identity import FREE_KEYS

Number = float | None
Settings = dict[str, Any]
"""Keys and values of a recipe that differ from the defaults."""

MOST = 40
"""Most points of a curve; longer runs are kept as means of equally many steps, the last one of the steps left over."""

_CURVES = re.compile(
    r"reward|kl|objective|turns|length|eos_rate|distinct_2|reward/.+|turn/.+|parts/.+|agents/[^/]+/(kl|updates)"
)
_SUMMED = re.compile(r"turns|agents/[^/]+/updates")
_ROW = re.compile(
    r"weights|setting|role|policy|reward|reward_se|kl|length|eos_rate|distinct_2|parts/.+|best@\d+/reward"
)
_BEST = re.compile(r"best@(\d+)/reward")
_FREE_KEYS = FREE_KEYS | {"seed"}
_COMPUTES = re.compile(r"(src|recipes)/|study/.+\.yaml$")
"""Files of a checkout whose changes may change a result."""
_CURVE_DIGITS, _ROW_DIGITS, _DIGEST = 4, 6, 16
DECODING = "sampled"
"""The decoding of the evaluation, as ``coevolve eval`` calls it."""
_ONE_FOR_ALL = 0
"""The evaluation seed of results that do not record one."""


class Machine(BaseModel):
    """The machine of a run, on which its rounding depends. compute: the compute paths of its policies."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    processor: str
    compute: tuple[str, ...]
    threads: int


class Evaluated(BaseModel):
    """How a trained team was evaluated. samples: per held-out problem. play: the play, if not that of the training.
    seed: of the evaluation's random numbers; None is the run's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    samples: PositiveInt = 1
    play: str | None = None
    seed: NonNegativeInt | None = None


class Took(BaseModel):
    """Seconds of a run's training and evaluation, and when it finished (ISO 8601, UTC)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    training: NonNegativeFloat
    evaluation: NonNegativeFloat
    finished: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$")]


_OURS = "coevolve"


class Result(BaseModel):
    """The result of a finished run, one arm and seed. recipe: its settings that are not defaults. defaults: all
    settings of algorithm and play, those that the recipe leaves out too; weights: model -> digest of the start weights
    of its policies and of a pre-trained model that pays; both are unknown for results made up to 26 November 2026 (of
    what pays, 28 November). rows: of the evaluation, sampled decoding only. took: all that differs if the run is
    repeated."""

    model_config = ConfigDict(extra="forbid")

    arm: str
    seed: int
    recipe: dict[str, Any]
    defaults: dict[str, Any] = {}
    weights: dict[str, str] = {}
    evaluated: Evaluated
    machine: Machine
    versions: dict[str, str]
    commit: str
    curves: dict[str, list[Number]]
    problems: int
    rows: list[dict[str, str | Number]]
    took: Took

    @model_validator(mode="before")
    @classmethod
    def _evaluated(cls, tree: Any) -> Any:
        """Fill in ``evaluated`` for early results, from their rows: by the play of the training, with as many samples
        as the largest k of their ``best@k``. Up to 25 November 2026 every run was evaluated with the random numbers of
        one seed."""
        if not isinstance(tree, dict) or not isinstance(tree.get("rows"), list):
            return tree
        rows = [row for row in tree["rows"] if isinstance(row, dict)]
        best = [int(found[1]) for row in rows for key in row if (found := _BEST.fullmatch(key))]
        evaluated = tree.get("evaluated", {"samples": max(best, default=1)})
        return {**tree, "evaluated": {"seed": _ONE_FOR_ALL, **evaluated} if isinstance(evaluated, dict) else evaluated}

    @property
    def evaluation_seed(self) -> int:
        """The seed of the random numbers of its evaluation."""
        return self.seed if self.evaluated.seed is None else self.evaluated.seed

    @property
    def settings(self) -> Settings:
        """The settings that this result was made with: the recipe's, and those of the evaluation."""
        return settings(self.recipe, self.evaluated)

    @property
    def run(self) -> Run:
        """The run with a line for each point of its curves, each of about as many steps: a last point of fewer steps
        is merged with the one before."""
        curves, steps = self.curves, int(self.recipe.get("steps", STEPS))
        size, points = math.ceil(steps / MOST), len(curves["reward"])
        if points > 1 and 0 < (over := steps - size * (points - 1)) < size:
            curves = {key: [*kept[:-2], _joined(key, kept[-2:], (size, over))] for key, kept in curves.items()}
        count = len(curves["reward"])
        lines = [{"step": i, **{key: values[i] for key, values in curves.items()}} for i in range(count)]
        name = f"{self.arm}-{self.seed}"
        return Run(Path(name), name, {**self.recipe, "seed": self.seed}, lines)

    @property
    def libraries(self) -> dict[str, str]:
        """The versions that both runs of a pair must have in common: all but this package's own, since every release
        would make pairs impossible. ``--again`` tells whether a release changed a number."""
        return {name: version for name, version in self.versions.items() if name != _OURS}

    @property
    def seconds(self) -> float:
        """Seconds of training and evaluation."""
        return self.took.training + self.took.evaluation


Results = Mapping[str, Mapping[int, Result]]
"""Arm -> seed -> result, all made on one kind of processor."""

Everywhere = Mapping[str, Results]
"""Processor -> the results made on it. Only results of one kind of processor are compared with each other."""


def one_per_seed(everywhere: Everywhere, first: str | None = None) -> Results:
    """Return one result of each arm and seed: from the processor ``first`` if it has one, else from the processor with
    most seeds of the arm (the first by name, of several)."""
    found: dict[str, Mapping[int, Result]] = {}
    for arm in dict.fromkeys(arm for results in everywhere.values() for arm in results):
        made = {name: results[arm] for name, results in everywhere.items() if arm in results}
        seeds: dict[int, Result] = {}
        for name in sorted(made, key=lambda name: (name != first, -len(made[name]), name)):
            seeds = {**made[name], **seeds}
        found[arm] = dict(sorted(seeds.items()))
    return found


def settings(recipe: Settings, evaluated: Evaluated) -> Settings:
    """Return the settings that all results of an arm share: of training (``shared_settings``) and of evaluation."""
    return {**recipe, "evaluated": evaluated.model_dump()}


def shared_settings(recipe: Recipe) -> Settings:
    """Return the settings that all runs of an arm share: those that are not defaults, without the seed. Paths are
    relative to the current folder, a clone of the repository, so that they are the same on every machine."""
    found = recipe.model_dump(mode="json", exclude_defaults=True)
    kept: Settings = _from_here({key: value for key, value in found.items() if key not in _FREE_KEYS})
    return kept


def result_file(folder: Path, arm: str, seed: int, processor: str) -> Path:
    """Return the file of a result: ``<arm>/<processor>/<seed>.json``."""
    return folder / arm / _spelled(processor) / f"{seed}.json"


def result_of(arm: str, recipe: Recipe, evaluated: Evaluated, evaluation: Mapping[str, Any], seconds: float) -> Result:
    """Make the result of a finished run from its folder. evaluation: what ``coevolve eval`` wrote when asked for
    ``evaluated``. seconds: the time of the evaluation."""
    run, begun = read(recipe.output_dir), lasting(starts(recipe.output_dir))
    training = sum(float(line.get("time/step") or 0.0) for line in run.lines)
    return Result(
        arm=arm,
        seed=recipe.seed,
        recipe=shared_settings(recipe),
        defaults=begun[0].get("settings", {}),
        weights=start_weights(recipe),
        evaluated=evaluated,
        machine=_machine(begun),
        versions=versions_in(begun[0]),
        commit="; ".join(dict.fromkeys(map(commit_of, [*begun, environment()]))),
        curves=_thinned(run.lines),
        problems=evaluation["problems"],
        rows=[_kept(row) for row in evaluation["rows"] if row["decoding"] == DECODING],
        took=Took(
            training=round(training, 2),
            evaluation=round(seconds, 2),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
        ),
    )


def check_starts(folder: Path, defaults: Mapping[str, Any]) -> None:
    """Raise ValueError if any start of a run was on another kind of processor, or with other library versions or other
    settings of algorithm and play than these, now's: it must not be resumed or evaluated here."""
    here = environment()
    keys = ("processor", *(name for name in versions_in(here) if name != _OURS))
    for one in lasting(starts(folder)):
        if differ := differing(one, here, keys):
            raise ValueError(f"{folder} was begun where numbers round otherwise: {differ}")
        if one.get("settings") and (key := first_difference(one["settings"], defaults)):
            raise ValueError(f"{folder} was begun with other defaults: {key}")


def _machine(begun: Sequence[Mapping[str, Any]]) -> Machine:
    """Return the machine of a run that ``check_starts`` has accepted."""
    paths = {_path(name, one["device"]) for one in begun for name in one["compute"]["policies"].values()}
    return Machine(processor=processor(), compute=tuple(sorted(paths)), threads=begun[0]["compute"]["threads"])


def _path(about: str, card: str) -> str:
    """Return what computes a policy; where there is a GPU that it may be on, with the card's name and no number."""
    if card == "cpu" or about.startswith("cpu"):
        return about
    return f"{re.sub(r'cuda:[0-9]+', 'cuda', about)}, {card}"


def start_models(recipe: Recipe) -> dict[str, str]:
    """Return the models of a recipe's policies, as ``shared_settings`` names them -> as the recipe does."""
    models = sorted({spec.model for spec in recipe.policies.values() if getattr(spec, "model", None)})
    return {_from_here(model): model for model in models}


def start_weights(recipe: Recipe) -> dict[str, str]:
    """Return model -> digest of its weight files, for models of the policies and pre-trained ones of the task (of its
    rewards) that are here: not for one on a hub, nor for one that is still to be pre-trained. Models are named as by
    ``shared_settings``."""
    found = {}
    of_task = [value for value in recipe.task.values() if isinstance(value, str) and is_recipe(value)]
    for name, model in (start_models(recipe) | {_from_here(model): model for model in of_task}).items():
        if is_to_pretrain(model) or not isinstance(folder := resolve(model), Path):
            continue
        if files := sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]:
            found[name] = hashlib.sha256(b"".join(map(_digest, files))).hexdigest()[:_DIGEST]
    return found


def _digest(file: Path) -> bytes:
    now = file.stat()
    return _digest_of(file, now.st_size, now.st_mtime_ns)


@cache
def _digest_of(file: Path, size: int, changed: int) -> bytes:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()


def versions_in(about: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of Python and of the packages that decide the numbers. about: a recorded environment."""
    return {"python": about["python"], **about["versions"]}


def write(result: Result, file: Path) -> None:
    """Write a result to its JSON file."""
    make_folder(file.parent)
    tree = result.model_dump(mode="json")
    lines = [f" {json.dumps(key)}: {_laid_out(value)}" for key, value in tree.items()]
    write_text(file, "{\n" + ",\n".join(lines) + "\n}\n")


def load(file: Path, folder: Path, now: Settings) -> Result:
    """Load the result in a file. folder: of all results. now: the present settings of its arm (``settings``).

    Raises ValueError for a result that is not at its ``result_file`` or was made with other settings.
    """
    found = validate(Result, read_json(file), str(file))
    if file != (there := result_file(folder, found.arm, found.seed, found.machine.processor)):
        made = f"{found.arm}, seed {found.seed}, on {found.machine.processor}"
        raise ValueError(f"{file} is of {made}; move it to {there}")
    if key := differs(found.settings, now):
        if not differs(_by_name(found.settings), _by_name(now)):
            do = "start the command there (in a clone's root), or delete it"
            raise ValueError(f"{file} was made in another folder, or of another file: {key}; {do}")
        raise ValueError(f"{file} was made by other settings than {found.arm} has now: {key}; delete it to run it anew")
    return found


def other_defaults(found: Mapping[Path, Result]) -> str:
    """Return a message if two of an arm's results record different defaults of the package; empty if none do."""
    known = [(file, one.defaults) for file, one in found.items() if one.defaults]
    for file, defaults in known[1:]:
        if key := first_difference(known[0][1], defaults):
            return f"{known[0][0]} and {file} are of one arm under other defaults: {key}; delete those of one"
    return ""


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the first default that differs, with both values; empty if none does. A switch that only one side has, and
    that is off, is no difference."""
    was, now = _flat(old), _flat(new)
    either = ((was, now), (now, was))
    off = {key for one, other in either for key, value in one.items() if key not in other and value is False}
    return differs(*({key: value for key, value in one.items() if key not in off} for one in (was, now)))


def other_weights(found: Sequence[Result]) -> str:
    """Return the first model whose recorded start weights differ between these results; empty if none do."""
    return _differing([one.weights for one in found])


def other_libraries(found: Sequence[Result]) -> str:
    """Return the first library whose recorded versions differ between these results; empty if none do. The numba of
    results from before 29 November 2026 is not recorded."""
    return _differing([one.libraries for one in found])


def _differing(found: Sequence[Mapping[str, str]]) -> str:
    """Return the first key that has different values in the mappings that have it; empty if there is none."""
    for key in dict.fromkeys(key for one in found for key in one):
        if len({one[key] for one in found if key in one}) > 1:
            return key
    return ""


def differences(kept: Result, anew: Result) -> list[str]:
    """Return the dotted keys in which a kept result and the same run made anew differ, apart from times, the commit,
    what only one of them records (defaults, a model's weights, a package's version), and ``unkept`` metrics."""
    left_out = {"took", "commit", "weights", "versions"}
    left_out |= {"defaults"} if not (kept.defaults and anew.defaults) else set()
    weights, versions = kept.weights.keys() & anew.weights.keys(), kept.versions.keys() & anew.versions.keys()
    first, second = (
        _flat(result.model_dump(mode="json", exclude=left_out))
        | {f"weights.{model}": result.weights[model] for model in sorted(weights)}
        | {f"versions.{name}": result.versions[name] for name in sorted(versions)}
        for result in (kept, _as_kept(kept, anew))
    )
    return [key for key in dict.fromkeys((*first, *second)) if first.get(key) != second.get(key)]


def unkept(kept: Result, anew: Result) -> list[str]:
    """Return the metrics of a run made anew that its kept result does not have: those that are measured since."""
    rows = zip(kept.rows, anew.rows, strict=False)
    found = [key for key in anew.curves if key not in kept.curves]
    return list(dict.fromkeys(found + [key for old, new in rows for key in new if key not in old]))


def _as_kept(kept: Result, anew: Result) -> Result:
    """Return the run made anew without its ``unkept`` metrics."""
    many = len(kept.rows)
    rows = [{key: row[key] for key in row if key in old} for old, row in zip(kept.rows, anew.rows, strict=False)]
    curves = {key: points for key, points in anew.curves.items() if key in kept.curves}
    return anew.model_copy(update={"curves": curves, "rows": rows + anew.rows[many:]})


def _spelled(processor: str) -> str:
    """Return a processor's name as the name of a folder: ``amd-epyc-family-26-model-2``."""
    return "-".join(re.findall(r"[a-z0-9]+", re.sub(r"\((r|tm)\)", "", processor.lower())))


def commit_of(start: Mapping[str, Any]) -> str:
    """Return the git commit of a start of a run, marked if files that may change a result had uncommitted changes."""
    commit = str(start["git_commit"])
    changed = any(_COMPUTES.match(file) for file in start.get("git_changes", ()))
    return f"{commit}, with changes" if changed else commit


def _thinned(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[Number]]:
    """Return metric -> its points: means (for counts: sums) of equally many steps each, at most ``MOST`` points."""
    size = math.ceil(len(lines) / MOST)
    chunks = [lines[i : i + size] for i in range(0, len(lines), size)]
    keys = dict.fromkeys(key for line in lines for key in line if _CURVES.fullmatch(key))
    return {key: [_point(key, chunk) for chunk in chunks] for key in keys}


def _point(key: str, chunk: Sequence[Mapping[str, Any]]) -> Number:
    known = [float(line[key]) for line in chunk if line.get(key) is not None]
    if not known:
        return None
    return sum(known) if _SUMMED.fullmatch(key) else _rounded(fmean(known), _CURVE_DIGITS)


def _joined(key: str, points: Sequence[Number], steps: Sequence[int]) -> Number:
    """Return two points of a curve as one point over all their steps."""
    known = [(point, count) for point, count in zip(points, steps, strict=True) if point is not None]
    if not known:
        return None
    if _SUMMED.fullmatch(key):
        return sum(point for point, _ in known)
    return sum(point * count for point, count in known) / sum(count for _, count in known)


def _kept(row: Mapping[str, Any]) -> dict[str, str | Number]:
    return {
        key: _rounded(value, _ROW_DIGITS) if isinstance(value, float) else value
        for key, value in row.items()
        if _ROW.fullmatch(key)
    }


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def differs(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the first key in which settings differ, with both values; empty if none does."""
    was, now = (_flat(one) | _order(one) for one in (old, new))
    for key in dict.fromkeys((*was, *now)):
        if was.get(key) != now.get(key):
            return f"{key} is {was.get(key, 'left out')!r} there and {now.get(key, 'left out')!r} here"
    return ""


def _by_name(tree: Any) -> Any:
    """Return the settings with every path cut down to its file's name."""
    if isinstance(tree, Mapping):
        return {key: _by_name(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_by_name(value) for value in tree]
    return os.path.basename(tree) if isinstance(tree, str) else tree


def _order(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the order of the roles, in which a chain speaks, if there are any; mappings are equal in any order."""
    roles = settings.get("roles")
    return {"the order of roles": list(roles)} if isinstance(roles, Mapping) else {}


def _from_here(tree: Any) -> Any:
    """Return the settings with every path below the current folder made relative to it."""
    if isinstance(tree, Mapping):
        return {key: _from_here(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_from_here(value) for value in tree]
    return tree.removeprefix(f"{Path.cwd()}{os.sep}") if isinstance(tree, str) else tree


def _flat(tree: Any, before: str = "") -> dict[str, Any]:
    """Flatten nested mappings and lists to one mapping with dotted keys."""
    inner = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    found: dict[str, Any] = {}
    for key, value in inner:
        deep = isinstance(value, Mapping | list | tuple)
        found |= _flat(value, f"{before}{key}.") if deep and value else {f"{before}{key}": value}
    return found


def _laid_out(value: Any) -> str:
    """Return JSON with a line for each curve and each row, so that diffs are readable."""
    if isinstance(value, dict) and any(isinstance(inner, list | dict) for inner in value.values()):
        return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(inner)}" for key, inner in value.items()) + "\n }"
    if isinstance(value, list):
        return "[\n" + ",\n".join(f"  {json.dumps(inner)}" for inner in value) + "\n ]"
    return json.dumps(value)
