"""Cross-play: roles of one team filled by another team's policies, as between seeds or checkpoints of a recipe.

Agents that were trained together may have agreed on conventions of their own; then they earn less with others that were
trained just as well (Hu et al. 2020, arXiv 2003.02979).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product

import numpy as np

from coevolve.diagnose.paired import Numbers
from coevolve.diagnose.scene import Row, Scene, measured, played_or_not
from coevolve.evaluate import team_name
from coevolve.types import PolicyName, Role

Team = tuple[str, Mapping[Role, PolicyName]]
"""A team's name and its cast."""


def rows(scene: Scene, teams: Sequence[Team]) -> Iterator[Row]:
    """Yield self-play of every team; every way to fill one role ``from`` a team and the others ``by`` another;
    and the mean of those mixed teams that could be compared, if any. A team that cannot be played has a ``reason``.

    With two roles that one role is the first, which gives every combination. A mixed team is compared with the mean of
    the self-plays of the two teams that it is made of.
    """
    alone = {name: _returns(scene, cast) for name, cast in teams}
    for name, cast in teams:
        who = {"kind": "cross-play", "setting": "self", "role": "all", "policy": team_name(cast)}
        yield {**who, "from": name, "by": name, **played_or_not(alone[name])}
    roles = list(scene.cast)
    mixed, selves = [], []
    for role, ((guest, theirs), (host, cast)) in product(
        roles[:1] if len(roles) == 2 else roles, permutations(teams, 2)
    ):
        team = {**cast, role: theirs[role]}
        found, own, other = _returns(scene, team), alone[guest], alone[host]
        base = None
        if not (isinstance(found, str) or isinstance(own, str) or isinstance(other, str)):
            base = (own + other) / 2
            mixed.append(found)
            selves.append(base)
        who = {"kind": "cross-play", "setting": "cross", "role": role, "policy": team_name(team)}
        yield {**who, "from": guest, "by": host, **played_or_not(found, base)}
    if mixed:
        whole = measured(np.mean(mixed, axis=0), np.mean(selves, axis=0))
        yield {"kind": "cross-play", "setting": "mean", "role": "all", "policy": "all", **whole}


def _returns(scene: Scene, cast: Mapping[Role, PolicyName]) -> Numbers | str:
    # In the order of the host's roles, which is the order in which a chain speaks.
    return replace(scene, cast={role: cast[role] for role in scene.cast}).tried()
