"""A2C and REINFORCE++: PPO with other defaults. Deviations from the papers are numbered in docs/objectives.md."""

from __future__ import annotations

from coevolve.algorithms.ppo import ppo
from coevolve.algorithms.variant import variant

a2c = variant(
    "a2c",
    ppo,
    "A2C: the policy gradient against a critic, one pass over each batch without a ratio, and an entropy bonus.",
    clip=None,
    epochs=1,
    lam=1.0,
    value_coef=0.5,
    whiten=False,
    entropy=0.01,
    penalty="sampled",
)

reinforce_pp = variant(
    "reinforce_pp",
    ppo,
    "REINFORCE++: PPO without a critic; what is still to come, whitened over the whole batch, is the advantage.",
    critic=False,
    lam=1.0,
    eta=0.01,
    epochs=1,
    penalty="sampled",
)
