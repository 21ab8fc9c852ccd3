"""Settings whose names or values have changed since earlier versions.

Old settings in a run directory are translated when the run is read. In a recipe that a user writes they are an error
that names the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coevolve.recipe.inputs import dump

_GROUP = {"magrpo", "marloo", "maremax", "mareinforce", "grpo", "rloo", "reinforce"}
_CRITIC = {"ppo", "cory"}


def recipe(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded recipe (or what ``Trainer.identity`` wrote) with today's settings."""
    if not isinstance(tree.get("algorithm"), Mapping):
        return dict(tree)
    algorithm = _algorithm(tree["algorithm"])
    credit = algorithm.get("credit")
    name = credit.get("name") if isinstance(credit, Mapping) else None
    if credit == {"name": name, "gamma": 1.0} and ":" not in str(name):  # a user's own rule may have another default
        # A default discount, which was recorded although the recipe did not set it.
        algorithm["credit"] = name
    return {**tree, "algorithm": algorithm}


def check(tree: Mapping[str, Any], where: str) -> None:
    """Raise ValueError for a recipe with old settings; the message says how they are written now."""
    before = tree.get("algorithm")
    if not isinstance(before, Mapping) or (after := _algorithm(before)) == before:
        return
    gone = " and ".join(key for key, value in before.items() if after.get(key) != value)
    new = {key: value for key, value in after.items() if before.get(key) != value}
    written = dump(new, default_flow_style=True, width=1000).strip()
    raise ValueError(f"{where}: algorithm: write {written} in place of {gone}")


def trainer_state(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's ``trainer.json`` in today's form: it once had KL weights, reward statistics by policy."""
    identity, policies = recipe(saved["identity"]), saved["policies"]
    if not isinstance(policies, Mapping):
        return {**saved, "identity": identity}
    kl = {name: one["kl"]["coef"] for name, one in policies.items() if "target" in one["kl"]}
    moments = {name: one["moments"] for name, one in policies.items() if one["moments"]["count"]}
    state = {key: value for key, value in {"kl": kl, "moments": moments}.items() if value}
    return {**saved, "identity": identity, "policies": list(policies), "state": state}


def _algorithm(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a built-in algorithm's settings as written today, a user's own unchanged.

    Settings recorded from Python have no name, but are complete; a key of each family tells them apart.
    """
    found = dict(settings)
    name = None if settings.get("name") is None else str(settings["name"])
    group = name in _GROUP or (name is None and "baseline" in settings)
    if not (group or name in _CRITIC or (name is None and "eta" in settings)):
        return found
    if "weights" in found:
        found["loss_aggregation"] = found.pop("weights")
    words = {"own": "own_return", "team": "team_return"} if group else {"own": "own_reward"}
    if isinstance(found.get("credit"), str):
        found["credit"] = words.get(found["credit"], found["credit"])
    if group and "gamma" in found:
        credit = found.get("credit", "team_return")
        named = dict(credit) if isinstance(credit, Mapping) else {"name": credit}
        found["credit"] = {**named, "gamma": found.pop("gamma")}
    return found
