"""Baselines and scales by name: what is subtracted from a turn's credit, and what the difference is divided by.

The formulas are in ``maths.groups``; this module passes them the columns of a batch. It also has the two that need more
than the batch of one policy at one step: a mean over past steps, and one scale for the whole team. Letters: B turns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

from coevolve.late import Tensor, torch
from coevolve.maths import groups
from coevolve.types import Advantage, Batch, Lesson, PolicyName, State, Targets

Compare = Callable[[Tensor, Batch], Tensor]
"""(credit_B, the policy's batch) -> credit_B less the baseline."""


def as_it_is(credit_B: Tensor, batch: Batch) -> Tensor:
    """Return the credit itself, without a baseline."""
    return credit_B


def _shrunk(credit_B: Tensor, batch: Batch) -> Tensor:
    block_B = groups.blocks(batch.peers_B, batch.episode_B)
    return groups.less_shrunk(credit_B, batch.peers_B, batch.role_B, block_B)


BASELINES: dict[str, Compare] = {
    "mean": lambda credit_B, batch: groups.less_mean(credit_B, batch.peers_B),
    "loo": lambda credit_B, batch: groups.less_others(credit_B, batch.peers_B),
    "max": lambda credit_B, batch: groups.less_max(credit_B, batch.peers_B),
    "none": as_it_is,
    # A turn's length stands for the squared norm of its score (``groups.less_weighted``).
    "length": lambda credit_B, batch: groups.less_weighted(credit_B, batch.peers_B, batch.mask_BT.sum(1)),
    "shrunk": _shrunk,
    "moving": as_it_is,  # ``less_moving`` has already subtracted it
}
WITHOUT_PEERS = ("none", "moving")
"""Baselines without peers: with them groups of equal returns have advantages, which may far exceed their spread."""
SCALES: dict[str, groups.Scale] = {
    "none": groups.no_scale,
    "group": groups.group_std,
    "agent": groups.agent_std,
    "team": groups.no_scale,  # ``over_team`` divides afterwards
}


def _other_episodes(credit_B: Tensor, batch: Batch) -> Tensor:
    return groups.less_weighted(credit_B, batch.peers_B, torch.ones_like(credit_B), batch.episode_B)


WITHIN_ROLES: dict[str, Compare] = BASELINES | {
    "loo": _other_episodes,
    "length": lambda credit_B, batch: groups.less_weighted(
        credit_B, batch.peers_B, batch.mask_BT.sum(1), batch.episode_B
    ),
}
"""Baselines by name where a group is all turns of a role. An episode may have several of these, and the baseline of a
turn must not contain what the turn has caused, so the others are those of other episodes."""
OF_OTHER_EPISODES = ("loo", "length")
"""Baselines of ``WITHIN_ROLES`` that need turns of other episodes."""


def within_roles(batch: Batch) -> Batch:
    """Return the batch with one group per role: the policy's turns in that role, in all episodes of the step."""
    return batch.replace(peers_B=torch.unique(batch.role_B, return_inverse=True)[1])


def check_peers(batches: Collection[Batch]) -> None:
    """Raise ValueError if no turn of the team has a peer, or no turn of a policy that spoke in every episode. A policy
    that spoke in some episodes only may lack peers by chance: it learns nothing from this step, which the metric
    ``groups_of_one`` shows."""
    lonely = [batch for batch in batches if bool((groups.size(batch.peers_B[~batch.extra_B]) == 1).all())]
    episodes = max(_episodes(batch) for batch in batches)
    if len(lonely) == len(batches) or any(_episodes(batch) == episodes for batch in lonely):
        raise ValueError(
            "every turn is alone in its group, so there is nothing to compare it with; set members to at least 2, "
            "use a play that samples several continuations (tree, best_of), or, where a role rarely speaks, more "
            "problems a step"
        )


def _episodes(batch: Batch) -> int:
    return len(torch.unique(batch.episode_B[~batch.extra_B]))


def check_roles(batches: Collection[Batch]) -> None:
    """Raise ValueError as ``check_peers`` does, with all turns of a role as one group."""
    check_peers([within_roles(batch) for batch in batches])


def check_other_episodes(batches: Collection[Batch]) -> None:
    """Raise ValueError as ``check_roles`` does, and if each policy's turns are all of one episode, for baselines of
    other episodes. batches: whole ones; after ``drop_flat`` the turns may well be of one episode."""
    if all(bool((batch.episode_B == batch.episode_B[0]).all()) for batch in batches):
        raise ValueError(
            "group: role compares a turn with those of other episodes, and all turns of a policy at this step are "
            "of one; raise batch_size or members"
        )
    check_roles(batches)


def with_peers(advantage: Advantage, check: Callable[[Collection[Batch]], None]) -> Advantage:
    """Return the advantage preceded by a check of all policies' batches together."""

    def wrapped(lesson: Lesson, state: State) -> tuple[Mapping[PolicyName, Targets], State]:
        check(lesson.batches.values())
        return advantage(lesson, state)

    return wrapped


def alone_in_role(batch: Batch) -> Tensor:
    """Return True for turns whose role spoke in no other episode of the step, so that they have no peers; shape B."""
    peers_B = within_roles(batch).peers_B
    return groups.size(peers_B) == groups.size(groups.pairs(peers_B, batch.episode_B))


def less_moving(advantage: Advantage, decay: float) -> Advantage:
    """Return the advantage on credits less a moving average of the policy's credits in the same role.

    Role-conditioned advantage estimation (arXiv 2506.24119): b <- decay b + (1 - decay) mean credit of the step, for
    every policy and role, in ``state["moving"]``. Subtracted is b / (1 - decay^steps), which corrects for the start
    of b at 0. It has past steps only, so it is unbiased.
    """

    def wrapped(lesson: Lesson, state: State) -> tuple[dict[PolicyName, Targets], State]:
        moving = {name: dict(roles) for name, roles in state.get("moving", {}).items()}
        batches = {}
        for name, batch in lesson.batches.items():
            credit_B, roles = batch.credit_B.clone(), moving.setdefault(name, {})
            for number in sorted(set(batch.role_B.tolist())):
                role, mine_B = batch.roles[number], batch.role_B == number
                sum_, share = roles.get(role, (0.0, 0.0))
                credit_B[mine_B] -= sum_ / share if share else 0.0
                now = float(batch.credit_B[mine_B].double().mean())
                roles[role] = [decay * sum_ + (1 - decay) * now, decay * share + 1 - decay]
            batches[name] = batch.replace(credit_B=credit_B)
        found, state = advantage(dataclasses.replace(lesson, batches=batches), {**state, "moving": moving})
        return dict(found), state

    return wrapped


def over_team(advantage: Advantage) -> Advantage:
    """Return the advantage divided by one number for all policies: the standard deviation over all turns of the step.

    REINFORCE++ (arXiv 2501.03262) normalises whole batches like this. arXiv 2602.08847 objects that agents with other
    means and spreads then get gradients of other sizes, and proposes ``std: agent``.
    """

    def wrapped(lesson: Lesson, state: State) -> tuple[dict[PolicyName, Targets], State]:
        targets, state = advantage(lesson, state)
        found_B = torch.cat([aims.adv_BT[:, 0] for aims in targets.values()]).double()
        batches = [lesson.batches[name] for name in targets]
        credits = [(b.credit_B, torch.zeros_like(b.peers_B), b.paid_B) for b in batches]
        flat = all(bool(groups.flat(*one).all()) for one in credits)
        std = float(found_B.std(correction=0))
        if flat or std <= max(float(groups.tolerance(*one).max()) for one in credits):  # only rounding errors
            std = 1.0
        return {n: dataclasses.replace(aims, adv_BT=aims.adv_BT / std) for n, aims in targets.items()}, state

    return wrapped
