"""Preferences between pairs of turns, and losses over pairs. Letters: B turns."""

from __future__ import annotations

from coevolve.late import Tensor, torch
from coevolve.maths import groups


def preferred(credit_B: Tensor, peers_B: Tensor, most: int | None, paid_B: Tensor | None = None) -> Tensor:
    """Return the preference pairs, [B, B] bool: the row's turn has more credit than the column's, in the same group.

    most: the number of pairs per group, those of the largest difference (among equal ones the first); None: all.
    paid_B: as in ``Batch``. Turns whose credit differs by rounding only, that of sums included, are a tie and no pair.
    """
    gap_BB = credit_B[:, None].double() - credit_B.double()
    same_BB = peers_B[:, None] == peers_B
    tie_B = groups.tolerance(credit_B, peers_B, paid_B)
    better_BB = same_BB & (gap_BB > tie_B[:, None])
    if most is None:
        return better_BB
    chosen_BB = torch.zeros_like(better_BB)
    for group in sorted(set(peers_B.tolist())):
        rows = (peers_B == group).nonzero()[:, 0]
        inside = torch.meshgrid(rows, rows, indexing="ij")
        flat = torch.where(better_BB[inside], gap_BB[inside], -torch.inf).flatten()
        taken = flat.sort(descending=True, stable=True).indices[: min(most, int(better_BB[inside].sum()))]
        chosen_BB[inside[0].flatten()[taken], inside[1].flatten()[taken]] = True
    return chosen_BB


def pair_weights(better_BB: Tensor, peers_B: Tensor, weight_B: Tensor) -> Tensor:
    """Return the weight of a pair, by the row of its preferred turn: the total weight of its group's turns divided by
    the number of the group's pairs; shape B."""
    same_BB = (peers_B[:, None] == peers_B).to(weight_B.dtype)
    pairs_B = same_BB @ better_BB.sum(1).to(weight_B.dtype)
    return (same_BB @ weight_B) / pairs_B.clamp(min=1)


def bradley_terry(score_B: Tensor, better_BB: Tensor, weight_B: Tensor) -> Tensor:
    """Return -sum w log sigmoid(score of the preferred - score of the other) over pairs: the negative log-likelihood of
    the preferences if their probability is the logistic function of the difference (Bradley and Terry 1952).

    With scores beta log(pi / pi_0) it is DPO's loss (arXiv 2305.18290, equation 7). weight_B: of the row's pairs.
    """
    margin_BB = score_B[:, None] - score_B
    return -(torch.nn.functional.logsigmoid(margin_BB) * better_BB * weight_B[:, None]).sum()
