"""Baselines and scales by name: what a turn's credit is compared with, and what the difference is divided by.

The formulas are in ``maths.groups``; here is which columns of a batch they look at, and the two that look further than
one policy's batch: a mean over past steps, and one scale for the whole team. Letters: B turns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

from coevolve.late import Tensor, torch
from coevolve.maths import groups
from coevolve.types import Advantage, Batch, Lesson, PolicyName, State, Targets

Compare = Callable[[Tensor, Batch], Tensor]
"""(credit_B, the policy's batch) -> credit_B less the baseline."""


def _mean(credit_B: Tensor, batch: Batch) -> Tensor:
    return groups.less_mean(credit_B, batch.peers_B)


def _others(credit_B: Tensor, batch: Batch) -> Tensor:
    return groups.less_others(credit_B, batch.peers_B)


def _max(credit_B: Tensor, batch: Batch) -> Tensor:
    return groups.less_max(credit_B, batch.peers_B)


def as_it_is(credit_B: Tensor, batch: Batch) -> Tensor:
    """The credit: nobody to compare with."""
    return groups.as_it_is(credit_B, batch.peers_B)


def _by_length(credit_B: Tensor, batch: Batch) -> Tensor:
    """The tokens of a turn for the squared length of its score (``groups.less_weighted``)."""
    return groups.less_weighted(credit_B, batch.peers_B, batch.mask_BT.sum(1))


def _shrunk(credit_B: Tensor, batch: Batch) -> Tensor:
    block_B = groups.blocks(batch.peers_B, batch.episode_B)
    return groups.less_shrunk(credit_B, batch.peers_B, batch.role_B, block_B)


BASELINES: dict[str, Compare] = {
    "mean": _mean,
    "loo": _others,
    "max": _max,
    "none": as_it_is,
    "length": _by_length,
    "shrunk": _shrunk,
    "moving": as_it_is,  # ``less_moving`` has been there before
}
WITHOUT_PEERS = ("none", "moving")
"""Baselines that no peer is in: so a group of equal returns has an advantage, however large beside its spread."""
SCALES: dict[str, groups.Scale] = {
    "none": groups.no_scale,
    "group": groups.group_std,
    "agent": groups.agent_std,
    "team": groups.no_scale,  # ``over_team`` comes after it
}


def _other_episodes(credit_B: Tensor, batch: Batch) -> Tensor:
    return _elsewhere(credit_B, batch, torch.ones_like(credit_B))


def _other_episodes_by_length(credit_B: Tensor, batch: Batch) -> Tensor:
    return _elsewhere(credit_B, batch, batch.mask_BT.sum(1))


def _elsewhere(credit_B: Tensor, batch: Batch, weight_B: Tensor) -> Tensor:
    return groups.less_weighted(credit_B, batch.peers_B, weight_B, batch.episode_B)


WITHIN_ROLES: dict[str, Compare] = BASELINES | {
    "loo": _other_episodes,
    "length": _other_episodes_by_length,
    "shrunk": _other_episodes,  # nobody to be drawn towards
}
"""The same where a group is all of a role's turns. An episode may have several of them, and what a turn has led to must
not be in its baseline: the others are those of other episodes."""
OF_OTHER_EPISODES = ("loo", "length", "shrunk")
"""Those of them that want turns of other episodes."""


def within_roles(batch: Batch) -> Batch:
    """The batch with all turns of a role for one group: a policy's turns in that role, in all episodes of the step."""
    return batch.replace(peers_B=torch.unique(batch.role_B, return_inverse=True)[1])


def check_peers(batches: Collection[Batch]) -> None:
    """Raises ValueError where nobody of the team has a peer, or nobody that has spoken in every episode. A policy that
    spoke in some only, and has no peer, is so by chance: it learns nothing from this step, and the metric
    ``groups_of_one`` says so."""
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
    """The same where all turns of a role are one group."""
    check_peers([within_roles(batch) for batch in batches])


def check_other_episodes(batches: Collection[Batch]) -> None:
    """The same of a baseline that a turn itself, and its episode, is not in. Of whole batches: where turns are left
    out, those that are left may well be of one episode."""
    if all(bool((batch.episode_B == batch.episode_B[0]).all()) for batch in batches):
        raise ValueError(
            "group: role compares a turn with those of other episodes, and all turns of a policy at this step are "
            "of one; raise batch_size or members"
        )
    check_roles(batches)


def with_peers(advantage: Advantage, check: Callable[[Collection[Batch]], None]) -> Advantage:
    """The advantage of a team that has passed the check, of everybody's batches, before any is looked at alone."""

    def wrapped(lesson: Lesson, state: State) -> tuple[Mapping[PolicyName, Targets], State]:
        check(lesson.batches.values())
        return advantage(lesson, state)

    return wrapped


def alone_in_role(batch: Batch) -> Tensor:
    """True for turns whose role spoke in no other episode of the step, so that they have nobody to be compared with."""
    peers_B = within_roles(batch).peers_B
    return groups.size(peers_B) == groups.size(groups.pairs(peers_B, batch.episode_B))


def less_moving(advantage: Advantage, decay: float) -> Advantage:
    """The advantage of credits less what the policy was credited with in the same role at earlier steps.

    Role-conditioned advantage estimation (arXiv 2506.24119): b <- decay b + (1 - decay) mean credit of the step, for
    every policy and role, in ``state["moving"]``. It is b / (1 - decay^steps) that comes off, so that the first steps
    are not compared with the 0 that b begins with. Past steps alone are in it: unbiased.
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
    """The advantage divided by one number for all policies of the step, the standard deviation of all their turns'.

    Whole batches are normalised so in REINFORCE++ (arXiv 2501.03262); that agents of other means and spreads then get
    gradients of other sizes is what arXiv 2602.08847 has against it, and ``std: agent`` for.
    """

    def wrapped(lesson: Lesson, state: State) -> tuple[dict[PolicyName, Targets], State]:
        targets, state = advantage(lesson, state)
        found_B = torch.cat([aims.adv_BT[:, 0] for aims in targets.values()]).double()
        batches = [lesson.batches[name] for name in targets]
        credits = [(b.credit_B, torch.zeros_like(b.peers_B), b.paid_B) for b in batches]
        flat = all(bool(groups.flat(*one).all()) for one in credits)
        std = float(found_B.std(correction=0))
        if flat or std <= max(float(groups.tolerance(*one).max()) for one in credits):  # as small as rounding
            std = 1.0
        return {n: dataclasses.replace(aims, adv_BT=aims.adv_BT / std) for n, aims in targets.items()}, state

    return wrapped
