"""Collation: episodes -> rows with their credit -> one Batch per policy. Only this module pads training rows.

Letters: B turns, S positions of a row, T action tokens. The layout is drawn token by token in ``coevolve.types``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coevolve.files import shown
from coevolve.types import Batch, Credit, Episode, PolicyName, Reward, Row

_LARGEST = torch.finfo(torch.float32).max


def rows_of(episodes: Sequence[Episode], credit: Credit, reward: Reward) -> list[Row]:
    """Return a row for every turn of a step, of all policies, in the order of the episodes.

    ``credit`` is called once, with all episodes. Raises ValueError, naming the problem, unless it returns one number
    per turn, finite in float32.
    """
    credits: Any = credit(episodes, reward)  # a user's rule may return anything
    if not _listed(credits):
        raise ValueError(
            f"it returned {shown(credits)}; want a list of one number per turn for every episode: if it makes a rule, "
            "call it; if it is a rule for one episode, use by_episode(rule)"
        )
    if len(credits) != len(episodes):
        raise ValueError(f"{len(credits)} lists for {len(episodes)} episodes; want one per episode")
    rows, joints = [], 0
    for number, (episode, found) in enumerate(zip(episodes, credits, strict=True)):
        _check(episode, found)
        first, paid = episode.first_joints(), sum(abs(reward) for joint in episode.joints for reward in joint.rewards)
        for turn, worth in zip(episode.turns, found, strict=True):
            joint = first.get(id(turn))
            rows.append(Row(turn, worth, number, -1 if joint is None else joints + joint, paid=paid))
        joints += len(episode.joints)
    return rows


def _listed(found: Any) -> bool:
    """Return whether this is a list, an array or another sequence, but no text."""
    return hasattr(found, "__len__") and hasattr(found, "__getitem__") and not isinstance(found, Mapping | str)


def _check(episode: Episode, credits: Any) -> None:
    where = f"problem {episode.problem.id!r}"
    if not _listed(credits):
        raise ValueError(f"{where}: it returned {shown(credits)}; want a list of one number per turn")
    if len(credits) != len(episode.turns):
        raise ValueError(f"{where}: {len(credits)} numbers for {len(episode.turns)} turns; want one per turn")
    for turn, worth in zip(episode.turns, credits, strict=True):
        try:
            fits = bool(abs(worth) <= _LARGEST)  # False for NaN, too
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise ValueError(
                f"{where}: policy {turn.policy!r} is given {shown(worth)}; want a finite number of float32"
            )


def plain_rows(episodes: Sequence[Episode]) -> list[Row]:
    """Return a row for every turn with credit 0, for uses that need no credit."""
    return [Row(turn, 0.0, number) for number, episode in enumerate(episodes) for turn in episode.turns]


def collate(rows: Sequence[Row], policy: PolicyName) -> Batch:
    """Return the rows of one policy as a Batch on the CPU, in order. rows: those of the whole step, all policies."""
    mine = [row for row in rows if row.turn.policy == policy]
    assert mine, f"policy {policy} took no turn in these episodes"
    episodes = len({row.episode for row in rows})
    roles = tuple(dict.fromkeys(row.turn.role for row in rows))
    return _batch(mine, roles, len(mine) / episodes)


def _batch(rows: Sequence[Row], roles: tuple[str, ...], turns_per_episode: float) -> Batch:
    turns = [row.turn for row in rows]
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
        credit_B=torch.tensor([row.credit for row in rows], dtype=torch.float32),
        reward_B=torch.tensor([math.nan if t.reward is None else t.reward for t in turns]),
        peers_B=torch.tensor([groups.setdefault(t.peers, len(groups)) for t in turns]),
        temperature_B=torch.tensor([t.temperature for t in turns]),
        weight_B=torch.tensor([t.weight * turns_per_episode for t in turns]),
        role_B=torch.tensor([roles.index(t.role) for t in turns]),
        episode_B=torch.tensor([row.episode for row in rows]),
        joint_B=torch.tensor([row.joint for row in rows]),
        extra_B=torch.tensor([row.extra for row in rows]),
        roles=roles,
        paid_B=torch.tensor([row.paid for row in rows], dtype=torch.float32),
        version_B=torch.tensor([t.version for t in turns]),
    )


def pad(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
    """Return ragged rows as one tensor, padded with 0 on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=dtype)
