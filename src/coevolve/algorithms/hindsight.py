"""Hindsight: answers given after hearing a partner are also learnt as answers to the prompt without the partner.

A turn that heard another one is sampled after a longer prompt than the one that the policy gets later, alone. So the
turn becomes a second row with the bare prompt: that of a turn of the same episode and policy that heard nothing. The
answer was sampled from mu, the policy given the longer prompt, so the row has the importance weight min(pi / mu, cap),
pi and mu of the whole answer (truncated importance sampling; Ionides 2008, J. Comput. Graph. Stat. 17(2)). Without the
cap the row's gradient is that of answering alone; the cap biases it by the part of the weights that it cuts off
(docs/hindsight.md has by how much).

With ``chain``, one policy in both roles and own rewards this is a repaired CORY (arXiv 2410.06101), with these changes:

1. each answer's credit is its own reward, not the sum of both, in which the partner's reward is noise;
2. the baseline is the mean of the others on the same problem (leave-one-out), not a critic;
3. one set of weights plays both roles, so there is nothing to exchange;
4. the observer's answers also train the policy for being asked alone.

With ``hinted`` it is MAGRPO that also learns from answers given with knowledge of the partners' answers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial

from coevolve.algorithms.advantages import against_peers, per_policy
from coevolve.algorithms.baselines import BASELINES, SCALES, check_peers, with_peers
from coevolve.algorithms.group_relative import group_relative
from coevolve.credit import CreditSpec, credit_name
from coevolve.late import Tensor, torch
from coevolve.settings import Count, NotNegative, Positive, checked_call
from coevolve.types import Algorithm, Batch, Episode, Loss, Outputs, Row, Targets, Turn


@checked_call("algorithm")
def hindsight(
    *,
    cap: NotNegative = 1.0,
    credit: CreditSpec = "own_reward",
    clip: Positive | None = None,
    epochs: Count = 1,
    minibatch: Count | None = None,
    beta: NotNegative = 0.0,
) -> Algorithm:
    """Leave-one-out policy gradients in which answers that heard a partner are also learnt after the bare prompt.

    For plays in which some role hears another (``chain``, ``hinted``), with at least two ``members``. cap: the largest
    importance weight of a row with the bare prompt; 0 adds no such rows, which leaves ``marloo``. credit: an added row
    has that of its turn. clip, epochs, minibatch: as in ``magrpo``; added rows have no ratio per token to clip, their
    importance weight follows the policy. beta: weight of the KL to the start model, ``k2`` in the loss of the turns as
    they were sampled. Raises ValueError for a play in which no role hears another, and if a policy, also a frozen one,
    spoke only after hearing others, so that there is no bare prompt.
    """
    settings = {**locals(), "credit": credit_name(credit)}
    made = group_relative(
        baseline="loo", credit=credit, clip=clip, epochs=epochs, minibatch=minibatch, beta=beta, estimator="k2"
    )
    made = dataclasses.replace(made, settings=settings)
    if cap == 0:
        return made
    loss = partial(_weighed, loss=made.objective.loss, most=math.log(cap))
    return dataclasses.replace(
        made,
        rows=answers_alone,
        advantage=with_peers(per_policy(_against_sampled, beta), check_peers),
        objective=dataclasses.replace(made.objective, loss=loss),
    )


def answers_alone(episodes: Sequence[Episode], rows: Sequence[Row]) -> list[Row]:
    """Return a row for every turn that heard another role, with prompt and peers of a turn that heard nothing."""
    heard = [
        row for row in rows if any(isinstance(part, Turn) and part.role != row.turn.role for part in row.turn.heard)
    ]
    if not heard:
        raise ValueError("hindsight: nobody has heard anybody; want a play in which somebody reads (chain, hinted)")
    return [dataclasses.replace(row, turn=_alone(row.turn, episodes[row.episode])) for row in heard]


def _alone(turn: Turn, episode: Episode) -> Turn:
    """Return the turn after the prompt of a turn that heard nothing, of the same role, else of the same policy."""
    bare = [one for one in episode.turns if one.policy == turn.policy and not one.heard]
    if not bare:
        raise ValueError(
            f"hindsight: policy {turn.policy!r}, role {turn.role!r}, spoke on problem {turn.problem.id!r} only after "
            "it had heard somebody, so it has no bare prompt; give the role that speaks first to the same policy"
        )
    first = next((one for one in bare if one.role == turn.role), bare[0])
    return dataclasses.replace(turn, prompt_ids=first.prompt_ids, peers=first.peers)


def _against_sampled(batch: Batch, eta: float) -> Targets:
    """Return leave-one-out advantages; an added row's baseline is the mean over its group's sampled turns of other
    episodes, so that no baseline contains a reward that the turn itself may have changed."""
    said_B = ~batch.extra_B
    said = against_peers(BASELINES["loo"], SCALES["none"])(batch.select(said_B.nonzero()[:, 0]), eta)
    place_B = batch.peers_B * (int(batch.episode_B.max()) + 1) + batch.episode_B

    def others(of_B: Tensor) -> Tensor:
        """Return for each row the sum over its group's sampled turns of other episodes."""
        whole, mine = (
            torch.bincount(key_B, torch.where(said_B, of_B, 0.0).double())[key_B] for key_B in (batch.peers_B, place_B)
        )
        return whole - mine

    count_B = others(torch.ones_like(batch.credit_B))
    above_B = batch.credit_B - others(batch.credit_B) / count_B.clamp(min=1)
    adv_B = torch.where(count_B > 0, above_B, 0.0).to(batch.credit_B.dtype)
    adv_B[said_B] = said.adv_BT[:, 0]
    return Targets(adv_B[:, None] * batch.mask_BT, metrics=said.metrics)


def _weighed(
    out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor, *, loss: Loss, most: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of the sampled turns, plus REINFORCE weighted by min(pi / mu, cap) on the added rows."""
    extra_BT = batch.extra_B[:, None] & batch.mask_BT
    total, metrics = loss(out, batch, targets, weight_BT * ~extra_BT)
    log_B = ((out.logp_BT - batch.logp_BT).detach() * batch.mask_BT).sum(1)
    weighed_BT = targets.adv_BT * log_B.clamp(max=most).exp()[:, None] * weight_BT * extra_BT
    alone = -(weighed_BT * out.logp_BT.masked_fill(~extra_BT, 0.0)).sum()
    capped = ((log_B > most)[:, None] * weight_BT * extra_BT).sum()
    return total + alone, {**metrics, "loss/alone": alone.detach(), "capped": capped}
