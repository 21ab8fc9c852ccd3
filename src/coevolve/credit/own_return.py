"""The return of the agent's own rewards from a joint response on."""

from __future__ import annotations

from coevolve.credit.joint_returns import along_joints
from coevolve.settings import Fraction, checked_call
from coevolve.types import Credit


@checked_call("algorithm.credit")
def own_return(gamma: Fraction = 1.0) -> Credit:
    """Each agent's own return, for independent learners: ``team_return`` with the role's own rewards."""
    return along_joints(gamma, lambda role, joint: joint.by_role().get(role, 0.0))  # 0 where it took no part
