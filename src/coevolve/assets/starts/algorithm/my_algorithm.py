"""An algorithm: one of Coevolve's with its advantage replaced. Named in my_algorithm.yaml."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from coevolve import Algorithm, Lesson, Targets, magrpo


def my_algorithm(*, largest: float = 2.0, credit: str = "team_return") -> Algorithm:
    """MAGRPO, each turn against the mean of its peers, with advantages clipped to ``largest``.

    Keyword arguments are keys of the recipe: algorithm: {name: my_algorithm.py:my_algorithm, largest: 1.0}
    """

    def advantage(lesson: Lesson, state: Mapping[str, Any]) -> tuple[dict[str, Targets], Mapping[str, Any]]:
        """Return the advantage of every token of every policy, and the state of the next step, which checkpoints hold.
        Names end in their axes: B turns, T tokens of the longest."""
        targets = {}
        for name, batch in lesson.batches.items():
            adv_B = torch.zeros_like(batch.credit_B)
            for peers in set(batch.peers_B.tolist()):  # turns of one role on one problem
                mine_B = batch.peers_B == peers
                adv_B[mine_B] = batch.credit_B[mine_B] - batch.credit_B[mine_B].mean()
            cut_B = adv_B.clamp(-largest, largest)
            share = float((cut_B != adv_B).float().mean())
            targets[name] = Targets(cut_B[:, None] * batch.mask_BT, metrics={"share_cut": share})
        return targets, state

    made = magrpo(credit=credit)  # its loss and all else that is not replaced
    return replace(made, advantage=advantage, settings={**made.settings, "largest": largest})
