"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): play other problems in place of those without a signal, where
all members have the same rewards.

The episodes of the first problems stay in the step, so that metrics cover all that was sampled; the advantage leaves
them out (``drop_flat``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from coevolve import noise
from coevolve.pay import alike
from coevolve.types import Episode, Problem


def with_others(
    episodes: Sequence[Episode],
    problems: Sequence[Problem],
    play: Callable[[Sequence[Problem]], list[Episode]],
    times: int,
    seed: int,
    step: int,
) -> list[Episode]:
    """Return the episodes of a step, then those of as many other ``problems`` as had no signal, up to ``times`` times.

    They are drawn by (seed, step) from the problems that the step has not played, until none is left.
    """
    found, last, left = list(episodes), episodes, None
    for _ in range(times):
        missing = sum(paid_alike(of_one) for of_one in by_problem(last).values())
        if not missing:
            break
        if left is None:
            had = {episode.problem.id for episode in episodes}
            order = noise.permutation(len(problems), seed, "in place of others", step)
            left = (problems[i] for i in order if problems[i].id not in had)
        if not (others := list(islice(left, missing))):
            break
        last = play(others)
        found += last
    return found


def by_problem(episodes: Sequence[Episode]) -> dict[str, list[Episode]]:
    """Return the episodes of each problem, by its id."""
    found: dict[str, list[Episode]] = {}
    for episode in episodes:
        found.setdefault(episode.problem.id, []).append(episode)
    return found


def paid_alike(episodes: Sequence[Episode]) -> bool:
    """Return whether a problem's members have the same rewards: at each depth every agent was paid the same in all
    joints, and all members have joints of the same depths."""
    paid: dict[tuple[int, int], list[float]] = {}
    for episode in episodes:
        for depth, joint in zip(episode.depths(), episode.joints, strict=True):
            for seat, reward in enumerate(joint.rewards):
                paid.setdefault((depth, seat), []).append(reward)
    as_deep = all(sorted(episode.depths()) == sorted(episodes[0].depths()) for episode in episodes)
    return as_deep and all(alike(rewards, max(map(abs, rewards))) for rewards in paid.values())
