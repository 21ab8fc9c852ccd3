"""The choice of the reward that teams are compared by: it must be a mean over turns of the same kind in all of them.

The reward of a run is a mean over all its turns. If half of a team's turns are those of an observer, who has read an
answer, this mean cannot be compared with that of a pioneer alone. So teams that differ in roles or play are compared by
the role that speaks first in all of them, hearing nothing, and on held-out problems by each policy alone.
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
    """A reward that means the same in all teams, and the KL that it costs.

    role: the only role whose turns count; empty for all turns. priced: whether the runs record the KL of these turns,
    not only that of all turns.
    """

    role: str = ""
    priced: bool = True

    @property
    def metric(self) -> str:
        """The key of the reward in ``metrics.jsonl``."""
        return f"reward/{self.role}" if self.role else "reward"

    @property
    def kl(self) -> str:
        """The key of the KL of the same turns, or of all turns where that is not recorded."""
        return f"kl/{self.role}" if self.role and self.priced else "kl"

    @property
    def objective(self) -> str:
        """The key of the reward minus the weighted KL of the same turns."""
        return f"objective/{self.role}" if self.role else "objective"

    @property
    def whose(self) -> str:
        """The words after "reward" in titles: `` (ROLE alone)`` or nothing."""
        return f" ({self.role} alone)" if self.role else ""

    @property
    def said(self) -> str:
        """The reason for comparing one role only; empty if all turns are compared."""
        if not self.role:
            return ""
        return (
            " These teams differ in their roles or play, and a mean over all turns would be one over unlike turns. "
            f"Compared is what {self.role} earns, who speaks first in all of them and hears nobody, and on held-out "
            "problems each policy alone"
            + ("." if self.priced else "; the objective is known of all turns only, and is not.")
        )

    def of_kl(self, groups: Sequence[Group]) -> str:
        """Return a remark if the KL of these groups is a mean over different kinds of turns; else empty."""
        return _UNLIKE_KL if self.kl == "kl" and any(paying(group) != paying(groups[0]) for group in groups) else ""


ALL_TURNS = Reward()


def compared(groups: Sequence[Group]) -> Reward | None:
    """Return the reward that these groups' teams are compared by; None if no reward is comparable."""
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
    """Return whether the groups' teams differ in roles or play."""
    return any(team(group) != team(groups[0]) for group in groups)


def paying(group: Group) -> list[Any]:
    """Return what determines which turns a group's KL is a mean over: its team, and the roles that learn."""
    return [team(group), learners(group)]


def learners(group: Group) -> set[str]:
    """Return the roles that are ever played by a policy that learns: one with a KL."""
    return {role for run in group.runs for role, policy in run.seats if f"agents/{policy}/kl" in run.keys}


def team(group: Group) -> list[Any]:
    """Return the roles in order, the play, and its settings, including defaults where the run has recorded them."""
    run = group.runs[0]
    roles, play = list(run.lines[0].get("cast", {})), run.recipe.get("play")
    whole = (run.written(FILE) or {}).get("settings", {}).get("play")
    if whole is None:
        return [roles, play, run.recipe.get("play_settings")]
    return [roles, play["name"] if isinstance(play, Mapping) else play, whole]


def _opener(group: Group) -> str:
    """Return the role that speaks first in every dialogue and never hears a turn or a note; empty if there is none."""
    first = set().union(*(run.openers for run in group.runs))
    heard = set().union(*(run.listeners for run in group.runs))
    return first.pop() if len(first) == 1 and not first & heard else ""
