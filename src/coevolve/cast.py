"""Who plays whom: a cast maps the step to role -> policy. Role exchange is a dictionary lookup, nothing moves.

Optimiser, value head, KL coefficient and reward statistics belong to the policy and stay with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coevolve.types import Cast, PolicyName, Role


def fixed(roles: Mapping[Role, PolicyName]) -> Cast:
    """The same policy in the same role at every step."""
    roles = dict(roles)
    return lambda step: roles


def rotate(roles: Mapping[Role, PolicyName], every: int = 5) -> Cast:
    """Every ``every`` steps each role goes to the next policy of the list, the last role to the first.

    CORY's T_REx (arXiv 2410.06101, section 3) for any number of agents: after the first N * every steps each policy has
    played each role. Raises ValueError for every < 1.
    """
    if every < 1:
        raise ValueError(f"cast.every is {every}; roles change after a whole number of steps, at least 1")
    names, policies = list(roles), list(roles.values())

    def cast(step: int) -> Mapping[Role, PolicyName]:
        shift = step // every
        return {role: policies[(seat + shift) % len(policies)] for seat, role in enumerate(names)}

    return cast


def exchange(roles: Mapping[Role, PolicyName], every: int = 5) -> Cast:
    """Two roles swap their policies every ``every`` steps (CORY). Raises ValueError unless there are two roles."""
    if len(roles) != 2:
        raise ValueError(f"cast 'exchange' swaps two roles, this team has {len(roles)}; use 'rotate' for more")
    return rotate(roles, every)


CASTS: dict[str, Callable[..., Cast]] = {"fixed": fixed, "exchange": exchange, "rotate": rotate}
