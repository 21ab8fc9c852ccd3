"""MAGRPO's return: the team's rewards from a joint response on."""

from __future__ import annotations

from statistics import fmean

from coevolve.credit.joint_returns import along_joints
from coevolve.settings import Fraction, checked_call
from coevolve.types import Credit


@checked_call("algorithm.credit")
def team_return(gamma: Fraction = 1.0) -> Credit:
    """The team's return, where r(j), the reward of joint j, is the mean over its agents.

    R(j) = r(j) + gamma * mean of R over the joints that j answers for (its continuations) is the return of every turn
    of joint j. With one continuation each this is MAGRPO's return (arXiv 2508.04652, algorithm 1); with several it is
    that of a tree. A turn of several joints gets their mean, so the number of its partners does not scale its gradient.
    A turn that was not scored gets the return of the first later joint with a turn that heard it, directly or through
    others, else of the next joint scored after it, else 0.
    """
    return along_joints(gamma, lambda role, joint: fmean(joint.by_role().values()))
