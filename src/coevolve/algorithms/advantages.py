"""Advantages and their building blocks: functions from the batches of all policies to their targets.

Letters: B turns, T action tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from coevolve.algorithms.baselines import Compare, as_it_is
from coevolve.late import Tensor, torch
from coevolve.maths import groups, masked
from coevolve.maths.advantage import gae, token_rewards
from coevolve.maths.moments import Moments
from coevolve.types import Advantage, Batch, Lesson, LossAggregation, PolicyName, State, Targets

Rule = Callable[[Batch, float], Targets]
"""(the batch of one policy, weight of its KL penalty) -> its targets."""

Adapt = Callable[[float, float, int], float]
"""(weight of the KL penalty, KL per turn, turns) -> the next weight."""

Rescale = Callable[[Tensor, Moments], Tensor]
"""(credit_B, moments of the policy's credits so far, these included) -> rescaled credit_B."""


def per_policy(rule: Rule, eta: float = 0.0, adapt: Adapt | None = None) -> Advantage:
    """Return an advantage that applies a rule to the batch of each policy.

    eta: weight of the KL penalty, passed to the rule; with ``adapt`` each policy has its own, in ``state["kl"]``.
    """

    def advantage(lesson: Lesson, state: State) -> tuple[dict[PolicyName, Targets], State]:
        weights = {name: state.get("kl", {}).get(name, eta) for name in lesson.batches}
        targets = {
            name: dataclasses.replace(rule(batch, weights[name]), eta=weights[name])
            for name, batch in lesson.batches.items()
        }
        if adapt is None:
            return targets, state
        later = {n: adapt(weights[n], _kl_per_turn(batch), len(batch)) for n, batch in lesson.batches.items()}
        return targets, {**state, "kl": {**state.get("kl", {}), **later}}

    return advantage


def _kl_per_turn(batch: Batch) -> float:
    assert batch.kl_BT is not None, "a KL weight that adapts needs a reference"
    return float(batch.kl_BT.sum(1).mean())


def rescaled(advantage: Advantage, rescale: Rescale) -> Advantage:
    """Return the advantage on credits rescaled by each policy's running statistics, ``state["moments"]``."""

    def wrapped(lesson: Lesson, state: State) -> tuple[dict[PolicyName, Targets], State]:
        before = state.get("moments", {})
        seen = {n: Moments(**before.get(n, {})).after(batch.credit_B) for n, batch in lesson.batches.items()}
        batches = {n: batch.replace(credit_B=rescale(batch.credit_B, seen[n])) for n, batch in lesson.batches.items()}
        moments = {**before, **{n: dataclasses.asdict(one) for n, one in seen.items()}}
        targets, state = advantage(dataclasses.replace(lesson, batches=batches), {**state, "moments": moments})
        return {n: _noted(aims, credit=float(batches[n].credit_B.mean())) for n, aims in targets.items()}, state

    return wrapped


def _noted(targets: Targets, **metrics: float) -> Targets:
    return dataclasses.replace(targets, metrics={**targets.metrics, **metrics})


def log_ratio(batch: Batch) -> Tensor:
    """Return log pi(a) - log pi_0(a) of the sampled tokens, 0 outside the mask. Its mean is the KL; as a reward it has
    the gradient of the KL."""
    assert batch.logp_ref_BT is not None, "a KL penalty needs a reference"
    return (batch.logp_BT - batch.logp_ref_BT).masked_fill(~batch.mask_BT, 0.0)


def against_peers(baseline: Compare, scale: groups.Scale, penalty: Callable[[Tensor], Tensor] | None = None) -> Rule:
    """Return a rule: every token's advantage is its turn's credit less a baseline, divided by a scale.

    penalty: a function of log-ratios (``kl.ESTIMATORS``) that is subtracted from the credit, times the KL weight,
    before the baseline. A turn without peers gets 0, or with a baseline of ``WITHOUT_PEERS`` its credit; for other
    baselines ``baselines.check_peers`` checks that some turns have peers.
    """

    def rule(batch: Batch, eta: float) -> Targets:
        credit_B = batch.credit_B
        if penalty is not None and eta > 0:
            credit_B = credit_B - eta * (penalty(log_ratio(batch)) * batch.mask_BT).sum(1)
        adv_B = baseline(credit_B, batch) / scale(credit_B, batch.peers_B, batch.paid_B)
        return Targets(adv_B[:, None] * batch.mask_BT, metrics={} if baseline is as_it_is else _signal(batch))

    return rule


def _signal(batch: Batch) -> dict[str, float]:
    """Return the shares of turns without peers and of turns with only equal peers: neither kind has a signal."""
    alone_B = groups.size(batch.peers_B) == 1
    flat_B = groups.flat(batch.credit_B, batch.peers_B, batch.paid_B) & ~alone_B
    return {"groups_of_one": float(alone_B.float().mean()), "groups_flat": float(flat_B.float().mean())}


def full_kl(batch: Batch) -> Tensor:
    """Return KL(policy || reference) at the position of each token, which is the same whatever token is drawn there.

    So as a reward it affects only which positions come next; it has no gradient for the KL of its own position.
    """
    assert batch.kl_BT is not None, "the KL penalty needs a reference"
    return batch.kl_BT


def without_critic(rule: Rule) -> Rule:
    """Return the rule with all values 0 and no target for a critic: the advantage is the reward to go."""
    return lambda batch, eta: dataclasses.replace(
        rule(batch.replace(value_BT=torch.zeros_like(batch.logp_BT)), eta), return_BT=None
    )


def where_it_differs(rule: Rule, loss_aggregation: LossAggregation) -> Rule:
    """Return the rule as if turns without a signal were not in the batch, as in DAPO (arXiv 2503.14476, section 3.2),
    which samples others in their place (``dynamic_sampling``).

    Their advantage is 0. The other turns get the advantage that they have in a batch of their own, multiplied by the
    ratio of their loss weights in that batch and in the whole one, since they would weigh more in a smaller batch.
    """

    def kept(batch: Batch, eta: float) -> Targets:
        targets, rows_B = rule(batch, eta), (~groups.flat(batch.credit_B, batch.peers_B, batch.paid_B)).nonzero()[:, 0]
        adv_BT = torch.zeros_like(targets.adv_BT)
        if len(rows_B):
            alone = _of_their_own(batch, rows_B)
            found_BT, steps = rule(alone, eta).adv_BT, alone.mask_BT.shape[1]
            beside_BT = loss_aggregation(batch)[rows_B, :steps].clamp(min=1e-12)
            adv_BT[rows_B, :steps] = (found_BT * (loss_aggregation(alone) / beside_BT)).to(adv_BT.dtype)
        return dataclasses.replace(targets, adv_BT=adv_BT)

    return kept


def _of_their_own(batch: Batch, rows_B: Tensor) -> Batch:
    """Return these rows as a batch of their own: groups renumbered, weights for the new number of turns per episode."""
    alone = batch.select(rows_B)
    before, left = (len(torch.unique(one.episode_B)) for one in (batch, alone))
    turns_per_episode = (len(alone) * before) / (len(batch) * left)  # as a fraction of the whole batch's
    peers_B = torch.unique(alone.peers_B, return_inverse=True)[1]
    return alone.replace(peers_B=peers_B, weight_B=alone.weight_B * turns_per_episode)


def against_critic(
    penalty: Callable[[Batch, float], Tensor], gamma: float, lam: float, *, whiten: bool, whiten_rewards: bool
) -> Rule:
    """Return a rule of GAE over tokens, with reward -eta * penalty at every token and the credit at the last one.

    whiten: scale advantages to mean 0, variance 1 over the batch's tokens. whiten_rewards: scale rewards to variance 1,
    keeping their mean.
    """

    def rule(batch: Batch, eta: float) -> Targets:
        assert batch.value_BT is not None, "this advantage needs a critic"
        reward_BT = token_rewards(batch.credit_B, penalty(batch, gamma), batch.mask_BT, eta)
        if whiten_rewards:
            reward_BT = masked.whiten(reward_BT, batch.mask_BT, shift_mean=False)
        adv_BT, return_BT = gae(reward_BT, batch.value_BT, batch.mask_BT, gamma, lam)
        return Targets(masked.whiten(adv_BT, batch.mask_BT) if whiten else adv_BT, return_BT)

    return rule
