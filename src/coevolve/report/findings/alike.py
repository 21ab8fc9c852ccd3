"""Which reward teams are compared by: one that is of like turns in all of them.

The reward of a run is a mean over all its turns. That of a team half of whose turns are an observer's, who has read an
answer, says nothing beside that of a pioneer alone. So teams that differ in roles or play are compared by the role that
speaks first in all of them, hearing nobody, and on held-out problems by each policy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coevolve.report.runs import Group
from coevolve.runs.environment import FILE

REFUSED = (
    "Not compared: these teams differ in their roles or play, so that their rewards are means over unlike turns, and "
    "their dialogues show no role that speaks first in all of them and hears nobody. Give one report the runs of one "
    "team."
)
_UNLIKE_KL = " The KL is the mean over all who learn, whatever role they play, which are unlike here."


@dataclass(frozen=True)
class Reward:
    """A reward that means the same in all teams, and its price in KL.

    role: whose alone; empty where it is that of all turns. priced: whether the runs know the KL of those turns, and not
    only that of all.
    """

    role: str = ""
    priced: bool = True

    @property
    def metric(self) -> str:
        """Its key in ``metrics.jsonl``."""
        return f"reward/{self.role}" if self.role else "reward"

    @property
    def kl(self) -> str:
        """That of what the reward costs: the KL of the same turns, or of all where that is not known."""
        return f"kl/{self.role}" if self.role and self.priced else "kl"

    @property
    def objective(self) -> str:
        """That of reward less the weighted KL of the same turns."""
        return f"objective/{self.role}" if self.role else "objective"

    @property
    def whose(self) -> str:
        """What follows the word in titles."""
        return f" ({self.role} alone)" if self.role else ""

    @property
    def said(self) -> str:
        """Why it is this one; empty where there is nothing to say."""
        if not self.role:
            return ""
        return (
            " These teams differ in their roles or play, and a mean over all turns would be one over unlike turns. "
            f"Compared is what {self.role} earns, who speaks first in all of them and hears nobody, and on held-out "
            "problems each policy alone"
            + ("." if self.priced else "; r - eta*KL is known of all turns only, and is not.")
        )

    def of_kl(self, groups: Sequence[Group]) -> str:
        """What is to be said of a KL of these groups; empty where it is of like turns."""
        return _UNLIKE_KL if self.kl == "kl" and any(paying(group) != paying(groups[0]) for group in groups) else ""


ALL_TURNS = Reward()


def compared(groups: Sequence[Group]) -> Reward | None:
    """What these groups' teams are compared by; None if nothing that they are paid is alike."""
    if not unlike(groups):
        return ALL_TURNS
    first, *others = {_opener(group) for group in groups}
    reward = Reward(first)
    runs = [run for group in groups for run in group.runs]
    if not first or others or not all(reward.metric in run.keys for run in runs):
        return None
    lines = [line for run in runs for line in run.lines if line.get("kl") is not None]
    return replace(reward, priced=all(reward.kl in line for line in lines))


def unlike(groups: Sequence[Group]) -> bool:
    """Whether their teams differ in roles or play."""
    return any(team(group) != team(groups[0]) for group in groups)


def paying(group: Group) -> list[Any]:
    """Of whose turns a group's KL is a mean."""
    return [team(group), learners(group)]


def learners(group: Group) -> set[str]:
    """The roles that are ever played by a policy with a KL, which is one that learns."""
    return {role for run in group.runs for role, policy in run.seats if f"agents/{policy}/kl" in run.keys}


def team(group: Group) -> list[Any]:
    """Roles in order, the play, and its settings, with those that a recipe leaves to it where the run has kept them."""
    run = group.runs[0]
    roles, play = list(run.lines[0].get("cast", {})), run.recipe.get("play")
    whole = (run.written(FILE) or {}).get("settings", {}).get("play")
    if whole is None:
        return [roles, play, run.recipe.get("play_settings")]
    return [roles, play["name"] if isinstance(play, Mapping) else play, whole]


def _opener(group: Group) -> str:
    """The role that speaks first in every dialogue, and whenever it speaks has heard nothing; empty if none does."""
    first = set().union(*(run.openers for run in group.runs))
    heard = set().union(*(run.listeners for run in group.runs))
    return first.pop() if len(first) == 1 and not first & heard else ""
