"""Warnings about a training, each given once: rewards that cancel out, turns or a critic without a signal."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

from coevolve.pay import alike
from coevolve.types import Algorithm, Episode, Lesson, Metrics, PolicyName, Row, Sampling, Targets

_MANY_ALONE = 0.25
"""The share of turns without peers above which to warn."""

_DEAD = 20
"""The number of consecutive steps with a critic worse than none from which to warn."""

_ALIKE = 5
"""The number of consecutive steps in which all rewards are equal from which to warn."""

_ENOUGH = 8
"""The fewest joints by which to judge whether agents are paid against each other."""


class Cautions:
    """The warnings of one training. said: the keys of those that were already given."""

    def __init__(self) -> None:
        self.said: set[tuple[str, ...]] = set()
        self.worse_than_nothing: Counter[PolicyName] = Counter()
        """For each policy, the number of consecutive steps in which its critic was worse than none."""
        self.paid_alike = 0
        """The number of consecutive steps in which all rewards were equal, and the same as in the step before."""
        self.paid: set[float] = set()
        """The rewards of the step before."""

    def _say(self, text: str, *what: str) -> None:
        """Warn, unless a warning with this key was given. what: the key, since the numbers in the text change."""
        if what not in self.said:
            self.said.add(what)
            warnings.warn(text, stacklevel=4)

    def of_settings(self, sampling: Sampling, algorithm: Algorithm) -> None:
        """Warn about settings, before the first step."""
        if sampling.truncated:
            self._say(
                "top_k, top_p or repetition_penalty is on: tokens are drawn from another distribution than is scored, "
                "so gradients and ratios are approximations; the metric excess says how far off, in nats per token",
                "truncated",
            )
        if algorithm.caution:
            self._say(algorithm.caution, "algorithm")

    def of_problems(self, batch_size: int, members: int, problems: int) -> None:
        """Warn if a step has the same problem several times. problems: number of training problems of the task."""
        if batch_size > problems and members > 1:
            self._say(
                f"batch_size is {batch_size} and the task has {problems} training problems: a problem comes several "
                "times in a step, and all its members are compared as one larger group; lower batch_size and raise "
                "members, or give the task more problems",
                "problems",
            )

    def of_pay(self, episodes: Sequence[Episode], rows: Sequence[Row]) -> None:
        """Warn about agents that are paid against each other, and about rewards that are equal for many steps."""
        found = {reward for episode in episodes for joint in episode.joints for reward in joint.rewards}
        same = len(found) == 1 and len({row.credit for row in rows}) < 2  # a comparator may tell equal rewards apart
        self.paid_alike = (self.paid_alike if found == self.paid else 0) + 1 if same else 0
        self.paid = found
        if self.paid_alike >= _ALIKE:
            self._say(
                f"for {_ALIKE} steps every turn has had the same reward, {min(found):g}, so nobody has anything "
                "to learn from it; look at the answers (samples.jsonl of the run) and at the task's reward",
                "alike",
            )
        if averaged_away(episodes, rows):
            self._say(
                "the task pays one agent what it takes from the others, and the credit pays them all alike, so that "
                "nobody has anything to learn; set algorithm.credit to own_return or own_reward",
                "pay",
            )

    def of_targets(self, lesson: Lesson, targets: Mapping[PolicyName, Targets]) -> None:
        """Warn about policies without targets."""
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
        """Warn about turns without peers, and about a critic worse than a constant for many steps."""
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
    """Return whether the task pays agents against each other and the credit does not tell them apart.

    That is: the sum of rewards is the same in every joint, the reward of some agent varies, and all turns have the same
    credit. False for fewer than ``_ENOUGH`` joints, which may be so by chance.
    """
    joints = [joint for episode in episodes for joint in episode.joints]
    size = max((abs(reward) for joint in joints for reward in joint.rewards), default=0.0)
    if len(joints) < _ENOUGH or len({len(joint.rewards) for joint in joints}) > 1:
        return False
    divided = any(not alike(seat, size) for seat in zip(*(joint.rewards for joint in joints), strict=True))
    return (
        divided and alike((sum(joint.rewards) for joint in joints), size) and alike((row.credit for row in rows), size)
    )
