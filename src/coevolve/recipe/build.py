"""How a recipe becomes a Trainer: its components, checked before anything is loaded, and then built."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve import checks
from coevolve.algorithms import ALGORITHMS
from coevolve.cast import CASTS
from coevolve.engines import ENGINES, FOR_FROZEN, SERVERS
from coevolve.engines.one_server import check_one_server
from coevolve.faults import blame
from coevolve.files import shown
from coevolve.interfaces import Engine, Learner, Task
from coevolve.learners import LEARNERS
from coevolve.models import names as models
from coevolve.models.spec import PolicySpec, RecipePolicy, asked_of
from coevolve.names import server_of
from coevolve.plays import PLAYS
from coevolve.recipe.components import resolve
from coevolve.recipe.read import places
from coevolve.recipe.schema import Recipe
from coevolve.tasks import TASKS
from coevolve.tasks.roles import check_prompts
from coevolve.types import Algorithm, Cast, Play, PolicyName

if TYPE_CHECKING:
    from coevolve.trainer import Trainer

_NUMBERS = ("sampling", "steps", "batch_size", "members", "seed", "reset_every", "workers", "threads")
"""Keys that have the same name in a recipe and as arguments of ``Trainer``."""


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


def parts(recipe: Recipe) -> Parts:
    """Check every component's name and settings; calling a component builds it. Raises ValueError naming the key."""
    # Built now: it has components of its own to check, and a function of the user's own may return anything.
    algorithm: Any = resolve(recipe.algorithm, ALGORITHMS, "algorithm", partial(places, ALGORITHMS))()
    if not isinstance(algorithm, Algorithm):
        made = f"algorithm {recipe.algorithm['name']} returned {shown(algorithm)}"
        raise ValueError(f"{made}; want an Algorithm, such as replace(magrpo(), ...)")
    return Parts(
        task=resolve(recipe.task, TASKS, "task", partial(places, TASKS)),
        play=resolve(recipe.play, PLAYS, "play", partial(places, PLAYS)),
        cast=resolve(recipe.cast, CASTS, "cast", partial(places, CASTS), roles=recipe.roles),
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
    others = resolve(recipe.engine, ENGINES, "engine", partial(places, ENGINES)) if recipe.engine is not None else None
    makers: dict[str, Callable[[], Engine]] = {}
    whose: dict[PolicyName, str] = {}
    for name, spec in recipe.policies.items():
        if spec.engine is not None:
            alone = name if spec.weights == "full" else None
            whose[name] = json.dumps([spec.engine, spec.model, alone], sort_keys=True, default=str)
            makers.setdefault(
                whose[name], resolve(spec.engine, ENGINES, f"policies.{name}.engine", partial(places, ENGINES))
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
                checks.check_engine(engines[key])
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
            place = server_of(str(engine.get("url") or (name if spec.engine else "")))
            teams.setdefault(place, {})[name] = spec
            takers |= {place} if engine["name"] not in FOR_FROZEN else set()
    for place, team in teams.items():
        # Engines of frozen policies' own may name several models of one OpenAI-compatible server.
        if place in takers or all(spec.engine is None for spec in team.values()):
            check_one_server(team, takes=place in takers)


def check_taught(recipe: Recipe) -> None:
    """Raise ValueError if no policy can learn, or naming the first policy that cannot because of its engine."""
    checks.check_taught(recipe.policies, recipe.sampling)
    for name, spec in recipe.policies.items():
        engine = recipe.engine_of(spec)
        if engine["name"] in FOR_FROZEN and spec.trainable:
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
