"""Single-agent GRPO and its successors, RLOO and REINFORCE: a play of one role with ``members`` samples per problem.

They are ``group_relative`` with other defaults, and work for teams as well. Deviations from their papers are numbered
in docs/grpo.md, objectives.md, rloo.md, reinforce.md.
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

dr_grpo = variant(
    "dr_grpo",
    group_relative,
    "Dr. GRPO: GRPO without the two divisions that bias it, by the group's deviation and by a response's length.",
    baseline="mean",
    clip=0.2,
)

dapo = variant(
    "dapo",
    group_relative,
    "DAPO: GRPO that clips higher above, counts tokens alike, and plays others in place of groups without a signal.",
    baseline="mean",
    std="group",
    clip=(0.2, 0.28),
    loss_aggregation="token",
    drop_flat=True,
    resample=3,
)

gspo = variant(
    "gspo",
    group_relative,
    "GSPO: GRPO with one ratio for a whole response.",
    baseline="mean",
    std="group",
    clip=(3e-4, 4e-4),
    ratio="turn",
    loss_aggregation="turn",
)

cispo = variant(
    "cispo",
    group_relative,
    "CISPO: GRPO whose clipped ratio weighs a token and never silences it; only from above.",
    baseline="mean",
    std="group",
    clip=(1.0, 4.0),
    ratio="detached",
    loss_aggregation="token",
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
