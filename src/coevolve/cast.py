"""Casts: functions of the step that say which policy plays which role. A role exchange changes only this mapping.

Optimiser, value head, KL coefficient and reward statistics belong to the policy and stay with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import Field

from coevolve.settings import Count, checked_call
from coevolve.types import Cast, PolicyName, Role

Seats = Annotated[Mapping[Role, PolicyName], Field(min_length=1)]
"""role -> policy at step 0."""


@checked_call("cast")
def fixed(roles: Seats) -> Cast:
    """Keep the same policy in the same role at every step."""
    roles = dict(roles)
    return lambda step: roles


@checked_call("cast")
def rotate(roles: Seats, every: Count = 5) -> Cast:
    """Give each role to the next policy of the list every ``every`` steps, the last role to the first policy.

    CORY's T_REx (arXiv 2410.06101, section 3) for any number of agents: after the first N * every steps each policy has
    played each role. Raises ValueError for every < 1.
    """
    names, policies = list(roles), list(roles.values())

    def cast(step: int) -> Mapping[Role, PolicyName]:
        shift = step // every
        return {role: policies[(seat + shift) % len(policies)] for seat, role in enumerate(names)}

    return cast


@checked_call("cast")
def exchange(roles: Seats, every: Count = 5) -> Cast:
    """Swap the policies of two roles every ``every`` steps (CORY). Raises ValueError unless there are two roles."""
    if len(roles) != 2:
        raise ValueError(f"cast 'exchange' swaps two roles, this team has {len(roles)}; use 'rotate' for more")
    return rotate(roles, every)


CASTS: dict[str, Callable[..., Cast]] = {"fixed": fixed, "exchange": exchange, "rotate": rotate}
