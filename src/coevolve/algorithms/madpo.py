"""MADPO: direct preference optimisation of a team, from preferences between joint responses.

Among the members of a problem, joint responses are preferred to others by their credit: the task's reward, or another
rule (``credit: {name: compared, by: file.py:Name}``). The likelihood of a joint response is the product of its agents',
so DPO's margin (arXiv 2305.18290, equation 7) is a sum over agents. Each agent differentiates its own term and keeps
the others' at their values from the start of the step, which together is the gradient of the joint loss. New responses
are sampled at every step, so the preferences are between responses of the current team.

Differences from MADPO of CoMLRL 1.4.3 (docs/from-comlrl.md has the defaults):

1. There is a reference, the start model, as in DPO; CoMLRL has none (``reference: false``).
2. Preferences are sampled anew at every step; CoMLRL's MADPO samples once before training, MADPOIter a few times.
3. The loss is a mean over problems of the mean over a problem's pairs; CoMLRL's is a mean over pairs. With one pair per
   problem they are the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

from coevolve.algorithms.advantages import against_peers
from coevolve.algorithms.baselines import BASELINES, SCALES, check_peers
from coevolve.credit import CreditSpec, credit_name, credit_of
from coevolve.credit.at_once import check_compared
from coevolve.late import Tensor, torch
from coevolve.maths.groups import group_max
from coevolve.maths.loss_aggregation import TINY
from coevolve.maths.preferences import bradley_terry, pair_weights, preferred
from coevolve.settings import Count, Positive, checked_call
from coevolve.types import Algorithm, Batch, Episode, Lesson, Objective, Outputs, PolicyName, State, Targets


@checked_call("algorithm")
def madpo(
    *,
    beta: Positive = 0.1,
    margin: Literal["joint", "own"] = "joint",
    pairs: Count | None = 1,
    reference: bool = True,
    credit: CreditSpec = "team_return",
    epochs: Count = 1,
    minibatch: Count | None = None,
) -> Algorithm:
    """DPO on pairs of joint responses to the same problem; with one agent it is DPO.

    For plays of one joint response (``rounds``, ``chain``), with at least two ``members``. beta: DPO's beta, the
    strength of the pull to the start model. margin: of the whole team, or of the agent's own response alone. pairs: how
    many pairs per problem, those of the largest difference in credit; None: all that differ. reference: whether
    likelihoods are relative to the start model's. credit: the rule by whose values responses are preferred. minibatch:
    turns per optimiser step, whole groups; None: all.
    Raises ValueError for a play of several joint responses, and for one member.
    """
    settings = {**locals(), "credit": credit_name(credit)}
    loss = partial(_preference, beta=beta, pairs=pairs, reference=reference)
    return Algorithm(
        credit=credit_of(credit),
        advantage=partial(_advantage, joint=margin == "joint", pairs=pairs, reference=reference),
        objective=Objective(loss, _per_response, epochs, minibatch, together="peers"),
        reference=reference,
        settings=settings,
    )


def _advantage(
    lesson: Lesson, state: State, *, joint: bool, pairs: int | None, reference: bool
) -> tuple[dict[PolicyName, Targets], State]:
    """Return targets with the columns others_B, the sum of the other agents' log-ratios in the episode, and paired_B.

    adv_BT is only logged: the turn's credit less the mean of its group.
    """
    check_joint(lesson.episodes, "madpo")
    check_peers(lesson.batches.values())
    ratios = {name: _log_ratio(batch.logp_BT, batch, reference) for name, batch in lesson.batches.items()}
    frozen = [[turn for turn in episode.turns if turn.policy not in ratios] for episode in lesson.episodes]
    unheard = [turn.policy for turns in frozen for turn in turns if any(map(math.isnan, turn.logps))]
    if unheard and not reference:
        raise ValueError(
            f"madpo without a reference weighs what policy {unheard[0]!r} said by its log-probabilities, and its "
            "engine has none; set reference: true"
        )
    # A frozen policy equals its reference (log-ratio 0); without one its likelihood is the sampled one.
    team_E = torch.tensor(
        [0.0 if reference else math.fsum(x for turn in turns for x in turn.logps) for turns in frozen]
    )
    for name, batch in lesson.batches.items():
        team_E.index_add_(0, batch.episode_B, ratios[name])
    compare, targets = against_peers(BASELINES["mean"], SCALES["none"]), {}
    for name, batch in lesson.batches.items():
        others_B = team_E[batch.episode_B] - ratios[name] if joint else torch.zeros_like(ratios[name])
        columns = {"others_B": others_B, "paired_B": _paired(batch, pairs)}
        targets[name] = dataclasses.replace(compare(batch, 0.0), columns=columns)
    return targets, state


def check_joint(episodes: Sequence[Episode], rule: str) -> None:
    """Raise ValueError, naming the rule, unless every episode is one joint response of all its turns, and some problem
    has two of them."""
    for episode in episodes:
        if len(episode.joints) != 1 or len(episode.turns) != len(episode.joints[0].turns):
            raise ValueError(
                f"{rule}: problem {episode.problem.id!r} has {len(episode.joints)} joint responses of "
                f"{len(episode.turns)} turns; want one joint response of all turns (play: rounds or chain), and members"
            )
    check_compared(episodes, rule)


def _log_ratio(logp_BT: Tensor, batch: Batch, reference: bool) -> Tensor:
    """Return log(pi / pi_0) of whole responses, or log pi without a reference; [B]."""
    if reference:
        assert batch.logp_ref_BT is not None, "madpo asked for a reference"
        logp_BT = logp_BT - batch.logp_ref_BT
    return logp_BT.masked_fill(~batch.mask_BT, 0.0).sum(1)


def _paired(batch: Batch, pairs: int | None) -> Tensor:
    """Return the share of the batch's weight in groups that have pairs: the same number for every row."""
    first_B = preferred(batch.credit_B, batch.peers_B, pairs, batch.paid_B).any(1).long()
    weight_B = _per_response(batch).sum(1)
    share = weight_B[group_max(first_B, batch.peers_B) > 0].sum() / weight_B.sum().clamp(min=TINY)
    return share.expand(len(batch))


def _per_response(batch: Batch) -> Tensor:
    """Return token weights under which all responses count the same, whatever their length; the responses of a policy
    with several roles in an episode add up."""
    each_B = batch.weight_B / batch.mask_BT.sum(1).clamp(min=1) / len(batch)
    return batch.mask_BT * each_B[:, None]


def _preference(
    out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor, *, beta: float, pairs: int | None, reference: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of all pairs, and as metric ``preferred``, if there are pairs, the share whose margin has the
    right sign (approximate, like all metrics of an update, if mini-batches differ in size)."""
    score_B = beta * (_log_ratio(out.logp_BT, batch, reference) + targets.columns["others_B"])
    better_BB = preferred(batch.credit_B, batch.peers_B, pairs, batch.paid_B)
    weight_B = pair_weights(better_BB, batch.peers_B, weight_BT.sum(1))
    total = bradley_terry(score_B, better_BB, weight_B)
    metrics, paired_B = {"loss/preference": total.detach()}, targets.columns["paired_B"]
    if bool(paired_B.any()):
        right = ((score_B[:, None] > score_B) & better_BB).to(weight_B.dtype) * weight_B[:, None]
        metrics["preferred"] = (right.sum() / paired_B[0]).detach()  # divided, since metrics become means over all rows
    return total, metrics
