"""Which policies one server can sample; checked where a recipe is read, and again where it is published to."""

from __future__ import annotations

from collections.abc import Mapping

from coevolve.models.spec import PolicySpec
from coevolve.types import PolicyName


def check_one_server(team: Mapping[PolicyName, PolicySpec], takes: bool) -> None:
    """Raise ValueError if one server cannot sample these policies. takes: whether it takes their weights."""
    own = "give each a server of its own: policies.X.engine"
    if len(distinct := dict.fromkeys(spec.model for spec in team.values())) > 1:
        raise ValueError(f"one server has one base, and this team has {', '.join(distinct)}; {own}")
    full = [name for name, spec in team.items() if spec.weights == "full"]
    if takes and full and len(team) > 1:
        raise ValueError(f"policy {full[0]!r} has full weights, of which a server holds one set; {own}")
