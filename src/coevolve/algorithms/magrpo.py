"""MAGRPO: N agents act at once and learn from one joint return (arXiv 2508.04652); also its variants by baseline.

The order of turns is set by the play (``rounds``, ``tree``, ``best_of``). Each agent learns from R_t = sum of the
team's rewards from turn t on, with A = R - mean over the group and the gradient of A log pi(response), summed over the
response. No standard deviation, ratio, clipping, KL or discount unless asked for.

Deviations from the paper and its released code are numbered in docs/magrpo.md, marloo.md, maremax.md, mareinforce.md.
"""

from __future__ import annotations

from coevolve.algorithms.group_relative import group_relative
from coevolve.algorithms.variant import variant

magrpo = variant("magrpo", group_relative, "MAGRPO: the baseline is the mean of the group.", baseline="mean")

marloo = variant("marloo", group_relative, "MAGRPO against the mean of the others in the group.", baseline="loo")

maremax = variant("maremax", group_relative, "MAGRPO against the best of the group.", baseline="max")

mareinforce = variant("mareinforce", group_relative, "MAGRPO without a baseline.", baseline="none")
