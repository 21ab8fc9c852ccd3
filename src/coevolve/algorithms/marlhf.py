"""MARLHF: a team learns from a reward model, which learns from comparisons of joint responses.

The reward model is a policy that never speaks, the ``judge``: it reads the team's joint response and its value head
scores it. At every step the judge learns from pairs of joint responses to the same problem (Bradley-Terry, as in Ouyang
et al. 2022, arXiv 2203.02155, equation 1), and the agents learn by any other algorithm, whose credit is the judge's
score of their joint response, from before the update. The task's reward is measured as always, but reaches the agents
only through the comparisons.

Differences from MARLHF of CoMLRL 1.4.3 (docs/from-comlrl.md has the defaults):

1. The judge keeps learning during the training of the agents, from their current responses; CoMLRL trains it once and
   then fixes it. For ``warmup`` steps only the judge learns, which is that first phase.
2. The judge reads the first agent's prompt and then all responses, as token ids; in CoMLRL, one text with headings. So
   judge and agents must have the same tokenizer.
3. Ties are no pairs, as in CoMLRL.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any

from coevolve.algorithms.actor_critic import iac
from coevolve.algorithms.cory import cory
from coevolve.algorithms.grpo import cispo, dapo, dr_grpo, grpo, gspo, reinforce, rloo
from coevolve.algorithms.hindsight import hindsight
from coevolve.algorithms.madpo import check_joint
from coevolve.algorithms.magrpo import magrpo, mareinforce, maremax, marloo
from coevolve.algorithms.ppo import a2c, ppo, reinforce_pp
from coevolve.files import shown
from coevolve.late import Tensor, torch
from coevolve.maths.preferences import bradley_terry, pair_weights, preferred
from coevolve.recipe.components import component
from coevolve.settings import Count, CountFromZero, checked_call
from coevolve.types import (
    Algorithm,
    Batch,
    Episode,
    Lesson,
    Loss,
    Outputs,
    PolicyName,
    Row,
    Rows,
    State,
    Targets,
)

_GROUPS = (magrpo, marloo, maremax, mareinforce, grpo, dr_grpo, dapo, gspo, cispo, rloo, reinforce, hindsight)
AGENTS: dict[str, Callable[..., Algorithm]] = {
    made.__name__: made for made in (*_GROUPS, ppo, cory, a2c, reinforce_pp, iac)
}
"""Algorithms that agents can use, which need only one credit per turn."""


@checked_call("algorithm")
def marlhf(
    *, judge: PolicyName, agents: Any = "magrpo", warmup: CountFromZero = 0, pairs: Count | None = None
) -> Algorithm:
    """An algorithm on the scores of a reward model, which is a policy that plays no role and learns from comparisons.

    For plays of one joint response (``rounds``, ``chain``), with at least two ``members``. judge: the policy that is
    the reward model; it must have the agents' tokenizer. agents: the agents' algorithm, as ``algorithm`` in a recipe
    (``magrpo``, ``{name: ppo, eta: 0.02}``) or an ``Algorithm``. Its credit, the mean over the turns of a response, is
    what responses are compared by: the task's reward, or ``{name: compared, by: file.py:name}``. warmup: number of
    first steps in which only the judge learns. pairs: as in ``madpo``. Raises ValueError for a play of several joint
    responses, one member, agents that learn in turn, from pairs or with other critics, and a judge that plays a role or
    does not learn.
    """
    inner = _algorithm(agents)
    if inner.follow is not None or not isinstance(inner.critic, bool) or inner.objective.together == "peers":
        raise ValueError(
            "algorithm.agents: one whose policies learn in turn or from pairs of turns (madpo), or whose critics are "
            "other policies, cannot learn from a judge yet; want one such as magrpo or ppo, or iac without critic"
        )
    loss = partial(_loss, loss=inner.objective.loss, pairs=pairs)
    agents_settings = {key: 0 if key == "resample" else value for key, value in inner.settings.items()}
    return dataclasses.replace(
        inner,
        advantage=partial(_advantage, inner=inner, judge=judge, warmup=warmup, pairs=pairs),
        objective=dataclasses.replace(inner.objective, loss=loss, together="peers"),
        start={"step": 0, "agents": dict(inner.start)},
        kept=partial(_kept, inner=inner),
        warmup=warmup + inner.warmup,
        critic=True,
        rows=partial(_rows, judge=judge, more=inner.rows),
        resample=0,  # which goes by the task's rewards, where the judge's scores may differ
        settings={"agents": agents_settings, "judge": judge, "warmup": warmup, "pairs": pairs},
    )


def _algorithm(spec: Any) -> Algorithm:
    made = spec if isinstance(spec, Algorithm) else component(spec, AGENTS, "algorithm.agents")
    if not isinstance(made, Algorithm):
        raise ValueError(f"algorithm.agents is {shown(spec)}; want an algorithm, such as magrpo")
    return made


def _kept(state: State, *, inner: Algorithm) -> State:
    """Return the state that survives a reset: the step count of the warmup, and what the agents' algorithm keeps."""
    return {"step": state["step"], "agents": {**inner.start, **(inner.kept(state["agents"]) if inner.kept else {})}}


