"""Credit rules: functions that give each turn the number it is trained on, for the ``credit`` of any algorithm.

Unless its docstring says otherwise, a rule needs no rewards or turns besides those of the play, and works for any play.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from coevolve.credit.by_episode import by_episode, own_reward, team_mean, team_sum, to_go
from coevolve.credit.compared import compared
from coevolve.credit.counterfactual import counterfactual
from coevolve.credit.crossed import crossed
from coevolve.credit.difference import difference
from coevolve.credit.first_joint import first_joint
from coevolve.credit.joint_returns import own_return, team_return
from coevolve.credit.shapley import shapley
from coevolve.recipe.components import component
from coevolve.types import Credit

CREDITS: dict[str, Callable[..., Credit]] = {
    "own_reward": own_reward,
    "team_sum": team_sum,
    "team_mean": team_mean,
    "to_go": to_go,
    "own_return": own_return,
    "team_return": team_return,
    "first_joint": first_joint,
    "difference": difference,
    "shapley": shapley,
    "counterfactual": counterfactual,
    "crossed": crossed,
    "compared": compared,
}

CreditSpec = str | Mapping[str, Any] | Callable[..., Any]
"""A name of ``CREDITS`` or ``file.py:Name``; a name with settings, ``{"name": "to_go", "gamma": 0.9}``; or a rule."""


def credit_of(spec: CreditSpec) -> Credit:
    """Return the rule. Raises ValueError for an unknown name or setting."""
    if not callable(spec):
        return component(spec, CREDITS, "algorithm.credit")
    if hasattr(spec, "makes"):
        raise ValueError(f"algorithm.credit is the function {spec.__name__}; call it: {spec.__name__}(...)")
    return spec


def credit_name(spec: CreditSpec) -> Any:
    """Return the specification as in a recipe; for a user's function ``module:name``, which recipes do not know."""
    if not callable(spec):
        return spec
    factory, settings = getattr(spec, "factory", None), getattr(spec, "settings", {})  # of ``checked_call``
    if factory in CREDITS:
        defaults = inspect.signature(CREDITS[factory]).parameters
        settings = {key: value for key, value in settings.items() if value != defaults[key].default}
        return {"name": factory, **settings} if settings else factory
    name = f"{spec.__module__}:{factory or getattr(spec, '__qualname__', type(spec).__name__)}"
    return {"name": name, **settings} if factory and settings else name


__all__ = [
    "CREDITS",
    "CreditSpec",
    "by_episode",
    "compared",
    "counterfactual",
    "credit_name",
    "credit_of",
    "crossed",
    "difference",
    "first_joint",
    "own_return",
    "own_reward",
    "shapley",
    "team_mean",
    "team_return",
    "team_sum",
    "to_go",
]
