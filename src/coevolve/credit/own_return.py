"""What the agent itself was paid from a joint response on."""

from __future__ import annotations

from coevolve.credit.joint_returns import along_joints
from coevolve.settings import Fraction, checked_call
from coevolve.types import Credit


@checked_call("algorithm.credit")
def own_return(gamma: Fraction = 1.0) -> Credit:
    """Each agent its own return, independent learners: ``team_return`` of what the role itself was paid."""
    return along_joints(gamma, lambda role, joint: joint.by_role().get(role, 0.0))  # 0 where it took no part
