"""What a turn is held responsible for: functions of one episode's rewards, one number per turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean

from coevolve.types import Credit, Episode, Joint, Role


def _paid(episode: Episode) -> list[float]:
    """Rewards in spoken order; a turn nobody scored was paid 0."""
    return [turn.reward or 0.0 for turn in episode.turns]


def own(episode: Episode) -> list[float]:
    """Each turn its own reward: independent learners."""
    return _paid(episode)


def team_sum(episode: Episode) -> list[float]:
    """Every turn the sum over the team (CORY's collective reward, arXiv 2410.06101, section 3)."""
    return [sum(_paid(episode))] * len(episode.turns)


def team_mean(episode: Episode) -> list[float]:
    """Every turn the mean over the team: team_sum on the scale of one reward."""
    return [sum(_paid(episode)) / len(episode.turns)] * len(episode.turns)


def to_go(gamma: float = 1.0) -> Credit:
    """Each turn its own reward and those of the turns after it, discounted by gamma per turn.

    Where no later role changes an earlier reward, as in CORY's tasks, which score every answer by itself, this has the
    same expected gradient as team_sum and less variance: the observer is paid r2 alone, the pioneer r1 + r2.
    """

    def credit(episode: Episode) -> list[float]:
        total, returns = 0.0, []
        for reward in reversed(_paid(episode)):
            total = reward + gamma * total
            returns.append(total)
        return returns[::-1]

    return credit


Worth = Callable[..., float]
"""(joint, role) -> what the joint is worth to the agent in this role."""


def team_reward(joint: Joint, role: Role) -> float:
    """The mean over the joint's agents: the team's reward itself where the task pays everybody that."""
    return fmean(joint.rewards)


def own_reward(joint: Joint, role: Role) -> float:
    """What this role was paid: independent learners. 0 if it took no part."""
    return sum(reward for turn, reward in zip(joint.turns, joint.rewards, strict=True) if turn.role == role)


def tree_to_go(gamma: float = 1.0, worth: Worth = team_reward) -> Credit:
    """The return of the joint a turn was part of: R(j) = r(j) + gamma * mean of R over the joints j answers for.

    With one continuation each this is MAGRPO's return (arXiv 2508.04652, algorithm 1); with several it is the tree's.
    A turn of several joints is paid their mean, so the number of partners it met does not scale its step. A turn that
    nobody scored answers for the first joint of somebody who heard it, himself or through others, else for the next
    joint scored after it, and for nothing if there is none.
    """

    def credit(episode: Episode) -> list[float]:
        roles = dict.fromkeys(turn.role for turn in episode.turns)
        returns = {role: _returns(episode.joints, gamma, partial(worth, role=role)) for role in roles}
        joints_of = _joints_of(episode)
        return [fmean(returns[t.role][j] for j in joints_of[id(t)]) if joints_of[id(t)] else 0.0 for t in episode.turns]

    return credit


def _returns(joints: list[Joint], gamma: float, worth: Callable[[Joint], float]) -> list[float]:
    """R of every joint; a joint stands after the one it continues."""
    returns = [0.0] * len(joints)
    later: dict[int, list[float]] = {}
    for number in reversed(range(len(joints))):
        following = later.get(number)
        returns[number] = worth(joints[number]) + (gamma * fmean(following) if following else 0.0)
        after = joints[number].after
        if after is not None and joints[number].answered:
            later.setdefault(after, []).append(returns[number])
    return returns


def _joints_of(episode: Episode) -> Mapping[int, list[int]]:
    """A turn, by identity, -> the numbers of its joints, or of the joint that it led to."""
    position = {id(turn): number for number, turn in enumerate(episode.turns)}
    found: dict[int, list[int]] = {key: [] for key in position}
    for number, joint in enumerate(episode.joints):
        for turn in joint.turns:
            found[id(turn)].append(number)
    heard: dict[int, set[int]] = {}
    for turn in episode.turns:
        told = [id(part) for part in turn.heard]
        heard[id(turn)] = set(told).union(*(heard.get(one, ()) for one in told))
    for key, joints in found.items():
        if not joints:
            later = [i for i, j in enumerate(episode.joints) if max(position[id(t)] for t in j.turns) > position[key]]
            hearing = [i for i in later if any(key in heard[id(turn)] for turn in episode.joints[i].turns)]
            joints += (hearing or later)[:1]
    return found
