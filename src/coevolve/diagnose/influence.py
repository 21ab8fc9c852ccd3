"""Influence of each agent on the return: Sobol's total effect of its random choices, and the cost of its silence.

The return of an episode is a function of the problem and of one independent stream of random numbers per agent. The
total effect of agent i is the share of the return's variance, within problems, that is left once all other agents'
numbers are known: E[Var(R | others)] / Var(R). With R' the return after only agent i's numbers are redrawn, Jansen's
estimate of it is E[(R - R')^2] / (2 Var(R)) (Computer Physics Communications 117, 1999).

Letters: A agents; P, M, U as in ``paired``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coevolve import noise
from coevolve.diagnose.paired import Numbers, units, with_interval
from coevolve.diagnose.scene import Row, Scene, condition, played_or_not
from coevolve.interfaces import TurnSource, context
from coevolve.types import Asked, PolicyName, Role, Say, Turn

Ends = Mapping[PolicyName, Sequence[int]]
"""Policy -> token ids of an empty turn: its end of sequence, if it has one."""


@dataclass(frozen=True)
class _Changed:
    """An engine that changes the turns of one role."""

    engine: TurnSource
    role: Role

    def encode(self, policy: PolicyName, prompt: Asked) -> Sequence[int]:
        return self.engine.encode(policy, prompt)

    def context(self, policy: PolicyName) -> int | None:
        return context(self.engine, policy)


class Redrawn(_Changed):
    """An engine that draws other random numbers for one role."""

    def generate(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Turn]]:
        return self.engine.generate({name: [self._anew(say) for say in asked] for name, asked in says.items()})

    def _anew(self, say: Say) -> Say:
        return replace(say, key=noise.key(say.key, "redrawn")) if say.role == self.role else say


@dataclass(frozen=True)
class Silent(_Changed):
    """An engine that returns empty turns for one role, as if it ended at once."""

    ends: Ends

    def generate(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Turn]]:
        loud = {name: [say for say in asked if say.role != self.role] for name, asked in says.items()}
        heard = self.engine.generate({name: asked for name, asked in loud.items() if asked})
        spoken = {name: iter(turns) for name, turns in heard.items()}
        return {
            name: [self._nothing(say) if say.role == self.role else next(spoken[name]) for say in asked]
            for name, asked in says.items()
        }

    def _nothing(self, say: Say) -> Turn:
        ids = self.ends[say.policy]
        return say.answered(ids, [0.0] * len(ids), "", finished=bool(ids))


def rows(scene: Scene, base_PM: Numbers, ends: Ends) -> Iterator[Row]:
    """Yield two rows per role: ``redrawn`` with its total effect and its share of all effects, and ``silent``. If a
    redrawn role cannot be played, its row has the ``reason``, and no row has effects.

    Yields nothing for a single role, which is the only influence.
    """
    if len(scene.cast) == 1:
        return
    redrawn = [replace(scene, engine=Redrawn(scene.engine, role)).tried() for role in scene.cast]
    played = [one for one in redrawn if not isinstance(one, str)]
    whole = len(played) == len(redrawn)  # a share is of the effects of all roles
    effects = total_effects(base_PM, np.stack(played)) if whole else [{} for _ in redrawn]
    for (role, policy), found, effect in zip(scene.cast.items(), redrawn, effects, strict=True):
        who = {"kind": "influence", "role": role, "policy": policy}
        yield {**who, "setting": "redrawn", **played_or_not(found), **effect}
        silent = condition(replace(scene, engine=Silent(scene.engine, role, ends)), base_PM)
        yield {**who, "setting": "silent", **silent}


def total_effects(base_PM: Numbers, redrawn_APM: Numbers) -> list[Row]:
    """Return for each agent effect, its total effect, and share, its part of the sum of all; each with _low and _high.

    All are NaN where the return does not vary. At least two members are needed.
    """
    members = base_PM.shape[1]
    from_first_PM = base_PM - base_PM[:, :1]  # exactly 0 where the return does not vary
    within_PM = (from_first_PM - from_first_PM.mean(1, keepdims=True)) ** 2 * members / (members - 1)
    # The mean of the first A columns over that of the last is the total effect.
    columns_CU = np.stack([*(units((base_PM - one_PM) ** 2 / 2) for one_PM in redrawn_APM), units(within_PM)])
    return [_of_agent(agent, columns_CU) for agent in range(len(redrawn_APM))]


def _of_agent(agent: int, columns_CU: Numbers) -> Row:
    return {
        **with_interval("effect", columns_CU, lambda means_CR: means_CR[agent] / means_CR[-1]),
        **with_interval("share", columns_CU, lambda means_CR: means_CR[agent] / means_CR[:-1].sum(0)),
    }
