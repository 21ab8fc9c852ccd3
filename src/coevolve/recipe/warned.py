"""Warnings about a recipe's settings that are no errors: those that have no effect beside others, and a correction that
is missing where a server samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

from coevolve.cast import CASTS
from coevolve.checks import MOST_STEPS, correction
from coevolve.engines import SERVERS
from coevolve.recipe.build import parts
from coevolve.recipe.schema import Recipe
from coevolve.runtime.cores import cores
from coevolve.types import Algorithm, Cast

_SWITCHES = {"beta": ("kl", "estimator"), "eta": ("penalty",), "critic": ("value_coef",)}
"""Settings of an algorithm that may be off -> the settings that then have no effect."""


def warn_of_settings(recipe: Recipe) -> None:
    """Warn of each such setting. Raises ValueError for a recipe whose components cannot be built."""
    made = parts(recipe)
    algorithm = made.algorithm
    lines = [*_of_algorithm(recipe, algorithm), *_of_policies(recipe, algorithm)]
    for line in (*lines, *_of_servers(recipe, algorithm), *_of_steps(recipe, made.cast), *_of_threads(recipe)):
        warnings.warn(line, stacklevel=2)


def _of_algorithm(recipe: Recipe, algorithm: Algorithm) -> Iterator[str]:
    for switch, keys in _SWITCHES.items():
        value = algorithm.settings.get(switch)
        if value is not None and not value:  # no critic named is each policy's own
            for key in (key for key in keys if key in recipe.algorithm):
                yield f"algorithm.{key} does nothing while {switch} is {value}"


def _of_policies(recipe: Recipe, algorithm: Algorithm) -> Iterator[str]:
    for name, spec in recipe.policies.items():
        if spec.value_learning_rate is not None and not algorithm.has_critic(name):
            yield f"policies.{name}.value_learning_rate does nothing: the algorithm gives this policy no critic"
        if spec.trainable and recipe.steps <= spec.warmup_steps:
            yield f"policies.{name}.warmup_steps is {spec.warmup_steps} of {recipe.steps} steps, so its rate only rises"


def _of_servers(recipe: Recipe, algorithm: Algorithm) -> Iterator[str]:
    where, mismatch = correction(algorithm)
    names = [
        name
        for name, spec in recipe.policies.items()
        if spec.trainable and name not in recipe.silent and recipe.engine_of(spec)["name"] in SERVERS
    ]
    if names and mismatch == "none":
        yield (
            f"{', '.join(names)}: turns come from a server, and {where} is none, so ratios are to the server's "
            f"log-probabilities, which differ from the learner's by rounding; {where}=tis corrects the difference "
            "(docs/objectives.md)"
        )


def _of_threads(recipe: Recipe) -> Iterator[str]:
    if recipe.threads is not None and recipe.threads > cores():
        yield f"threads is {recipe.threads} on a machine of {cores()} cores, where they wait for each other"


def _of_steps(recipe: Recipe, made: Callable[[], Cast]) -> Iterator[str]:
    if recipe.reset_every is not None and recipe.reset_every >= recipe.steps:
        yield f"reset_every is {recipe.reset_every}, and with {recipe.steps} steps nothing is ever reset"
    if recipe.cast["name"] not in CASTS or recipe.cast["name"] == "fixed" or recipe.steps == 1:
        return  # a user's own cast is not called before training needs it
    cast = made()
    first = cast(0)
    if all(cast(step) == first for step in range(min(recipe.steps, MOST_STEPS))):
        yield f"cast: {recipe.cast['name']} changes nothing: who plays what is the same in all {recipe.steps} steps"
