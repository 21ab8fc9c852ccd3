"""The recipe: its schema, how a file becomes one, and how one becomes a Trainer.

A recipe may begin with ``base: other.yaml`` (one level, relative to the recipe): its keys then override the base's, one
by one. ``key: null`` removes a key of the base; a component of another name replaces the base's with all its settings.
The name of a file (``.yaml``, ``.txt``, a table as in ``tasks.tables``, or ``file.py:Name``) is relative to the recipe
that it stands in; in a list only ``file.py:Name`` is. Where a base or a model names a recipe file that does not exist,
the packaged recipe of that name is meant, if there is one.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from coevolve import defaults
from coevolve.algorithms import ALGORITHMS
from coevolve.cast import CASTS
from coevolve.checks import ALL_FROZEN, GREEDY, check_engine, check_idle
from coevolve.engines import ENGINES, FOR_FROZEN, SERVERS
from coevolve.engines.one_server import check_one_server
from coevolve.faults import blame
from coevolve.files import cut, shown
from coevolve.interfaces import Engine, Learner, Task
from coevolve.learners import LEARNERS
from coevolve.models import names as models
from coevolve.models.spec import LoraSpec, PolicySpec, RecipePolicy, asked_of
from coevolve.names import check_names, check_run_name
from coevolve.plays import PLAYS
from coevolve.recipe.components import resolve
from coevolve.recipe.inputs import apply_overrides, did_you_mean, load_yaml, validate
from coevolve.recipe.packaged import beside, located, packaged
from coevolve.runs.identity import flat
from coevolve.runs.signature import ROWS, rows_in
from coevolve.settings import Count, CountFromZero, Folder, Workers
from coevolve.tasks import TASKS
from coevolve.tasks.roles import check_prompts
from coevolve.types import Algorithm, Cast, Play, PolicyName, Role, Sampling

if TYPE_CHECKING:
    from coevolve.trainer import Trainer

_COMPONENTS = ("task", "play", "cast", "algorithm", "engine", "learner")
_NUMBERS = ("sampling", "steps", "batch_size", "members", "seed", "reset_every", "workers", "threads")
"""Keys that have the same name in a recipe and as arguments of ``Trainer``."""

_A_FILE = re.compile(r"[^:{}\n]+(\.ya?ml|\.jsonl(\.gz)?|\.json|\.[ct]sv|\.parquet|\.txt|\.py:\w+)$")


def names_file(value: Any, folder: Path = Path()) -> bool:
    """Return whether a value is the name of a file.

    A value with blanks counts as a sentence, unless the file exists or the path is absolute. The folders of an absolute
    path may have any names."""
    if not isinstance(value, str) or "\n" in value:
        return False
    file = os.path.expanduser(value)
    absolute = os.path.isabs(file)
    if not _A_FILE.fullmatch(os.path.basename(file) if absolute else value):
        return False
    return absolute or not re.search(r"\s", value) or os.path.isfile(folder / (file.rpartition(":")[0] or file))


Component = dict[str, Any]
"""The ``name`` and settings of a registered factory, or of the user's own ``file.py:Name``."""


class StrictSampling(Sampling):
    """``Sampling`` in which an unknown key is an error."""

    __pydantic_config__ = ConfigDict(extra="forbid")


def _listed(trackers: Any) -> Any:
    """Return trackers' names as a list, each once and without ``none``; any other value unchanged."""
    named = [trackers] if isinstance(trackers, str) else trackers
    is_list = isinstance(named, list) and all(isinstance(name, str) for name in named)
    return [name for name in dict.fromkeys(named) if name != "none"] if is_list else named


def _with_models(policies: Any) -> Any:
    """Return the policies. Raises ValueError for one without a model: often the name of another, typed wrongly."""
    given = policies if isinstance(policies, Mapping) else {}
    bare = [name for name, one in given.items() if isinstance(one, Mapping) and "model" not in one]
    named = [name for name in given if name not in bare]
    if bare and named:
        raise ValueError(f"{bare[0]} has no model; policies with one: {', '.join(named)}{did_you_mean(bare[0], named)}")
    return policies


