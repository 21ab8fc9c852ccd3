"""Actors and critics over turns: IAC, every agent's critic of what it was told itself, and MAAC, one critic of what all
were told (CoLLM-DC and CoLLM-CC, arXiv 2601.21972; in CoMLRL ``IACTrainer`` and ``MAACTrainer``).

A turn is one action, all its tokens have one advantage, and a critic says one value a turn, before the turn's first
token. What it reads is a row of its own (``Algorithm.rows``): the agent's prompt, or the prompts of all that act
together, and with ``value: q`` what was answered, too. The critic is the agent's own head, that of any other policy, or
a policy that never speaks. Deviations from CoMLRL are numbered in docs/iac.md.
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
from coevolve.types import Algorithm, Episode, Objective, PolicyName, Role, Row, Turn

Reads = Callable[[Turn, Sequence[Turn]], list[int]]
"""(a turn, those it was judged together with) -> the ids that its critic reads."""


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
    """Independent actor-critic: the advantage of a turn over what the agent's own history was worth.

    critic: policy -> the policy whose head is its critic, for all that speak; None is everybody's own head. value: of
    what was told (v), or of that and the answer (q, with which the advantage is how much better it went than is usual
    after this answer). credit: whose return; its discount is ``gamma``. lam: 0 is one turn of reward and then the
    critic, 1 the whole return. whiten: advantages to mean 0, variance 1 over the policy's turns of one role and place
    at a step; that of a turn which is the only one of these stays as it is. value_coef: of half the squared error,
    which is cut off ``value_clip`` away from the value before the update (None: nowhere). value_norm: values, and
    ``value_clip``, in standard deviations of the returns so far. clip, epochs, minibatch: as in ``group_relative``.
    Raises ValueError for settings out of range.
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
    """Actors with one critic of what all of them were told.

    critic: the policy whose head it is, which may play a role or none. It reads the agents' own token ids, so it has
    their tokenizer. Everything else as in ``iac``.
    """
    return _actor_critic(lambda name: critic, (critic,), joint_history(value == "q"), dict(locals()))


def _actor_critic(
    critic_of: CriticOf, named: tuple[PolicyName, ...] | None, reads: Reads, s: Mapping[str, Any]
) -> Algorithm:
    """s: the settings of ``iac``. named: the policies that have a head, None for all."""
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
    """The turn's own prompt. answers: and what it answered."""
    return lambda turn, together: [*turn.prompt_ids, *(turn.action_ids if answers else ())]


def joint_history(answers: bool) -> Reads:
    """The prompts of all that were judged together, one after the other, and (answers) what all of them answered.

    Without answers it is a baseline, which may not know what the turn itself said: so prompts of partners that quote
    one of these turns are left out, as it was said or as it was heard (``misheard``), itself or in an earlier turn.
    """

    def reads(turn: Turn, together: Sequence[Turn]) -> list[int]:
        said = {(one.role, one.round) for one in together}
        told = [one for one in together if one is turn or answers or not said & _heard(one)]
        prompts = [i for one in told for i in one.prompt_ids]
        return prompts + ([i for one in together for i in one.action_ids] if answers else [])

    return reads


def _heard(turn: Turn) -> set[tuple[Role, int]]:
    """Whose turns of which round a turn has heard, and those have."""
    found, waiting = set[tuple[Role, int]](), [*turn.heard]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Turn) and (part.role, part.round) not in found:
            found.add((part.role, part.round))
            waiting += part.heard
    return found


def critic_rows(episodes: Sequence[Episode], rows: Sequence[Row], *, critic_of: CriticOf, reads: Reads) -> list[Row]:
    """For every turn a row of its critic, which says what it is worth where the row's one action token would begin."""
    together = {id(turn): joint.turns for e in episodes for joint in reversed(e.joints) for turn in joint.turns}
    found = []
    for row in rows:
        turn = row.turn
        ids = reads(turn, together.get(id(turn), (turn,)))
        read = dataclasses.replace(
            turn, policy=critic_of(turn.policy), prompt_ids=ids, action_ids=turn.action_ids[:1], logps=[0.0]
        )
        found.append(dataclasses.replace(row, turn=read))
    return found
