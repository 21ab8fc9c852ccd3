"""Actor-critic over turns: IAC, a critic per agent that reads the agent's own prompt, and MAAC, one critic that reads
all prompts (CoLLM-DC and CoLLM-CC, arXiv 2601.21972; in CoMLRL ``IACTrainer`` and ``MAACTrainer``).

A turn is one action: all its tokens have one advantage, and the critic gives one value per turn, before the turn's
first token. The critic's input is a row of its own (``Algorithm.rows``): the agent's prompt, or the prompts of all that
act together, and with ``value: q`` also the answers. The critic is the value head of the agent itself, of another
policy, or of a policy that never speaks. Deviations from CoMLRL are numbered in docs/iac.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from coevolve.algorithms.losses import check_reuse, policy_gradient, with_turn_value
from coevolve.algorithms.turn_values import CriticOf, against_turn_values
from coevolve.algorithms.value_norm import in_units, units
from coevolve.credit import credit_of
from coevolve.maths.loss_aggregation import LOSS_AGGREGATIONS
from coevolve.settings import Count, Fraction, NotNegative, Positive, checked_call
from coevolve.types import Algorithm, Episode, Objective, PolicyName, Row, Turn

Reads = Callable[[Turn, Sequence[Turn]], list[int]]
"""(a turn, all turns of its joint) -> the token ids that its critic reads."""


@checked_call("algorithm")
def iac(
    *,
    critic: dict[PolicyName, PolicyName] | None = None,
    value: Literal["v", "q"] = "v",
    credit: Literal["team_return", "own_return"] = "team_return",
    gamma: Fraction = 1.0,
    lam: Fraction = 0.0,
    whiten: bool = True,
    value_coef: NotNegative = 1.2,
    value_clip: Positive | None = 0.2,
    value_norm: bool = False,
    clip: Positive | None = None,
    epochs: Count = 1,
    minibatch: Count | None = None,
) -> Algorithm:
    """IAC, independent actor-critic: a turn's advantage is its lambda-return less its critic's value of the agent's own
    history.

    critic: policy -> the policy whose value head is its critic, for all that speak; None: each policy's own head.
    value: of the prompt (v), or of prompt and answer (q, where the advantage is how much better the outcome was than
    usual after this answer). credit: the return, discounted by ``gamma``. lam: of GAE over turns; 0 bootstraps from the
    critic after one turn, 1 is the whole return. whiten: scale advantages to mean 0, variance 1 over the policy's turns
    of one role and round (in a tree: depth) at a step; the only turn of its kind keeps its advantage. value_coef:
    weight of half the squared value error, clipped ``value_clip`` away from the value before the update (None: not
    clipped). value_norm: values, and ``value_clip``, are in standard deviations of the returns so far. clip, epochs,
    minibatch: as in ``group_relative``. Raises ValueError for settings out of range.
    """
    settings = dict(locals())

    def critic_of(name: PolicyName) -> PolicyName:
        if critic is None:
            return name
        if name not in critic:
            raise ValueError(f"algorithm.critic says nobody for policy {name!r}; it has {', '.join(critic)}")
        return critic[name]

    named = None if critic is None else tuple(dict.fromkeys(critic.values()))
    return _actor_critic(critic_of, named, own_history(value == "q"), settings)


@checked_call("algorithm")
def maac(
    *,
    critic: PolicyName,
    value: Literal["v", "q"] = "v",
    credit: Literal["team_return", "own_return"] = "team_return",
    gamma: Fraction = 1.0,
    lam: Fraction = 0.0,
    whiten: bool = True,
    value_coef: NotNegative = 1.2,
    value_clip: Positive | None = None,
    value_norm: bool = False,
    clip: Positive | None = None,
    epochs: Count = 1,
    minibatch: Count | None = None,
) -> Algorithm:
    """MAAC, multi-agent actor-critic: all agents share one critic, which reads the prompts of all.

    critic: the policy whose value head is the critic; it may play a role or none. It reads the agents' token ids, so it
    must have their tokenizer. All other settings as in ``iac``.
    """
    return _actor_critic(lambda name: critic, (critic,), joint_history(value == "q"), dict(locals()))


def _actor_critic(
    critic_of: CriticOf, named: tuple[PolicyName, ...] | None, reads: Reads, s: Mapping[str, Any]
) -> Algorithm:
    """Build the algorithm. s: the settings of ``iac``. named: the policies with a value head, None for all."""
    check_reuse(s["clip"], s["epochs"], s["minibatch"])
    advantage = against_turn_values(critic_of, s["gamma"], s["lam"], whiten=s["whiten"])
    return Algorithm(
        credit=credit_of({"name": s["credit"], "gamma": s["gamma"]}),
        advantage=in_units(advantage, of_turns=True) if s["value_norm"] else advantage,
        objective=Objective(
            loss=with_turn_value(policy_gradient(s["clip"]), s["value_clip"], s["value_coef"]),
            loss_aggregation=LOSS_AGGREGATIONS["sequence"],
            epochs=s["epochs"],
            minibatch=s["minibatch"],
        ),
        critic=True if named is None else named,
        rows=partial(critic_rows, critic_of=critic_of, reads=reads),
        kept=units if s["value_norm"] else None,
        settings=s,
    )


def own_history(answers: bool) -> Reads:
    """Return a ``Reads`` that gives the turn's prompt, followed with answers=True by its action."""
    return lambda turn, together: [*turn.prompt_ids, *(turn.action_ids if answers else ())]


def joint_history(answers: bool) -> Reads:
    """Return a ``Reads`` that gives the prompts of all turns of the joint, concatenated, then with answers=True all
    actions.

    Without answers the value is a baseline and must not depend on the turn's own action. So of the partners' prompts
    only those count that were asked for before any turn of this joint was known: a later one may tell of the turn, as a
    turn or a changed copy (``misheard``) that it heard, or in a text (``refereed``).
    """

    def reads(turn: Turn, together: Sequence[Turn]) -> list[int]:
        first = min(one.asked for one in together)
        told = [one for one in together if one is turn or answers or one.asked == first]
        prompts = [i for one in told for i in one.prompt_ids]
        return prompts + ([i for one in together for i in one.action_ids] if answers else [])

    return reads


def critic_rows(episodes: Sequence[Episode], rows: Sequence[Row], *, critic_of: CriticOf, reads: Reads) -> list[Row]:
    """Return a row for the critic of every turn; its value is that before the row's single action token."""
    together = {key: e.joints[number].turns for e in episodes for key, number in e.first_joints().items()}
    found = []
    for row in rows:
        turn = row.turn
        ids = reads(turn, together.get(id(turn), (turn,)))
        read = dataclasses.replace(
            turn, policy=critic_of(turn.policy), prompt_ids=ids, action_ids=turn.action_ids[:1], logps=[0.0]
        )
        found.append(dataclasses.replace(row, turn=read))
    return found
