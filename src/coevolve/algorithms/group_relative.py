"""Group-relative policy gradients: the common builder of MAGRPO and its variants, GRPO, RLOO and REINFORCE.

A turn's credit is compared with that of its peers (``maths.groups``), and the difference is the advantage of all its
tokens. The loss is plain REINFORCE, or has a clipped ratio where a batch is reused.
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
from coevolve.algorithms.exclusions import check_left_out, kl_in_reward, uncentred, unfelt, unweighed
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
    """A group-relative policy gradient: returns less a baseline of their group.

    baseline: what is subtracted from a return: the mean of its group; the mean of the others (loo; length: weighted by
    their lengths; shrunk: drawn towards the other groups' means); the largest (max); nothing (none); or a moving
    average of the policy's earlier credits in that role (moving, which keeps ``decay`` a step). std: divide by the
    standard deviation of the returns in the group, of all the agent's turns, or of the advantages of the whole team.
    group: the turns that are compared: those of one problem, role and round (of one node in a tree), or all of the
    policy's in a role at a step. credit: a rule of ``coevolve.credit``: the team's return, or each agent's own
    (``own_return``). clip: PPO's clipped ratio, one number or (below, above); needed where ``epochs`` or ``minibatch``
    reuse a batch. ratio: per token; per turn, the geometric mean of its tokens' (GSPO); or detached, as a weight
    without gradient of the log-probability (CISPO). loss_aggregation: see ``maths.loss_aggregation``. beta: weight of
    the KL to the start model, none at 0; kl: as a term of the loss, or subtracted from the return (reward); estimator:
    ``maths.kl``, or exact, over the whole vocabulary, in the loss only. entropy: weight of an entropy bonus in the
    loss. drop_flat: leave groups of equal returns out of the policy gradient (DAPO), for baselines of the group; their
    KL and entropy in the loss still count. resample: how many times a step plays other problems in place of those whose
    members were paid the same (``dynamic_sampling``). mismatch: correction for a sampler whose log-probabilities differ
    from the learner's (``maths.mismatch``).
    Raises ValueError for settings out of range, and for two that exclude each other.
    """
    return _group_relative({**locals(), "credit": credit_name(credit)}, credit_of(credit))


def _group_relative(s: Mapping[str, Any], credit: Credit) -> Algorithm:
    """Build the algorithm. s: the settings of ``group_relative``."""
    check_reuse(s["clip"], s["epochs"], s["minibatch"])
    check_left_out(group_relative, s)
    if s["clip"] is None and RATIOS[s["ratio"]] is not clipped_policy:
        raise ValueError(f"algorithm: ratio {s['ratio']} is of a clipped ratio; set clip, too")
    if kl_in_reward(s) and _exact_kl(s):
        raise ValueError("algorithm: the exact KL is the same for every token that may be drawn, so as a reward it has "
                         "no gradient; set kl: loss, or estimator: k1")  # fmt: skip
    return Algorithm(
        credit=credit,
        advantage=_advantage(s),
        objective=_objective(s),
        reference=s["beta"] > 0,
        resample=s["resample"],
        caution=uncentred(s["std"], s["baseline"]) or unfelt(s) or unweighed(s),
        logp_old=BOUNDS[s["mismatch"]] is not None and reused(s["epochs"], s["minibatch"]),
        settings=s,
    )


def _exact_kl(s: Mapping[str, Any]) -> bool:
    """Return whether there is a KL over the whole vocabulary."""
    return s["beta"] > 0 and s["estimator"] not in ESTIMATORS


def _advantage(s: Mapping[str, Any]) -> Advantage:
    """Return the advantage: credit, less a KL in the reward, less the baseline, divided by the scale."""
    penalty = ESTIMATORS.get(s["estimator"]) if kl_in_reward(s) else None
    baselines = BASELINES if s["group"] == "peers" else WITHIN_ROLES
    rule = against_peers(baselines[s["baseline"]], SCALES[s["std"]], penalty)
    rule = where_it_differs(rule, LOSS_AGGREGATIONS[s["loss_aggregation"]]) if s["drop_flat"] else rule
    rule = rule if s["group"] == "peers" else _among_roles(rule)
    advantage = per_policy(rule, s["beta"])
    advantage = advantage if s["baseline"] in WITHOUT_PEERS else with_peers(advantage, _check(s))
    advantage = less_moving(advantage, s["decay"]) if s["baseline"] == "moving" else advantage
    return over_team(advantage) if s["std"] == "team" else advantage


def _check(s: Mapping[str, Any]) -> Callable[[Collection[Batch]], None]:
    """Return the check that turns have peers for this baseline; it raises ValueError."""
    if s["group"] == "peers":
        return check_peers
    if s["baseline"] in OF_OTHER_EPISODES:
        return check_other_episodes
    return check_roles


def _among_roles(rule: Rule) -> Rule:
    """Return the rule with all turns of a role as one group, in which turns of the same episode are no peers."""

    def among(batch: Batch, eta: float) -> Targets:
        targets = rule(within_roles(batch), eta)
        if "groups_of_one" not in targets.metrics:  # a baseline without peers
            return targets
        alone = float(alone_in_role(batch).float().mean())
        return dataclasses.replace(targets, metrics={**targets.metrics, "groups_of_one": alone})

    return among


def _objective(s: Mapping[str, Any]) -> Objective:
    """Return the objective: the plain or clipped loss, plus entropy and a KL in the loss if asked for."""
    loss = with_mismatch(policy_gradient(s["clip"], RATIOS[s["ratio"]]), BOUNDS[s["mismatch"]])
    loss = with_entropy(loss, s["entropy"])
    if _exact_kl(s):
        loss = with_full_kl(loss)
    elif s["beta"] > 0 and not kl_in_reward(s):
        loss = with_kl(loss, ESTIMATORS[s["estimator"]])
    weights = LOSS_AGGREGATIONS[s["loss_aggregation"]]
    return Objective(loss, weights, s["epochs"], s["minibatch"], kl=_exact_kl(s))
