"""What the agent itself was paid from a joint response on."""

from __future__ import annotations

from coevolve.credit.joint_returns import along_joints
from coevolve.settings import Fraction, checked_call
from coevolve.types import Credit, Joint, Role


@checked_call("algorithm.credit")
def own_return(gamma: Fraction = 1.0) -> Credit:
    """Each agent its own return, independent learners: ``team_return`` of what the role itself was paid."""
    return along_joints(gamma, _paid_to)


def _paid_to(role: Role, joint: Joint) -> float:
    """0 where the role took no part."""
    return sum(reward for turn, reward in zip(joint.turns, joint.rewards, strict=True) if turn.role == role)
