"""MAGRPO's return: what the team was paid from a joint response on."""

from __future__ import annotations

from statistics import fmean

from coevolve.credit.joint_returns import along_joints
from coevolve.settings import Fraction, checked_call
from coevolve.types import Credit


@checked_call("algorithm.credit")
def team_return(gamma: Fraction = 1.0) -> Credit:
    """The team's return: a joint is worth the mean over its agents, the team's reward itself where all are paid that.

    R(j) = r(j) + gamma * mean of R over the joints that j answers for is the return of every turn of joint j. With one
    continuation each this is MAGRPO's return (arXiv 2508.04652, algorithm 1); with several it is the tree's. A turn of
    several joints is paid their mean, so the number of partners it met does not scale its step. A turn that nobody
    scored answers for the first joint of somebody who heard it, himself or through others, else for the next joint
    scored after it, and for nothing if there is none.
    """
    return along_joints(gamma, lambda role, joint: fmean(joint.by_role().values()))