class Recipe(BaseModel):
    """One experiment. All keys but ``task``, ``play``, ``roles``, ``policies`` and ``algorithm`` have defaults."""

    model_config = ConfigDict(extra="forbid")

    task: Component
    """The problems, prompts and rewards."""
    play: Component
    """Who speaks when, and hears whom."""
    roles: dict[Role, PolicyName] = Field(min_length=1)
    """The policy that plays each role at step 0; a ``chain`` speaks in the order of the roles."""
    cast: Component = {"name": "fixed"}
    """How the policies of the roles change from step to step."""
    policies: Annotated[dict[PolicyName, RecipePolicy], BeforeValidator(_with_models)] = Field(min_length=1)
    """The models, and how each is trained."""
    algorithm: Component
    """How turns are credited, compared and learnt from."""
    engine: Component | None = None
    """The engine of policies that have none of their own; the local engine if left out."""
    learner: Component | None = None
    """The kind of learner, of which every policy gets one; those of ``learners.build`` if left out."""
    sampling: StrictSampling = StrictSampling(**asdict(defaults.SAMPLING))
    """How turns are sampled in training. Left out, a step's turns have at most a length drawn from 4 to 16 tokens."""
    output_dir: Folder
    """The run's folder."""
    seed: CountFromZero = defaults.SEED
    """Names all random numbers: the same seed gives the same run."""
    steps: Count = defaults.STEPS
    """Steps of the whole run; a step samples, rewards and updates once."""
    batch_size: Count = defaults.BATCH_SIZE
    """Problems a step."""
    members: Count = defaults.MEMBERS
    """Episodes of each problem in a step: the group of group-relative algorithms."""
    reset_every: Count | None = defaults.RESET_EVERY
    """Steps after which optimisers, KL weights and random numbers begin anew, a control of CORY's (``Trainer``)."""
    save_every: Count = defaults.SAVE_EVERY
    """Steps between checkpoints."""
    keep_last: Count = defaults.KEEP_LAST
    """Number of newest checkpoints that are kept."""
    samples: CountFromZero = defaults.SAMPLES
    """Problems a step whose episodes are written to the run, and held-out ones played at the start and checkpoints."""
    report_to: Annotated[list[str], BeforeValidator(_listed)] = []
    """Names of trackers (tensorboard, wandb, trackio, mlflow); a single one, or `none`, need not be a list."""
    callbacks: list[Component] = []
    """Callbacks of the user's own, `file.py:Name`, called at the events of a training."""
    threads: Count | None = None
    """Threads of torch in this process. None: one where the compiled loops compute (their large matrix products use as
    many as torch has by default), torch's default otherwise."""
    workers: Workers = defaults.WORKERS
    """Whether policies on the CPU compute in worker processes, one per core; "auto": where this is faster."""

    @model_validator(mode="after")
    def _roles_match_policies(self) -> Recipe:
        check_run_name(self.output_dir.absolute().name)
        check_roles(self.roles, self.policies)
        if self.learner is not None and (self.threads is not None or self.workers is True):
            raise ValueError("threads and workers are for learners of ours, and `learner` names another; remove them")
        critics = _critics(self.algorithm)
        for name, key in critics.items():
            if name not in self.policies:
                near = did_you_mean(name, self.policies)
                raise ValueError(f"algorithm.{key} names the policy {name!r}, which `policies` does not have{near}")
        if str(self.algorithm.get("name")) in ALGORITHMS:  # another algorithm may train a policy that never speaks
            check_idle(self.policies, [*self.roles.values(), *critics], "`roles`")
        return self

    @property
    def engines(self) -> list[Component]:
        """The engines that the recipe names: the team's and those of single policies."""
        return [one for one in (self.engine, *(spec.engine for spec in self.policies.values())) if one]

    def engine_of(self, spec: RecipePolicy) -> Component:
        """Return the name and settings of the engine that samples a policy: its own, the recipe's, or the local one."""
        return spec.engine or self.engine or {"name": "local"}

    @property
    def silent(self) -> set[PolicyName]:
        """The critics and the judge that play no role: they never speak, so they are published to no server."""
        return _critics(self.algorithm).keys() - self.roles.values()

    @property
    def filled_servers(self) -> set[str]:
        """The addresses of servers that get full weights, of which each holds one set: of one run at a time."""
        full = [spec for name, spec in self.policies.items() if name not in self.silent and spec.weights == "full"]
        engines = map(self.engine_of, full)
        return {str(engine["url"]).rstrip("/") for engine in engines if engine.get("url")}

    def record(self) -> dict[str, Any]:
        """Return the recipe as plain data, as a run directory keeps it and ``load_recipe`` reads it back."""
        return self.model_dump(mode="json")


