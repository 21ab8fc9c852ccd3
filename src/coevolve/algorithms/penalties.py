"""KL penalties: the part that is subtracted from a token's reward, and the part that is in the loss instead.

Letters: B turns, T action tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from coevolve.algorithms.advantages import Rule, full_kl, log_ratio
from coevolve.algorithms.losses import KL_WEIGHT
from coevolve.late import Tensor, torch
from coevolve.maths import masked
from coevolve.types import Batch, Targets


def later_kl(batch: Batch, gamma: float) -> Tensor:
    """Return at each token gamma times the full KL of the next position, 0 at the last: in the reward to go these
    add up to the KL of all later positions, which the token affects. gamma: the discount per token.

    The KL of a token's own position, which the token does not change, belongs in the loss (``with_full_kl``,
    ``beside_kl``): both together have the gradient of the turn's KL, in expectation sum_t grad KL_t + grad log pi(a_t)
    sum_{s>t} KL_s.
    """
    return gamma * torch.nn.functional.pad(full_kl(batch)[:, 1:], (0, 1))


def beside_kl(rule: Rule, whiten: bool) -> Rule:
    """Return the rule for a loss that has the KL of each token's own position, with weight columns[KL_WEIGHT].

    whiten: advantages to mean 0; advantages and weight are divided by the root of the advantages' variance plus the
    mean square of the penalty. One divisor keeps the gradient's direction, and the KL of equal advantages stays finite.
    """

    def beside(batch: Batch, eta: float) -> Targets:
        targets, mask_BT = rule(batch, eta), batch.mask_BT
        adv_BT, unit = targets.adv_BT, targets.adv_BT.new_ones(())
        if whiten:
            penalty = masked.mean((eta * full_kl(batch)).square(), mask_BT)
            unit = torch.rsqrt(masked.variance(adv_BT, mask_BT) + penalty + 1e-8)
            adv_BT = masked.centred(adv_BT, mask_BT) * unit
        weight_B = (eta * unit).expand(len(batch))
        return dataclasses.replace(targets, adv_BT=adv_BT, columns={**targets.columns, KL_WEIGHT: weight_B})

    return beside


class Penalty(NamedTuple):
    """A KL penalty against the reference.

    paid: (batch, gamma) -> the penalty in the reward of each token, before the weight. in_loss: whether the rest of the
    KL is a term of the loss. caution: ``Algorithm.caution``.
    """

    paid: Callable[[Batch, float], Tensor]
    in_loss: bool = False
    caution: str = ""


_BLIND = (
    "penalty: full is the paper's, and blind: the KL over the vocabulary does not depend on the token that was drawn, "
    "so as a reward it has no gradient where it stands, and the policy may move away from its reference; penalty: "
    "exact has the true gradient, penalty: sampled the same with more variance (docs/ppo.md, The KL penalty)"
)
PENALTIES = {
    "full": Penalty(lambda batch, gamma: full_kl(batch), caution=_BLIND),
    "sampled": Penalty(lambda batch, gamma: log_ratio(batch)),
    "exact": Penalty(later_kl, in_loss=True),
}
