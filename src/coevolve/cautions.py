"""What whoever trains should be told, once each: pay that cancels, turns or a critic that teach nothing."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

from coevolve.pay import alike
from coevolve.types import Algorithm, Episode, Lesson, Metrics, PolicyName, Row, Sampling, Targets

_MANY_ALONE = 0.25
"""A share of turns without peers that is worth a warning."""

_DEAD = 20
"""Steps in a row of a critic worse than none that are worth a warning."""

_ENOUGH = 8
"""Joints that say whether agents are paid against each other."""


class Cautions:
    """Warnings of one training. said: what was said already."""

    def __init__(self) -> None:
        self.said: set[tuple[str, ...]] = set()
        self.worse_than_nothing: Counter[PolicyName] = Counter()
        """For how many steps in a row each critic has been."""

    def _say(self, text: str, *what: str) -> None:
        """what: by which it is known again, the text with its numbers aside."""
        if what not in self.said:
            self.said.add(what)
            warnings.warn(text, stacklevel=4)

    def of_settings(self, sampling: Sampling, algorithm: Algorithm) -> None:
        """Of what is known before the first step."""
        if sampling.truncated:
            self._say(
                "top_k, top_p or repetition_penalty is on: tokens are drawn from another distribution than is scored, "
                "so gradients and ratios are approximations; the metric excess says how far off, in nats per token",
                "truncated",
            )
        if algorithm.caution:
            self._say(algorithm.caution, "algorithm")

    def of_problems(self, batch_size: int, members: int, problems: int) -> None:
        """Of a step that has the same problem several times. problems: how many the task trains on."""
        if batch_size > problems and members > 1:
            self._say(
                f"batch_size is {batch_size} and the task has {problems} training problems: a problem comes several "
                "times in a step, and all its members are compared as one larger group; lower batch_size and raise "
                "members, or give the task more problems",
                "problems",
            )

    def of_pay(self, episodes: Sequence[Episode], rows: Sequence[Row]) -> None:
        """Of agents that are paid against each other."""
        if averaged_away(episodes, rows):
            self._say(
                "the task pays one agent what it takes from the others, and the credit pays them all alike, so that "
                "nobody has anything to learn; set algorithm.credit to own_return or own_reward",
                "pay",
            )

    def of_targets(self, lesson: Lesson, targets: Mapping[PolicyName, Targets]) -> None:
        """Of policies that the algorithm left out."""
        for name in lesson.batches:
            if name not in targets:
                self._say(
                    f"policy {name!r}: the advantage gave it no targets, so the turns of this step taught it nothing; "
                    "that is right where a rule updates it at other steps (said at the first one only); a policy that "
                    "is never to learn has weights: frozen",
                    "targets",
                    name,
                )

    def of_learning(self, name: PolicyName, metrics: Metrics) -> None:
        """Of turns that taught nothing, and of values that have been worse than one number for all for many steps."""
        if metrics.get("groups_of_one", 0.0) > _MANY_ALONE:
            self._say(
                f"policy {name!r}: {metrics['groups_of_one']:.0%} of its turns have no peers to be compared with and "
                "teach nothing; raise members, or the k of the play",
                "alone",
                name,
            )
        below = metrics.get("explained_variance", 0.0) < 0
        self.worse_than_nothing[name] = self.worse_than_nothing[name] + 1 if below else 0
        if self.worse_than_nothing[name] >= _DEAD:
            self._say(
                f"policy {name!r}: its critic has explained less than nothing of the returns (explained_variance below "
                f"0) for {_DEAD} steps, so it adds noise to the advantages; set value_learning_rate of the policy to "
                "some 30 times its learning_rate and value_coef to 1, or compare members instead (marloo, rloo)",
                "critic",
                name,
            )


def averaged_away(episodes: Sequence[Episode], rows: Sequence[Row]) -> bool:
    """Does the task pay agents against each other, and the credit not tell them apart?

    True where every joint pays the same in all, what a seat is paid varies, and all turns have the same credit. A few
    joints may do so by chance, and are not enough.
    """
    joints = [joint for episode in episodes for joint in episode.joints]
    size = max((abs(reward) for joint in joints for reward in joint.rewards), default=0.0)
    if len(joints) < _ENOUGH or len({len(joint.rewards) for joint in joints}) > 1:
        return False
    divided = any(not alike(seat, size) for seat in zip(*(joint.rewards for joint in joints), strict=True))
    return (
        divided and alike((sum(joint.rewards) for joint in joints), size) and alike((row.credit for row in rows), size)
    )