def _rows(episodes: Sequence[Episode], rows: Sequence[Row], *, judge: PolicyName, more: Rows | None) -> list[Row]:
    """Return the rows that the agents' algorithm adds, and a row of the judge for every joint response.

    The judge's score is its value after the whole prompt. The single action token only fills the row, which needs one.
    """
    check_joint(episodes, "marlhf")
    if roles := [row.turn.role for row in rows if row.turn.policy == judge]:
        raise ValueError(f"marlhf: the judge, policy {judge!r}, plays the role {roles[0]!r}; it is to read alone")
    said: dict[int, list[Row]] = {}
    for row in rows:
        said.setdefault(row.episode, []).append(row)
    read = []
    for number, together in said.items():
        row, turns = together[0], episodes[number].turns
        # The mean over all turns, exact: equal sums give equal credits however they are divided among the turns.
        credit = mean(float(one.credit) for one in together)
        ids = [*turns[0].prompt_ids, *(token for turn in turns for token in turn.action_ids)]
        peers = ("judged", row.turn.problem.id)
        turn = dataclasses.replace(
            row.turn, policy=judge, prompt_ids=ids, action_ids=ids[-1:], logps=[0.0], peers=peers, weight=1.0
        )
        read.append(dataclasses.replace(row, turn=turn, credit=credit))
    return [*(more(episodes, rows) if more else ()), *read]


def _advantage(
    lesson: Lesson, state: State, *, inner: Algorithm, judge: PolicyName, warmup: int, pairs: int | None
) -> tuple[dict[PolicyName, Targets], State]:
    if judge not in lesson.batches:
        raise ValueError(f"marlhf: the judge, policy {judge!r}, does not learn; give it other weights than frozen")
    read = lesson.batches[judge]
    assert read.value_BT is not None, "marlhf asked for value heads"
    score_B = read.value_BT[:, 0].float()
    score_E = torch.zeros(len(lesson.episodes)).index_copy(0, read.episode_B, score_B)
    agents = {
        name: batch.replace(credit_B=score_E[batch.episode_B], paid_B=None)
        for name, batch in lesson.batches.items()
        if name != judge
    }
    found: tuple[Mapping[PolicyName, Targets], State] = {}, state["agents"]
    if agents and state["step"] >= warmup:  # there may be no agents that learn, at this step or at all
        found = inner.advantage(dataclasses.replace(lesson, batches=agents), state["agents"])
    better_BB = preferred(read.credit_B, read.peers_B, pairs, read.paid_B)
    agreed = (((score_B[:, None] > score_B) & better_BB).sum() / better_BB.sum().clamp(min=1)).item()
    metrics, columns = {"pairs": float(better_BB.sum()), "agreed": agreed}, {"judged_B": torch.ones(len(read))}
    aims = Targets(torch.zeros_like(read.logp_BT), metrics=metrics, columns=columns)
    return {**found[0], judge: aims}, {"step": state["step"] + 1, "agents": found[1]}


def _loss(
    out: Outputs, batch: Batch, targets: Targets, weight_BT: Tensor, *, loss: Loss, pairs: int | None
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Return the judge's Bradley-Terry loss, or for an agent the loss of its algorithm."""
    if "judged_B" not in targets.columns:
        return loss(out, batch, targets, weight_BT)
    assert out.value_BT is not None, "marlhf asked for value heads"
    better_BB = preferred(batch.credit_B, batch.peers_B, pairs, batch.paid_B)
    weight_B = pair_weights(better_BB, batch.peers_B, weight_BT.sum(1))
    total = bradley_terry(out.value_BT[:, 0], better_BB, weight_B)
    return total, {"loss/preference": total.detach()}
