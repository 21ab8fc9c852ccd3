"""Credit from the returns of the joints: what one was paid and what follows from it, up a tree if there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean

from coevolve.credit.rewards import by_episode
from coevolve.settings import Fraction, checked_call
from coevolve.types import Credit, Episode, Joint, Role


@checked_call("algorithm.credit")
def team_return(gamma: Fraction = 1.0) -> Credit:
    """The team's return: a joint is worth the mean over its agents, the team's reward itself where all are paid that.

    R(j) = r(j) + gamma * mean of R over the joints that j answers for is the return of every turn of joint j. With one
    continuation each this is MAGRPO's return (arXiv 2508.04652, algorithm 1); with several it is the tree's. A turn of
    several joints is paid their mean, so the number of partners it met does not scale its step. A turn that nobody
    scored answers for the first joint of somebody who heard it, himself or through others, else for the next joint
    scored after it, and for nothing if there is none.
    """
    return _to_go(gamma, lambda role, joint: fmean(joint.rewards))


@checked_call("algorithm.credit")
def own_return(gamma: Fraction = 1.0) -> Credit:
    """Each agent its own return, independent learners: ``team_return`` of what the role itself was paid."""
    return _to_go(gamma, _paid_to)


@checked_call("algorithm.credit")
def first_joint() -> Credit:
    """The team's pay of the first joint that a turn was part of, the mean over its agents, and of nothing else.

    For plays that put a turn into further joints to find out what *another* one is worth (``resampled``, ``hinted``):
    there the gradient of a turn's first joint is that of the team's pay, and what its partners' other turns came to is
    noise, or, where they had heard it, theirs to answer for. Raises ValueError for a turn that nobody scored.
    """

    def credit(episode: Episode) -> list[float]:
        paid: dict[int, float] = {}
        for joint in episode.joints:
            for turn in joint.turns:
                paid.setdefault(id(turn), fmean(joint.rewards))
        if unpaid := [turn.role for turn in episode.turns if id(turn) not in paid]:
            raise ValueError(
                f"credit first_joint: problem {episode.problem.id!r}: a turn of role {unpaid[0]!r} was part of no joint"
                "; team_return lets a turn answer for what followed it"
            )
        return [paid[id(turn)] for turn in episode.turns]

    return by_episode(credit)


def _paid_to(role: Role, joint: Joint) -> float:
    """0 where the role took no part."""
    return sum(reward for turn, reward in zip(joint.turns, joint.rewards, strict=True) if turn.role == role)


def _to_go(gamma: float, worth: Callable[[Role, Joint], float]) -> Credit:
    def credit(episode: Episode) -> list[float]:
        roles = dict.fromkeys(turn.role for turn in episode.turns)
        returns = {role: _returns(episode.joints, gamma, partial(worth, role)) for role in roles}
        joints_of = _joints_of(episode)
        return [fmean(returns[t.role][j] for j in joints_of[id(t)]) if joints_of[id(t)] else 0.0 for t in episode.turns]

    return by_episode(credit)


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