def _critics(algorithm: Component) -> dict[PolicyName, str]:
    """Return the policies that an algorithm names as critics or judge, with the key that names each.

    They need not play a role.
    """
    if str(algorithm.get("name")) not in ALGORITHMS:
        return {}  # in a user's own algorithm a setting of that name may mean anything
    critic = algorithm.get("critic")
    named = [*(critic.values() if isinstance(critic, Mapping) else [critic]), algorithm.get("judge")]
    keys = ["critic"] * (len(named) - 1) + ["judge"]
    return {name: key for name, key in zip(named, keys, strict=True) if isinstance(name, str)}


def check_roles(roles: Mapping[Role, PolicyName], policies: Iterable[PolicyName]) -> None:
    """Raise ValueError for invalid names, and for a role whose policy does not exist, naming both."""
    check_names("policies", policies)
    check_names("roles", roles)
    for role, policy in roles.items():
        if policy not in policies:
            near = did_you_mean(policy, policies)
            raise ValueError(f"roles.{role} names the policy {policy!r}, which `policies` does not have{near}")


@dataclass(frozen=True)
class Parts:
    """The checked components of a recipe: the algorithm, and functions that build the others."""

    task: Callable[[], Task]
    play: Callable[[], Play]
    cast: Callable[[], Cast]
    algorithm: Algorithm
    engine: Callable[[], Engine | None]
    learners: Mapping[PolicyName, Callable[[], Learner]]
    """Learners of the policies that ``learners.build`` does not make: of the recipe's own kind, or for weights that
    only the policy's engine has."""
    callbacks: Sequence[Callable[[], Any]]


