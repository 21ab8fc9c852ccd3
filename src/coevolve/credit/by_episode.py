"""Credit rules for one episode at a time, made with ``by_episode``: own_reward, team_sum, team_mean and to_go.

A turn's reward is ``Turn.reward``, the mean where the turn is part of several joints. What an unscored turn led to is
found by ``joints_of``, for all rules of joints.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from coevolve.settings import Fraction, checked_call
from coevolve.types import Credit, Episode, Reward


def by_episode(rule: Callable[[Episode], list[float]]) -> Credit:
    """Return a credit rule that applies ``rule`` to each episode of a step. rule: episode -> one number per turn."""

    @functools.wraps(rule)
    def credit(episodes: Sequence[Episode], reward: Reward) -> list[list[float]]:
        return [rule(episode) for episode in episodes]

    return credit


def _turn_rewards(episode: Episode) -> list[float]:
    """Return the rewards of the turns in the order they were sampled, 0 for a turn that was not scored."""
    return [turn.reward or 0.0 for turn in episode.turns]


def to_be_added(episode: Episode, rule: str) -> list[float]:
    """Return the rewards as ``_turn_rewards`` does, for sums. Raises ValueError where a role's rewards do not add up:
    in several joints that continue the same one, for several turns of one joint, each of which is paid for all of it,
    and for a turn that is scored in several joints, whose reward is their mean."""
    scored = [(joint.after, turn) for joint in episode.joints for turn in joint.turns]
    places, turns = Counter((after, turn.role) for after, turn in scored), Counter(id(turn) for _, turn in scored)
    if again := [turn.role for after, turn in scored if places[after, turn.role] > 1 or turns[id(turn)] > 1]:
        raise ValueError(
            f"credit {rule}: problem {episode.problem.id!r}: role {again[0]!r} has several turns in one joint "
            "response, or in joint responses that stand beside each other, or a turn in several of them, whose rewards "
            "do not add up; it is for plays of one at a time (chain, rounds, discussion); team_return is for any"
        )
    return _turn_rewards(episode)


def joints_of(episode: Episode) -> Mapping[int, list[int]]:
    """Return id of a turn -> the positions of its joints or, if it was not scored, of the first later joint with a turn
    that heard it, else of the next joint with a turn sampled after it; [] if there is none."""
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


@checked_call("algorithm.credit")
def own_reward() -> Credit:
    """Each turn's own reward, for independent learners.

    A turn that was not scored (a call of a tool) gets its role's reward in the joint that ``team_return`` would give it
    the return of, 0 where the role took no part.
    """

    def credit(episode: Episode) -> list[float]:
        found = joints_of(episode)
        # An unscored turn has one joint at most.
        led = [[episode.joints[j].by_role().get(t.role, 0.0) for j in found[id(t)]] for t in episode.turns]
        return [sum(own) if t.reward is None else t.reward for t, own in zip(episode.turns, led, strict=True)]

    return by_episode(credit)


@checked_call("algorithm.credit")
def team_sum() -> Credit:
    """The sum of all rewards of the episode, for every turn (CORY's collective reward, arXiv 2410.06101, section 3).

    For plays of one joint response at a time (``chain``, ``rounds``, ``discussion``). Raises ValueError for others.
    """
    return by_episode(lambda episode: [sum(to_be_added(episode, "team_sum"))] * len(episode.turns))


@checked_call("algorithm.credit")
def team_mean() -> Credit:
    """The mean reward of the scored turns, for every turn: team_sum on the scale of one reward, for the same plays."""

    def credit(episode: Episode) -> list[float]:
        scored = sum(turn.reward is not None for turn in episode.turns)
        return [sum(to_be_added(episode, "team_mean")) / max(1, scored)] * len(episode.turns)

    return by_episode(credit)


@checked_call("algorithm.credit")
def to_go(gamma: Fraction = 1.0) -> Credit:
    """The turn's own reward plus those of the turns after it, discounted by gamma per turn.

    If no later role changes an earlier reward, as in CORY's tasks, which score every answer by itself, this has the
    same expected gradient as team_sum and less variance: the observer's credit is r2 alone, the pioneer's r1 + r2. For
    the same plays, and for turns one after the other (``chain``): in ``rounds`` the order of the roles would decide.
    """

    def credit(episode: Episode) -> list[float]:
        total, returns = 0.0, []
        for reward in reversed(to_be_added(episode, "to_go")):
            total = reward + gamma * total
            returns.append(total)
        return returns[::-1]

    return by_episode(credit)
