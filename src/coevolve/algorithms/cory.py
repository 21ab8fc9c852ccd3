"""CORY: PPO whose agents share one reward (arXiv 2410.06101, section 3).

The rest of CORY is its play and its cast: ``chain`` shows the observer the pioneer's answer, ``exchange(every=5)``
swaps the roles. Deviations beyond those of ppo:

1. The printed listing computes the observer's reward from the pioneer's answer; here it is scored on its own.
2. Optimiser, value head, KL weight and reward statistics stay with the policy across an exchange. The released script
   rebuilds all of them but the value head, and re-seeds, at every exchange; ``reset_every`` of the trainer does so
   (the random numbers are those of sampling), as a control.
3. Score scaling and normalisation are off: the paper does not mention them; the released script has both on
   (``rescale: normalise``).
"""

from __future__ import annotations

from coevolve.algorithms.ppo import ppo
from coevolve.algorithms.variant import variant

cory = variant("cory", ppo, "CORY: PPO whose agents share the sum of their rewards.", credit="team_sum")
