"""Credit rules of returns, team_return and own_return: the worth of a joint plus the discounted worth of the joints
after it, also in trees."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean

from coevolve.credit.by_episode import by_episode, joints_of
from coevolve.settings import Fraction, checked_call
from coevolve.types import Credit, Episode, Joint, Role


@checked_call("algorithm.credit")
def team_return(gamma: Fraction = 1.0) -> Credit:
    """The team's return, where r(j), the reward of joint j, is the mean over its agents.

    R(j) = r(j) + gamma * mean of R over the joints that j answers for (its continuations) is the return of every turn
    of joint j. With one continuation each this is MAGRPO's return (arXiv 2508.04652, algorithm 1); with several it is
    that of a tree. A turn of several joints gets their mean, so the number of its partners does not scale its gradient.
    A turn that was not scored gets the return of the first later joint with a turn that heard it, directly or through
    others, else of the next joint with a turn sampled after it, else 0.
    """
    return along_joints(gamma, lambda role, joint: fmean(joint.by_role().values()))


@checked_call("algorithm.credit")
def own_return(gamma: Fraction = 1.0) -> Credit:
    """Each agent's own return, for independent learners: ``team_return`` with the role's own rewards."""
    return along_joints(gamma, lambda role, joint: joint.by_role().get(role, 0.0))  # 0 where it took no part


def along_joints(gamma: float, worth: Callable[[Role, Joint], float]) -> Credit:
    """Return a rule: each turn's credit is the mean return of its joints. worth: (role, joint) -> its own reward."""

    def credit(episode: Episode) -> list[float]:
        roles = dict.fromkeys(turn.role for turn in episode.turns)
        returns = {role: _returns(episode.joints, gamma, partial(worth, role)) for role in roles}
        found = joints_of(episode)
        return [fmean(returns[t.role][j] for j in found[id(t)]) if found[id(t)] else 0.0 for t in episode.turns]

    return by_episode(credit)


def _returns(joints: list[Joint], gamma: float, worth: Callable[[Joint], float]) -> list[float]:
    """Return R of every joint. A joint is later in the list than the one that it continues."""
    returns = [0.0] * len(joints)
    later: dict[int, list[float]] = {}
    for number in reversed(range(len(joints))):
        following = later.get(number)
        returns[number] = worth(joints[number]) + (gamma * fmean(following) if following else 0.0)
        after = joints[number].after
        if after is not None and joints[number].answered:
            later.setdefault(after, []).append(returns[number])
    return returns