def load_recipe(path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe, its base and the ``key.sub=value`` overrides. Raises a one-line ValueError for any mistake."""
    path, overrides, full = located(path), list(overrides), list[str]()
    trees = [_over_its_base(path, _read(path))]
    # One by one: `algorithm.eta=1` may set a key of what `algorithm=cory` named.
    for override in overrides:
        full.append(_in_full(override, trees[-1]))
        trees.append(_spelt_out(apply_overrides(trees[-1], full[-1:]), Path.cwd()))
        _check_undone(full, trees[-2], trees[-1])
    try:
        return _valid(path, trees[-1])
    except ValueError as error:
        at_fault = [_mistake(path, tree) for tree in trees].index(str(error))
        if not at_fault:
            raise
        said = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"override {shown(overrides[at_fault - 1])}: {said}") from error


def _in_full(override: str, tree: Mapping[str, Any]) -> str:
    """Return the override, or what ``cluster=ADDRESS`` is short for. tree: the recipe before it."""
    key, equals, address = override.partition("=")
    if key.strip() != "cluster" or not equals:
        return override
    if not tree.get("learner"):
        raise ValueError(
            f"override {shown(override)}: no ranks that a cluster could place; say how many each policy has, before it "
            f"or with it: 'learner={{name: fsdp, ranks: 2, cluster: ADDRESS}}'"
        )
    return f"learner.cluster={address}"


def _check_undone(overrides: Sequence[str], before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ValueError if the last override takes away what an earlier one has set. before, now: the recipe, without
    and with the last one."""
    last, gone = _path_of(overrides[-1]), flat(before).keys() - flat(now).keys()
    for other in overrides[:-1]:
        path = _path_of(other)
        if len(path) > len(last) and any(_below(key, path) and _below(key, last) for key in gone):
            raise ValueError(
                f"override {shown(overrides[-1])}: it replaces all of {'.'.join(last)}, also what {other} set before; "
                "leave one of them out, or say it with what it replaces: key={name: ..., key: value}"
            )


def _path_of(override: str) -> list[str]:
    return override.partition("=")[0].strip().split(".")


def _below(key: str, path: Sequence[str]) -> bool:
    """Return whether a dotted key is at this path, in which * is any one, or below it."""
    parts = key.split(".")
    return len(parts) >= len(path) and all(one in ("*", part) for one, part in zip(path, parts, strict=False))


def _mistake(path: Path, tree: Mapping[str, Any]) -> str:
    """Return what is wrong with the tree of a recipe; empty if nothing is."""
    try:
        _valid(path, tree)
    except ValueError as error:
        return str(error)
    return ""


def _valid(path: Path, tree: Mapping[str, Any]) -> Recipe:
    tree = dict(tree)
    if "kind" in tree and "roles" not in tree:
        raise ValueError(f"{path}: a recipe with `kind` is for `coevolve pretrain`; the recipe of a team has `roles`")
    if tree.get("output_dir") is None:
        tree["output_dir"] = f"runs/{path.stem}-{tree.get('seed', defaults.SEED)}"
    return validate(Recipe, tree, str(path), _places)


def _places(siblings: Mapping[str, Callable[..., Any]] | None = None) -> dict[str, str]:
    """Return setting -> whose it is and where it stands, for one that stands in another place of a recipe.

    siblings: the components of the kind that was given it, of which another one may have it.
    """
    several: dict[str, Iterable[str]] = {
        "a learner: learner.{0}": _settings(LEARNERS),
        "a policy's lora: policies.*.lora.{0} for all, policies.NAME.lora.{0} for one": LoraSpec.__dataclass_fields__,
        "an algorithm: algorithm.{0}": _settings(ALGORITHMS),
        "sampling: sampling.{0}": Sampling.__dataclass_fields__,
        "a policy: policies.*.{0} for all, policies.NAME.{0} for one": RecipePolicy.__dataclass_fields__,
        "the recipe: {0}, with nothing before it": Recipe.model_fields,
        "the command: --{0}": ["resume"],
    }
    theirs = _settings(siblings or {})
    return {name: where.format(name) for where, names in several.items() for name in names if name not in theirs}


def _settings(registry: Mapping[str, Callable[..., Any]]) -> set[str]:
    return {name for made in registry.values() for name in inspect.signature(made).parameters}


def parts(recipe: Recipe) -> Parts:
    """Check every component's name and settings; calling a component builds it. Raises ValueError naming the key."""
    # Built now: it has components of its own to check, and a function of the user's own may return anything.
    algorithm: Any = resolve(recipe.algorithm, ALGORITHMS, "algorithm", partial(_places, ALGORITHMS))()
    if not isinstance(algorithm, Algorithm):
        made = f"algorithm {recipe.algorithm['name']} returned {shown(algorithm)}"
        raise ValueError(f"{made}; want an Algorithm, such as replace(magrpo(), ...)")
    return Parts(
        task=resolve(recipe.task, TASKS, "task", partial(_places, TASKS)),
        play=resolve(recipe.play, PLAYS, "play", partial(_places, PLAYS)),
        cast=resolve(recipe.cast, CASTS, "cast", partial(_places, CASTS), roles=recipe.roles),
        algorithm=algorithm,
        engine=_engine(recipe),
        learners=_learners(recipe, algorithm),
        callbacks=[resolve(one, {}, "callbacks") for one in recipe.callbacks],
    )


def _engine(recipe: Recipe) -> Callable[[], Engine | None]:
    """Return a function that builds the engine: one, or a routed engine where policies have engines of their own.

    Policies with the same engine settings and model share one engine, but not policies with full weights, of which a
    server holds one set. All others share the recipe's engine."""
    _check_servers(recipe)
    others = resolve(recipe.engine, ENGINES, "engine", partial(_places, ENGINES)) if recipe.engine is not None else None
    makers: dict[str, Callable[[], Engine]] = {}
    whose: dict[PolicyName, str] = {}
    for name, spec in recipe.policies.items():
        if spec.engine is not None:
            alone = name if spec.weights == "full" else None
            whose[name] = json.dumps([spec.engine, spec.model, alone], sort_keys=True, default=str)
            makers.setdefault(
                whose[name], resolve(spec.engine, ENGINES, f"policies.{name}.engine", partial(_places, ENGINES))
            )
    if not whose:
        return others if others is not None else lambda: None

    def made() -> Engine:
        from coevolve.engines.routed import RoutedEngine

        with ExitStack() as started:  # closed again if a later engine fails
            engines = {}
            for key, make in {"": others or ENGINES["local"], **makers}.items():
                engines[key] = make()
                started.callback(_close, engines[key])
                check_engine(engines[key])
            started.pop_all()
        rest = engines.pop("")
        return RoutedEngine({name: engines[key] for name, key in whose.items()}, rest)

    return made


def _check_servers(recipe: Recipe) -> None:
    """Raise ValueError for policies that one server cannot sample: those of the recipe's engine or of one address."""
    teams: dict[str, dict[PolicyName, RecipePolicy]] = {}
    takers = set[str]()
    for name, spec in recipe.policies.items():
        engine = recipe.engine_of(spec)
        if engine["name"] in SERVERS and name not in recipe.silent:
            place = str(engine.get("url") or (name if spec.engine else "")).rstrip("/").removesuffix("/v1")
            teams.setdefault(place, {})[name] = spec
            takers |= {place} if engine["name"] not in FOR_FROZEN else set()
    for place, team in teams.items():
        # Engines of frozen policies' own may name several models of one OpenAI-compatible server.
        if place in takers or all(spec.engine is None for spec in team.values()):
            check_one_server(team, takes=place in takers)


def check_taught(recipe: Recipe) -> None:
    """Raise ValueError if no policy can learn, or naming the first policy that cannot because of its engine."""
    if recipe.sampling.temperature == 0:
        raise ValueError(GREEDY)
    if all(spec.weights == "frozen" for spec in recipe.policies.values()):
        raise ValueError(ALL_FROZEN)
    for name, spec in recipe.policies.items():
        engine = recipe.engine_of(spec)
        if engine["name"] in FOR_FROZEN and spec.weights != "frozen":
            raise ValueError(
                f"policies.{name}: the engine {engine['name']} gives no log-probabilities and takes no weights, so "
                f"nobody learns from what it samples; say policies.{name}.weights: frozen, or choose another engine"
            )


def _learners(recipe: Recipe, algorithm: Algorithm) -> Mapping[PolicyName, Callable[[], Learner]]:
    """Return functions that build learners: of the recipe's ``learner`` for every policy or, without one, a learner
    without weights for each policy whose weights only its engine has."""
    if recipe.learner is None:
        return {name: partial(_elsewhere, recipe, name) for name, spec in recipe.policies.items() if spec.elsewhere}
    needs = {"reference": algorithm.reference, "steps": recipe.steps, "seed": recipe.seed}
    return {
        name: resolve(
            recipe.learner, LEARNERS, "learner", name=name, spec=spec, critic=algorithm.has_critic(name), **needs
        )
        for name, spec in recipe.policies.items()
    }


def _elsewhere(recipe: Recipe, name: PolicyName) -> Learner:
    from coevolve.learners.elsewhere import FrozenElsewhere  # imports torch

    spec = recipe.policies[name]
    # The local engine that loads it does not know `threads` and by itself would choose the backend of one thread.
    return FrozenElsewhere(name, replace(spec, compute=asked_of(spec.compute, recipe.threads)))


def check(recipe: Recipe) -> Parts:
    """Check the components (``parts``) and the policies, as far as this works without importing torch."""
    made = parts(recipe)
    for name, spec in recipe.policies.items():
        asked_of(spec.compute, recipe.threads)
        if spec.weights == "lora" and not spec.elsewhere and find_spec("peft") is None:
            raise ValueError(f"policies.{name}.weights: lora needs the package peft; install coevolve[lora]")
        if not (models.is_recipe(spec.model) and Path(spec.model).is_file()):  # a recipe that will be pre-trained
            models.resolve(spec.model)
    return made


def pretrain(recipe: Recipe) -> None:
    """Run the pre-training recipes that policies and the task name as models, unless they have been run."""
    for name in _named(recipe):
        if models.is_recipe(name) and Path(name).is_file():
            from coevolve.pretrain.run import main  # slow to import, and seldom needed

            main(Path(name), [], resume=True)


def to_pretrain(recipe: Recipe) -> list[str]:
    """Return the pre-training recipes that policies and the task name as models and that have not been run here."""
    return [name for name in _named(recipe) if models.is_to_pretrain(name)]


def _named(recipe: Recipe) -> list[str]:
    """Return the models of the policies, and all texts of the task, which may be models too, each once."""
    texts = [value for value in recipe.task.values() if isinstance(value, str)]
    return list(dict.fromkeys([*(spec.model for spec in recipe.policies.values()), *texts]))


def build(recipe: Recipe) -> Trainer:
    """Build a recipe's trainer; its models are pre-trained and loaded. Raises ValueError naming the key or file."""
    made = check(recipe)
    pretrain(recipe)
    with blame("play"):
        play = made.play()
    with blame("task"):
        task = made.task()
        check_prompts(task, recipe.roles)
    from coevolve.trainer import Trainer  # imports torch, so after all checks that do without

    numbers = {key: getattr(recipe, key) for key in _NUMBERS}
    with ExitStack() as started:  # closed again if a later part fails
        policies: dict[PolicyName, PolicySpec | Learner] = dict(recipe.policies)
        for name, make in made.learners.items():
            with blame(f"learner of policy {name!r}"):
                policies[name] = learner = make()
            started.callback(_close, learner)
        with blame("engine"):
            engine = made.engine()
        if engine is not None:
            started.callback(_close, engine)
        with blame("callbacks"):
            callbacks = [make() for make in made.callbacks]
        with blame("cast"):
            cast = made.cast()
        trainer = Trainer(
            task=task,
            play=play,
            cast=cast,
            policies=policies,
            algorithm=made.algorithm,
            engine=engine,
            callbacks=callbacks,
            **numbers,
        )
        started.pop_all()
    return trainer


def _close(part: Learner | Engine) -> None:
    """Close a learner or engine, if it has a ``close``; the trainer reports those that have none."""
    if hasattr(part, "close"):
        part.close()


def _read(path: Path) -> dict[str, Any]:
    return _spelt_out(load_yaml(path), path.parent)


def _over_its_base(path: Path, tree: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe of this path with its base, if it names one, filled in below it."""
    if "base" not in tree:
        return tree
    over = {key: value for key, value in tree.items() if key != "base"}
    if not isinstance(tree["base"], str):
        raise ValueError(f"{path}: base is {shown(tree['base'])}; want the path of another recipe")
    base = beside(tree["base"], path.parent)
    if not os.path.isfile(base):
        known = {one.name for one in (*path.parent.glob("*.yaml"), *packaged().values())} - {path.name}
        near = did_you_mean(cut(tree["base"]), sorted(known))
        raise ValueError(f"{path}: its base {cut(tree['base'])} is not there, nor a recipe of the package{near}")
    below = _read(base)
    if "base" in below:
        raise ValueError(f"{path}: its base {base} has a base itself; one level is the limit")
    return _laid_over(below, over)


def _spelt_out(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the recipe with short forms expanded (``play: chain``, ``ann: coevolve-tiny``) and files ``anchored``."""
    tree = dict(tree)
    for key in _COMPONENTS:
        if key in tree:
            tree[key] = _component({"name": tree[key]} if isinstance(tree[key], str) else tree[key], folder)
    if isinstance(tree.get("callbacks"), list):
        named = [{"name": one} if isinstance(one, str) else one for one in tree["callbacks"]]
        tree["callbacks"] = [anchored(one, folder) for one in named]
    if isinstance(tree.get("policies"), Mapping):
        policies = {n: {"model": p} if isinstance(p, str) else p for n, p in tree["policies"].items()}
        policies = {n: _with_engine(p) if isinstance(p, Mapping) else p for n, p in policies.items()}
        tree["policies"] = anchored(policies, folder)
    return tree


def _component(settings: Any, folder: Path) -> Any:
    """Return a component's settings, ``anchored`` but for rows. A recipe over a base may leave the name to the base."""
    if not isinstance(settings, Mapping):
        return anchored(settings, folder)
    return {**anchored(settings, folder), **rows_in({"name": ROWS, **settings})}


def _with_engine(policy: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**policy, "engine": {"name": policy["engine"]}} if isinstance(policy.get("engine"), str) else policy


def anchored(value: Any, folder: Path) -> Any:
    """Return the settings with the names of files made absolute, relative names from this folder.

    Of a list's items only ``file.py:Name`` and mappings are: other words may be those of a command.
    """
    if isinstance(value, Mapping):
        return {key: anchored(inner, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [anchored(one, folder) if isinstance(one, Mapping) or is_code(one, folder) else one for one in value]
    if names_file(value, folder):
        return str(beside(value, folder))
    return value


def is_code(value: Any, folder: Path = Path()) -> bool:
    """Return whether a value is ``file.py:Name``."""
    return ".py:" in os.path.basename(str(value)) and names_file(value, folder)


def _laid_over(base: Mapping[str, Any], over: Mapping[str, Any], component: bool = False) -> dict[str, Any]:
    if component and over.get("name", base.get("name")) != base.get("name"):
        return dict(over)
    result = dict(base)
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            result[key] = _laid_over(base[key], value, key not in ("roles", "policies"))  # whose keys are free names
        else:
            result[key] = value
    return result
