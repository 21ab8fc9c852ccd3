"""Crossed credit: a response's mean reward over combinations with all of the partners' responses in its group."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from statistics import fmean

from coevolve.credit.at_once import groups_of, responses_of, team_reward, would_be_paid
from coevolve.settings import Count, checked_call
from coevolve.types import Credit, Episode, Reward

MOST = 4096
"""Most joint responses of a problem that are scored."""


@checked_call("algorithm.credit")
def crossed(*, shifts: Count | None = None) -> Credit:
    """A response's mean reward over all the partners' responses to the same problem, not only those of its own episode.

    With the baseline ``loo`` (``marloo``) this is crossed leave-one-out: unbiased, and the noise of the partners is
    averaged out: with reward mu + A_i + B_j + C_ij the variance is A + C / G instead of A + B + C. For plays in which
    all speak at once, once (``rounds``). Samples no further turns. With G members and N agents all G^N joint responses
    are scored, G^N - G of them further ones; with ``shifts`` only G * shifts: agent n's response is combined with those
    of agents n' that are s (n' - n) members further on, for s from 0 to shifts - 1. Raises ValueError for another play,
    for more than 4,096 joint responses of a problem, and for more shifts than members.
    """

    def credit(episodes: Sequence[Episode], reward: Reward) -> list[list[float]]:
        responses = responses_of(episodes, "crossed")
        tables = [list(_joints(group, len(responses[group[0]]), shifts)) for group in _alike(groups_of(episodes))]
        known = {(number,) * len(turns): team_reward(episodes[number]) for number, turns in enumerate(responses)}
        asked = {
            joint: (episodes[joint[0]].problem, tuple(responses[number][n] for n, number in enumerate(joint)))
            for joint in itertools.chain.from_iterable(tables)
            if joint not in known
        }
        known |= would_be_paid(reward, asked) if asked else {}
        beside: dict[tuple[int, int], list[float]] = {}
        for joint in itertools.chain.from_iterable(tables):
            for n, number in enumerate(joint):
                beside.setdefault((number, n), []).append(known[joint])
        return [[fmean(beside[number, n]) for n in range(len(turns))] for number, turns in enumerate(responses)]

    return credit


def _alike(groups: Sequence[Sequence[int]]) -> Iterator[Sequence[int]]:
    """Yield the groups, with one group for each time that a step has the same problem (as where an epoch ends in it),
    told apart by runs of consecutive episodes."""
    runs = [run for group in groups for run in _runs(group)]
    size = min(map(len, runs), default=1)
    if size == 1 or any(len(run) % size for run in runs):
        yield from groups
        return
    for run in runs:
        yield from (run[start : start + size] for start in range(0, len(run), size))


def _runs(group: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the runs of consecutive numbers."""
    ends = [i for i in range(1, len(group)) if group[i] != group[i - 1] + 1]
    return (group[start:end] for start, end in itertools.pairwise([0, *ends, len(group)]))


def _joints(group: Sequence[int], agents: int, shifts: int | None) -> Iterator[tuple[int, ...]]:
    """Yield the joint responses to score, each as one episode number per agent."""
    size = len(group)
    count = size**agents if shifts is None else size * shifts
    if count > MOST:
        raise ValueError(
            f"credit crossed: {size} members of {agents} agents are {count:,} joint responses a problem; want at most "
            f"{MOST:,}: set shifts, at most {min(size, MOST // size)}"
        )
    if shifts is None:
        yield from itertools.product(group, repeat=agents)
        return
    if shifts > size:
        raise ValueError(f"credit crossed: {shifts} shifts of {size} members; want at most {size}")
    for s, i in itertools.product(range(shifts), range(size)):
        yield tuple(group[(i + n * s) % size] for n in range(agents))
