"""The identity of a run: which settings may change when it is resumed and which may not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from coevolve.runs.signature import moved

FREE_KEYS = frozenset(
    {"output_dir", "save_every", "keep_last", "samples", "report_to", "callbacks", "threads", "workers"}
)
"""Keys of a recipe that do not change what a step computes (threads and workers: except for rounding;
``save_every``: see ``free_keys``)."""

_ROUNDING = re.compile(r"policies\..+\.(micro_tokens|gradient_checkpointing)$")
"""Settings that split a policy's computation into other pieces, with the same result except for rounding."""
_COMPUTE = re.compile(r"policies\..+\.compute$|(policies\..+\.)?(engine(\.(?!staleness$)|$)|learner(\.|$))")
"""Settings of backend, engine and learner, left to other checks: the chosen backend is compared
(``checkpoint.same_compute``), and the gate before every update compares log-probabilities (``learners.gate``). The gate
cannot see the ``staleness`` of turns, so that key is not among these settings."""
_PARTNER = re.compile(r"(policies\..+\.)engine(\.(name|model))?$")
"""Name and model of a policy's own engine. For a frozen policy they are compared, since no gate checks its turns."""


def same_recipe(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise ValueError naming the first key that changes what a step computes and differs between two recipes.

    folder: of the run or of its checkpoint. A file that only lies elsewhere now counts as the same."""
    old, new = ordered(there), ordered(here)
    run = folder if (folder / "recipe.yaml").exists() else folder.parent
    # A schedule stretches over the run's steps, so they may only change where the learning rate is constant.
    stretched = any(k.endswith(".schedule") and v != "constant" for k, v in new.items())
    free = free_keys(new) | (frozenset() if stretched else {"steps"})
    for name in (name for name in (*old, *new) if name.endswith("engine.staleness")):
        old, new = {name: 0} | old, {name: 0} | new
    if isinstance(old.get("cast"), list) and isinstance(new.get("cast"), list):  # of a run without a recipe
        both = min(len(old["cast"]), len(new["cast"]))  # a run of a few steps recorded only theirs
        old["cast"], new["cast"] = old["cast"][:both], new["cast"][:both]
    for key in dict.fromkeys((*old, *new)):
        later = key not in old and new[key] is False  # a switch of a newer version, and off
        if (
            key not in free
            and not _ROUNDING.match(key)
            and not later
            and not _left_to_others(key, new)
            and not same(run, old.get(key), new.get(key))
        ):
            raise ValueError(
                f"{folder} belongs to another recipe: {key} is {old.get(key)!r} there and {new.get(key)!r} here; "
                "resume with the recipe it was made with, or choose another output_dir"
            )


def same(run: Path, there: Any, here: Any) -> bool:
    """Return whether two settings are equal, files that only lie elsewhere now included."""
    if isinstance(there, list) and isinstance(here, list):
        return len(there) == len(here) and all(map(partial(same, run), there, here))
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        return there.keys() == here.keys() and all(same(run, there[key], here[key]) for key in there)
    return bool(there == here) or moved(run, there, here)


def component_settings(**components: Any) -> dict[str, Any]:
    """Return all settings of components, such as ``algorithm`` and ``play``, as plain data that is the same in every
    process, with the defaults that a recipe leaves out."""
    return {name: _named(getattr(one, "settings", {})) for name, one in components.items()}


def _left_to_others(key: str, recipe: Mapping[str, Any]) -> bool:
    """Return whether a difference in this setting is left to other checks (``_COMPUTE``)."""
    partner = _PARTNER.match(key)
    frozen = partner is not None and recipe.get(f"{partner[1]}weights") == "frozen"
    return _COMPUTE.match(key) is not None and not frozen


def free_keys(settings: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys of these (flat) settings that do not change what a step computes. What an engine samples ahead is
    dropped at every checkpoint and sampled from newer weights, so with ``staleness`` the numbers depend on save_every.
    """
    ahead = any(key.endswith("engine.staleness") and value for key, value in settings.items())
    return FREE_KEYS - {"save_every"} if ahead else FREE_KEYS


def ordered(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's settings as ``flat`` does, with the order of the roles, in which a chain speaks: mappings are
    equal in any order."""
    found, roles, cast = flat(recipe), recipe.get("roles"), recipe.get("cast")
    if isinstance(roles, Mapping):
        found["roles"] = ", ".join(map(str, roles))
    if isinstance(cast, list):  # of a run without a recipe: the roles of each step
        found["cast"] = [list(map(list, one.items())) if isinstance(one, Mapping) else one for one in cast]
    return found


def flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested settings by their dotted keys, as on the command line: ``{"a.b": 1}``."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return found


def _named(value: Any) -> Any:
    """Return settings as plain data that is the same in every process: paths as text, functions and other objects by
    name."""
    if isinstance(value, Mapping):
        return {str(key): _named(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_named(one) for one in value]
    if isinstance(value, PurePath):
        return str(value)
    if getattr(value, "ndim", None) == 0:  # a number of numpy or torch
        return value.item()
    plain = value is None or isinstance(value, str | int | float)
    return value if plain else getattr(value, "__qualname__", type(value).__name__)
