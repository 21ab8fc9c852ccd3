"""Episodes -> one Batch per policy. Nothing else in the package pads training rows.

Letters: B turns, S positions of a row, T action tokens. The layout is drawn token by token in ``coevolve.types``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from coevolve.types import Batch, Credit, Episode, PolicyName, Turn

_LARGEST = torch.finfo(torch.float32).max


def collate(episodes: Sequence[Episode], credit: Credit, policy: PolicyName) -> Batch:
    """All turns of one policy as one Batch on the CPU, in the order of the episodes.

    credit is asked once per episode and must return one number per turn (of all policies). Raises ValueError, which
    names the problem, for another count of them or a number that float32 cannot hold.
    """
    turns: list[Turn] = []
    credits: list[float] = []
    paid: list[float] = []
    for episode in episodes:
        size = sum(abs(reward) for joint in episode.joints for reward in joint.rewards)
        for turn, share in zip(episode.turns, _credits(episode, credit), strict=True):
            if turn.policy == policy:
                turns.append(turn)
                credits.append(share)
                paid.append(size)
    assert turns, f"policy {policy} took no turn in these episodes"
    return _batch(turns, credits, paid, len(turns) / len(episodes))


def _credits(episode: Episode, credit: Credit) -> list[float]:
    found = credit(episode)
    where = f"the credit of problem {episode.problem.id!r}"
    if len(found) != len(episode.turns):
        raise ValueError(f"{where}: {len(found)} numbers for {len(episode.turns)} turns; want one per turn")
    for turn, share in zip(episode.turns, found, strict=True):
        if not abs(share) <= _LARGEST:  # true of NaN, too
            raise ValueError(f"{where}: policy {turn.policy!r} is given {share}; want a finite number of float32")
    return found


def _batch(turns: Sequence[Turn], credits: Sequence[float], paid: Sequence[float], turns_per_episode: float) -> Batch:
    groups: dict[object, int] = {}
    action_BT = pad([t.action_ids for t in turns], torch.long)
    actions_B = torch.tensor([len(t.action_ids) for t in turns])
    start_B = torch.tensor([len(t.prompt_ids) for t in turns])
    return Batch(
        ids_BS=pad([[*t.prompt_ids, *t.action_ids] for t in turns], torch.long),
        start_B=start_B,
        length_B=start_B + actions_B,
        action_BT=action_BT,
        mask_BT=torch.arange(action_BT.shape[1]) < actions_B[:, None],
        logp_BT=pad([t.logps for t in turns], torch.float32),
        credit_B=torch.tensor(credits, dtype=torch.float32),
        reward_B=torch.tensor([math.nan if t.reward is None else t.reward for t in turns]),
        peers_B=torch.tensor([groups.setdefault(t.peers, len(groups)) for t in turns]),
        temperature_B=torch.tensor([t.temperature for t in turns]),
        share_B=torch.tensor([t.share * turns_per_episode for t in turns]),
        paid_B=torch.tensor(paid, dtype=torch.float32),
    )


def pad(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
    """Ragged rows as one tensor, filled with 0 on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=dtype)
