"""Single-agent GRPO, RLOO and REINFORCE: a play of one role with ``members`` samples a problem.

They are MAGRPO's parts with other settings, and may be given to a team just as well. Deviations from their papers are
numbered in docs/grpo.md, rloo.md, reinforce.md.
"""

from __future__ import annotations

from coevolve.algorithms.group_relative import group_relative
from coevolve.algorithms.variant import variant

grpo = variant(
    "grpo",
    group_relative,
    "GRPO: mean and deviation of the group, clipped ratio, every turn alike, k3 in the loss.",
    baseline="mean",
    std="group",
    clip=0.2,
    loss_aggregation="turn",
    beta=0.04,
)

rloo = variant(
    "rloo",
    group_relative,
    "RLOO: leave-one-out over whole responses, log-ratio in the return.",
    baseline="loo",
    beta=0.05,
    kl="reward",
    estimator="k1",
)

reinforce = variant("reinforce", group_relative, "REINFORCE: the return itself.", baseline="none")
