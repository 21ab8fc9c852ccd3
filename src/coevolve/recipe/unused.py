"""The keys of a recipe's algorithm that have no effect beside others. A Trainer cannot tell them from defaults."""

from __future__ import annotations

from collections.abc import Iterator

from coevolve.recipe.schema import Recipe
from coevolve.types import Algorithm

_SWITCHES = {"beta": ("kl", "estimator"), "eta": ("penalty",), "critic": ("value_coef",)}
"""Settings of an algorithm that may be off -> the settings that then have no effect."""


def unused_keys(recipe: Recipe, algorithm: Algorithm) -> Iterator[str]:
    """Yield a line for each such key. algorithm: the recipe's."""
    for switch, keys in _SWITCHES.items():
        value = algorithm.settings.get(switch)
        if value is not None and not value:  # no critic named is each policy's own
            for key in (key for key in keys if key in recipe.algorithm):
                yield f"algorithm.{key} does nothing while {switch} is {value}"
