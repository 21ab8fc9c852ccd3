"""Policy gradients from a group of returns: the common builder of MAGRPO and its variants, GRPO, RLOO and REINFORCE.

A turn's credit is compared with its peers' (``maths.groups``), every token of the turn gets the difference as its
advantage, and one loss follows: plain REINFORCE, or a clipped ratio where a batch is reused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from coevolve.algorithms.advantages import Rule, against_peers, per_policy, where_it_differs
from coevolve.algorithms.baselines import (
    BASELINES,
    OF_OTHER_EPISODES,
    SCALES,
    WITHIN_ROLES,
    WITHOUT_PEERS,
    alone_in_role,
    check_other_episodes,
    check_peers,
    check_roles,
    less_moving,
    over_team,
    with_peers,
    within_roles,
)
from coevolve.algorithms.exclusions import check_left_out, uncentred, unfelt
from coevolve.algorithms.losses import (
    check_reuse,
    policy_gradient,
    reused,
    with_entropy,
    with_full_kl,
    with_kl,
    with_mismatch,
)
from coevolve.credit import CreditSpec, credit_name, credit_of
from coevolve.maths.kl import ESTIMATORS
from coevolve.maths.loss_aggregation import LOSS_AGGREGATIONS
from coevolve.maths.losses import RATIOS, clipped_policy
from coevolve.maths.mismatch import BOUNDS
from coevolve.settings import BelowOne, Count, CountFromZero, NotNegative, Positive, checked_call
from coevolve.types import Advantage, Algorithm, Batch, Credit, Objective, Targets


@checked_call("algorithm")
def group_relative(
    *,
    baseline: Literal["mean", "loo", "max", "none", "length", "shrunk", "moving"],
    std: Literal["none", "group", "agent", "team"] = "none",
    group: Literal["peers", "role"] = "peers",
    decay: BelowOne = 0.95,
    credit: CreditSpec = "team_return",
    clip: Positive | tuple[Positive, Positive] | None = None,
    ratio: Literal["token", "turn", "detached"] = "token",
    epochs: Count = 1,
    minibatch: Count | None = None,
    loss_aggregation: Literal["sequence", "turn", "token"] = "sequence",
    beta: NotNegative = 0.0,
    kl: Literal["loss", "reward"] = "loss",
    estimator: Literal["k1", "k2", "k3", "exact"] = "k3",
    entropy: NotNegative = 0.0,
    drop_flat: bool = False,
    resample: CountFromZero = 0,
    mismatch: Literal["none", "tis", "icepop", "sequence"] = "none",
) -> Algorithm:
    """A group-relative policy gradient as a value.

    baseline: what a return is compared with: the mean of its group, that of the others (loo, and by their length:
    length, or drawn towards the other groups' means: shrunk), the largest, nothing, or what the policy was credited
    with in that role before (moving, of which each step keeps ``decay``). std: divide by the standard deviation of the
    returns, of the group or of all the agent's turns, or by that of the advantages of all the team's. group: the turns
    that are compared: those of one problem, role and turn (of one node in a tree), or all of the policy's in a role at
    a step. credit: a rule of ``coevolve.credit``; the team's return, or each agent its own (``own_return``). clip:
    PPO's clipped ratio, one number or (below, above); it is needed where ``epochs`` or ``minibatch`` reuse a batch.
    ratio: of each token; of the turn, the mean of its tokens' (GSPO); or detached, as a weight of the log-probability
    that has no gradient (CISPO). loss_aggregation: see ``maths.loss_aggregation``. beta: weight of the KL to the start
    model, none at 0; kl: as a term of the loss, or taken from the return before it is compared; estimator:
    ``maths.kl``, or exact, over the whole vocabulary, in the loss only. entropy: weight of a bonus in the loss.
    drop_flat: the policy gradient is as if groups of equal returns were not in the batch (DAPO), for baselines of the
    group; their KL and entropy count where these are in the loss. resample: how many times a step plays other problems
    in place of those that were paid alike whatever was said (``dynamic_sampling``). mismatch: what makes up for a
    sampler whose numbers differ from the learner's (``maths.mismatch``).
    Raises ValueError for settings out of range, and for two that exclude each other.
    """
    return _group_relative({**locals(), "credit": credit_name(credit)}, credit_of(credit))


def _group_relative(s: Mapping[str, Any], credit: Credit) -> Algorithm:
    """s: the settings of ``group_relative``."""
    check_reuse(s["clip"], s["epochs"], s["minibatch"])
    check_left_out(group_relative, s)
    if s["clip"] is None and RATIOS[s["ratio"]] is not clipped_policy:
        raise ValueError(f"algorithm: ratio {s['ratio']} is of a clipped ratio; set clip, too")
    if _paid(s) and _whole(s):
        raise ValueError("algorithm: the exact KL is the same for every token that may be drawn, so as a reward it has "
                         "no gradient; set kl: loss, or estimator: k1")  # fmt: skip
    return Algorithm(
        credit=credit,
        advantage=_advantage(s),
        objective=_objective(s),
        reference=s["beta"] > 0,
        resample=s["resample"],
        caution=uncentred(s["std"], s["baseline"]) or unfelt(s),
        logp_old=BOUNDS[s["mismatch"]] is not None and reused(s["epochs"], s["minibatch"]),
        settings=s,
    )


def _paid(s: Mapping[str, Any]) -> bool:
    """Is a KL taken from the return, and not a term of the loss?"""
    return bool(s["kl"] == "reward")


def _whole(s: Mapping[str, Any]) -> bool:
    """Is there a KL, and is it that over the whole vocabulary?"""
    return s["beta"] > 0 and s["estimator"] not in ESTIMATORS


def _advantage(s: Mapping[str, Any]) -> Advantage:
    """The credit, less a KL that is paid, compared and divided."""
    penalty = ESTIMATORS.get(s["estimator"]) if _paid(s) else None
    baselines = BASELINES if s["group"] == "peers" else WITHIN_ROLES
    rule = against_peers(baselines[s["baseline"]], SCALES[s["std"]], penalty)
    rule = where_it_differs(rule, LOSS_AGGREGATIONS[s["loss_aggregation"]]) if s["drop_flat"] else rule
    rule = rule if s["group"] == "peers" else _among_roles(rule)
    advantage = per_policy(rule, s["beta"])
    advantage = advantage if s["baseline"] in WITHOUT_PEERS else with_peers(advantage, _check(s))
    advantage = less_moving(advantage, s["decay"]) if s["baseline"] == "moving" else advantage
    return over_team(advantage) if s["std"] == "team" else advantage


def _check(s: Mapping[str, Any]) -> Callable[[Collection[Batch]], None]:
    """What raises ValueError where nobody has anybody to be compared with."""
    if s["group"] == "peers":
        return check_peers
    if s["baseline"] in OF_OTHER_EPISODES:
        return check_other_episodes
    return check_roles


def _among_roles(rule: Rule) -> Rule:
    """The rule with all turns of a role for one group, in which those of the same episode are no peers."""

    def among(batch: Batch, eta: float) -> Targets:
        targets = rule(within_roles(batch), eta)
        if "groups_of_one" not in targets.metrics:  # nobody is compared with anybody
            return targets
        alone = float(alone_in_role(batch).float().mean())
        return dataclasses.replace(targets, metrics={**targets.metrics, "groups_of_one": alone})

    return among


def _objective(s: Mapping[str, Any]) -> Objective:
    """Plain or clipped, with what is added to it: entropy, and a KL that is not paid."""
    loss = with_mismatch(policy_gradient(s["clip"], RATIOS[s["ratio"]]), BOUNDS[s["mismatch"]])
    loss = with_entropy(loss, s["entropy"])
    if _whole(s):
        loss = with_full_kl(loss)
    elif s["beta"] > 0 and not _paid(s):
        loss = with_kl(loss, ESTIMATORS[s["estimator"]])
    weights = LOSS_AGGREGATIONS[s["loss_aggregation"]]
    return Objective(loss, weights, s["epochs"], s["minibatch"], kl=_whole(s))
