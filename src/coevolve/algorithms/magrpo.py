"""MAGRPO: N agents act at once and learn from one joint return (arXiv 2508.04652), and its three sister baselines.

Who acts when is the play (``rounds``, ``tree``, ``best_of``); here is what each agent learns: R_t = sum of the team's
rewards from turn t on, A = R - mean over the group, and the gradient of A log pi(response), summed over the response.
No standard deviation, ratio, clipping, KL or discount unless asked for.

Deviations from the paper and its released code:

1. Each agent takes one optimiser step over all its turns; the paper's algorithm 1 takes one per turn.
2. Several problems can share a step; that code is fixed at one.
3. The end of sequence an agent sampled is trained and padding is not; that code drops the last token of the padded row
   and trains padding.
4. ``std`` divides the advantage and never centres it again, so the four baselines stay four algorithms; there,
   normalising makes them one.
5. A response that met several partners (``joint: cross``) is paid their mean; there, their sum.
6. ``gamma`` is applied; there it is accepted and ignored. As everywhere, the factor gamma^t of a later turn's own
   gradient is left out.
7. AdamW as in that code, but on float32 weights whatever the computation's dtype, and without weight decay by default.
"""

from __future__ import annotations

from coevolve.algorithms.group_relative import group_relative
from coevolve.algorithms.variant import variant

magrpo = variant("magrpo", group_relative, "MAGRPO: the baseline is the mean of the group.", baseline="mean")

marloo = variant("marloo", group_relative, "MAGRPO against the mean of the others in the group.", baseline="loo")

maremax = variant("maremax", group_relative, "MAGRPO against the best of the group.", baseline="max")

mareinforce = variant("mareinforce", group_relative, "MAGRPO without a baseline.", baseline="none")
