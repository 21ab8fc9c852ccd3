"""Every joint response is continued several times: MAGRPO's multi-turn rollout since its second release."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from coevolve.play import Feedback, Roles, score, together
from coevolve.plays.between import Done, Heard, Several, Threshold, heard_next, notes, silence, stops
from coevolve.settings import Count, checked_call
from coevolve.types import Play, Problem, Turn


@checked_call("play")
def tree(
    n: Count,
    k: Several,
    joint: Literal["aligned", "cross"] = "aligned",
    feedback: bool | Feedback = False,
    done: Threshold | Done | None = None,
) -> Play:
    """Play a tree of n joint turns; at every node each agent samples k responses, which are each other's peers.

    joint: ``aligned`` combines the j-th responses of all agents to the j-th joint (k joints); ``cross`` has every
    combination (k^N joints of N agents; a response's reward is then the mean over its partners). Every joint is scored
    and is the node of its own continuations, unless ``done``. feedback, done: as in ``rounds``. ``members`` are further
    trees, each compared within itself only. Raises ValueError for n < 1 or k < 2.
    """
    is_done = stops(done)
    combine = {"aligned": zip, "cross": itertools.product}[joint]

    async def play(p: Problem, team: Roles) -> None:
        async def grow(heard: Heard, node: tuple[int, ...], after: Sequence[Turn], weight: float) -> None:
            says = (team[role](*heard[role], peers=node, weight=weight / k) for role in team for _ in range(k))
            said = await together(*says)
            joints = list(combine(*(said[first : first + k] for first in range(0, len(said), k))))
            paid = await together(*(score(team, acts, after) for acts in joints))
            if len(node) + 1 < n:
                going = [i for i, rewards in enumerate(paid) if not is_done(rewards)]
                await together(*(follow(heard, (*node, i), joints[i], weight / len(joints)) for i in going))

        async def follow(heard: Heard, node: tuple[int, ...], acts: Sequence[Turn], weight: float) -> None:
            told = await notes(feedback, team, p, acts)
            await grow(heard_next(heard, acts, told), node, acts, weight)

        await grow(silence(team), (), (), 1.0)

    return play
