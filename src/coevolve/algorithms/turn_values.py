"""Advantages of whole turns over the critic's value before each: the arithmetic of IAC and MAAC.

Letters: B rows, T action tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from coevolve.late import Tensor, torch
from coevolve.maths import groups
from coevolve.maths.advantage import over_turns
from coevolve.maths.masked import explained_variance
from coevolve.types import Advantage, Episode, Lesson, PolicyName, State, Targets, Turn

CriticOf = Callable[[PolicyName], PolicyName]
"""A policy that speaks -> the policy whose value head is its critic."""


def against_turn_values(critic_of: CriticOf, gamma: float, lam: float, *, whiten: bool) -> Advantage:
    """Return an advantage by GAE over an agent's turns. The credit must be a return: the target at ``lam`` 1."""

    def advantage(lesson: Lesson, state: State) -> tuple[dict[PolicyName, Targets], State]:
        spoken = [turn for episode in lesson.episodes for turn in episode.turns]
        # From the critics' rows, since turns of partners that do not learn have values, too.
        credit = _by_turn(lesson, spoken, critic_of, "credit_B")
        value = _by_turn(lesson, spoken, critic_of, "value_BT")
        target = {k: v for e in lesson.episodes for k, v in over_turns(e, credit, value, gamma, lam).items()}
        levels = {key: level for episode in lesson.episodes for key, level in _levels(episode).items()}
        targets = {}
        for name, batch in lesson.batches.items():
            own = [t for t in spoken if t.policy == name]
            read = [t for t in spoken if critic_of(t.policy) == name]
            adv_B, aim_B = torch.zeros(len(batch)), torch.zeros(len(batch))
            if own:
                apart_B = torch.tensor([target[id(t)] - value[id(t)] if id(t) in target else 0.0 for t in own])
                adv_B[~batch.extra_B] = _whitened(apart_B, own, levels) if whiten else apart_B
            metrics = {}
            if read:
                wanted = torch.tensor([target[id(t)] for t in read])
                aim_B[batch.extra_B] = wanted
                said = torch.tensor([value[id(t)] for t in read])
                everywhere = torch.ones(len(read), 1, dtype=torch.bool)
                known = explained_variance(said[:, None], wanted[:, None], everywhere)
                metrics = {"explained_variance": float(known)}
            mask_BT = batch.mask_BT
            targets[name] = Targets(adv_B[:, None] * mask_BT, aim_B[:, None] * mask_BT, metrics=metrics)
        return targets, state

    return advantage


def _by_turn(lesson: Lesson, spoken: Sequence[Turn], critic_of: CriticOf, column: str) -> dict[int, float]:
    """Return id of a turn -> its number in this column of its critic's batch, from the rows added for the critic, which
    are in the order of the turns. Turns whose critic does not learn are left out."""
    found: dict[int, float] = {}
    for name, batch in lesson.batches.items():
        x: Tensor | None = getattr(batch, column)
        mine = [turn for turn in spoken if critic_of(turn.policy) == name]
        if x is not None and mine:
            numbers = (x if x.ndim == 1 else x[:, 0])[batch.extra_B].tolist()
            found |= {id(turn): number for turn, number in zip(mine, numbers, strict=True)}
    return found


def _levels(episode: Episode) -> dict[int, int]:
    """Return id of a turn -> its round; of samples of one turn (tree, best_of), which ``Turn.round`` counts one by one,
    the depth of the first joint that one of them is part of, else the round of the first."""
    depths, first = episode.depths(), episode.first_joints()
    depth_of: dict[object, int] = {}
    for turn in episode.turns:
        if id(turn) in first:
            depth_of.setdefault(turn.peers, depths[first[id(turn)]])

    def level(turn: Turn) -> int:
        by_round = turn.peers in ((), (turn.problem.id, turn.role, turn.round))
        return turn.round if by_round else depth_of.setdefault(turn.peers, turn.round)

    return {id(turn): level(turn) for turn in episode.turns}


def _whitened(adv_B: Tensor, turns: Sequence[Turn], levels: Mapping[int, int]) -> Tensor:
    """Return the advantages in standard deviations of those of the same role and level, less their mean."""
    kinds = [(turn.role, levels[id(turn)]) for turn in turns]
    numbers: dict[object, int] = {}
    kind_B = torch.tensor([numbers.setdefault(kind, len(numbers)) for kind in kinds])
    whitened_B = groups.less_mean(adv_B, kind_B) / groups.group_std(adv_B, kind_B)
    # The advantage of a turn that is alone, less its own mean, would be 0; it stays, as its baseline is the critic.
    return torch.where(groups.size(kind_B) == 1, adv_B, whitened_B)
