"""Play, collate, advantage, loss, gradient: the package's own path, with tables for models.

Groups are drawn as in training; or they are all the groups there can be, each with its probability.
Letters: N groups, S prompts, B rows, T action tokens. A gradient is that of the logit of move C at each prompt (that of
D is its negative). A loss is differentiated once by the log-probability of every token, and the softmax of the table
does the rest token by token, so the gradient of every single group is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from cases import Protocol
from exact import ROLES, longer_pay, prompts
from tabular import EveryEngine, Table, TabularEngine
from torch import Tensor

from coevolve.collate import collate, rows_of
from coevolve.interfaces import Task
from coevolve.rollout import Stage, rollout
from coevolve.tasks.games import GAMES, Game
from coevolve.types import Algorithm, Batch, Case, Episode, Lesson, Outputs, Problem, Sampling, State, Targets


@dataclass
class Sample:
    """Episodes of one protocol, and for each agent the group of each of its tokens, and what that follows.

    asked: by credit, how many joint responses it has paid that nobody gave.
    """

    protocol: Protocol
    tables: Mapping[str, Table]
    episodes: list[Episode]
    groups: int
    chances_N: Tensor | None = None
    """Of the groups, where they are all that there can be; None where they were drawn."""
    batches: dict[str, Batch] = field(default_factory=dict)
    credits: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    costs: tuple[float, ...] = ()
    places: dict[str, Tensor] = field(default_factory=dict)


class Longer:
    """A task whose responses have several tokens; everybody is asked the same."""

    train = test = ()

    def prompt(self, p: Problem, role: str, heard: object) -> str:
        return "c"

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        return [list(longer_pay(*(turn.text for turn in case.turns))) for case in cases]


def task_of(protocol: Protocol) -> Task:
    return Game(game=protocol.game) if protocol.game in GAMES else Longer()


def played(protocol: Protocol, groups: int) -> Sample:
    """The protocol on so many problems, with random tables for policies and references."""
    tables = _tables(protocol)
    return Sample(protocol, tables, _episodes(protocol, TabularEngine(tables, protocol.responses), groups), groups)


def everything(protocol: Protocol) -> Sample:
    """All groups that there can be, each with its probability. An early stop leaves digits unused: they count once."""
    assert protocol.turns is not None
    tables, digits = _tables(protocol), protocol.members * len(ROLES) * protocol.turns
    groups = len(protocol.responses) ** digits
    episodes = _episodes(protocol, EveryEngine(tables, protocol.turns, protocol.responses), groups)
    spoken = [(int(e.problem.id), sum(t.logps)) for e in episodes for t in e.turns]
    group, logp = torch.tensor([n for n, _ in spoken]), torch.tensor([x for _, x in spoken], dtype=torch.float64)
    unused_N = digits - torch.bincount(group, minlength=groups)
    chances_N = torch.bincount(group, logp, groups).exp() / len(protocol.responses) ** unused_N
    return Sample(protocol, tables, episodes, groups, chances_N)


def _tables(protocol: Protocol) -> dict[str, Table]:
    return {role: Table(prompts(protocol.ways, role), 2 * protocol.seed + i) for i, role in enumerate(ROLES)}


def _episodes(protocol: Protocol, engine: TabularEngine, groups: int) -> list[Episode]:
    sampling = Sampling(max(map(len, protocol.responses)))
    stage = Stage({role: role for role in ROLES}, task_of(protocol), engine, sampling, protocol.seed)
    return rollout(protocol.play, [Problem(str(i)) for i in range(groups)], stage, members=protocol.members)


def batch_of(sample: Sample, algorithm: Algorithm, role: str) -> Batch:
    """The agent's batch with this algorithm's credit.

    Collated once per agent; the credits of further algorithms are put in their place, which a test compares.
    """
    reward, asked = task_of(sample.protocol).reward, list[Case]()

    def counted(cases: Sequence[Case]) -> list[list[float]]:
        asked.extend(cases)
        return reward(cases)

    if role not in sample.batches:
        rows = rows_of(sample.episodes, algorithm.credit, reward)
        sample.batches[role] = described(sample, collate(rows, role), role)
    key = str(algorithm.settings["credit"])
    if key not in sample.credits:
        found = [number for numbers in algorithm.credit(sample.episodes, counted) for number in numbers]
        said = [turn.policy for episode in sample.episodes for turn in episode.turns]
        sample.credits[key] = {
            name: torch.tensor([number for number, one in zip(found, said, strict=True) if one == name])
            for name in ROLES
        }
        sample.asked[key] = len(asked)
    return sample.batches[role].replace(credit_B=sample.credits[key][role])


def targets_of(algorithm: Algorithm, batch: Batch, episodes: list[Episode], state: State | None = None) -> Targets:
    """What the algorithm's advantage makes of one agent's batch."""
    lesson, before = Lesson(episodes, {"": batch}), algorithm.start if state is None else state
    return algorithm.advantage(lesson, before)[0][""]


def described(sample: Sample, batch: Batch, role: str) -> Batch:
    """What a policy adds to a batch: the reference's log-probabilities, and a critic that says 0."""
    table = sample.tables[role]
    if role not in sample.places:
        group = [int(t.problem.id) for e in sample.episodes for t in e.turns if t.policy == role]
        sample.places[role] = torch.tensor(group)[:, None] * len(table.prompts) + table.states_of(batch)
    state_BT, zero_BT = sample.places[role] % len(table.prompts), torch.zeros_like(batch.logp_BT)
    return batch.replace(
        logp_ref_BT=table.reference_SA[state_BT, batch.action_BT].float(), value_BT=zero_BT, kl_BT=zero_BT
    )


def slopes(algorithm: Algorithm, batch: Batch, episodes: list[Episode], state: State | None = None) -> Tensor:
    """By how much the objective grows with the log-probability of each token, [B, T]."""
    return all_slopes(algorithm, batch, episodes, state)[0]


def all_slopes(
    algorithm: Algorithm, batch: Batch, episodes: list[Episode], state: State | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """And with the KL and the entropy over the vocabulary where it was drawn, if the loss has these; else 0."""
    logp_BT, objective = batch.logp_BT.double().requires_grad_(), algorithm.objective
    kl_BT, entropy_BT = (torch.zeros_like(logp_BT).requires_grad_() for _ in range(2))
    targets = targets_of(algorithm, batch, episodes, state)
    out = Outputs(logp_BT, batch.value_BT, entropy_BT=entropy_BT, kl_BT=kl_BT if objective.kl else None)
    loss, _ = objective.loss(out, batch, targets, objective.loss_aggregation(batch))
    return torch.autograd.grad(-loss, (logp_BT, kl_BT, entropy_BT), allow_unused=True, materialize_grads=True)


def estimates(sample: Sample, algorithm: Algorithm, role: str, batch: Batch, state: State | None = None) -> Tensor:
    """The ascent direction of every group, [N, S]; its mean is the gradient of the whole batch."""
    table, place_BT = sample.tables[role], sample.places[role]
    logp_BTA = table.logp_SA.detach()[place_BT % len(table.prompts)]
    p_BT = logp_BTA[..., 0].exp()
    slope_BT, kl_slope_BT, entropy_slope_BT = all_slopes(algorithm, batch, sample.episodes, state)
    push_BT = slope_BT * ((batch.action_BT == 0).double() - p_BT)
    mean_BT = (logp_BTA.exp() * logp_BTA).sum(-1)  # the entropy's own slope is -p_C (log p_C + H)
    push_BT = push_BT - entropy_slope_BT * p_BT * (logp_BTA[..., 0] - mean_BT)
    if algorithm.objective.kl:  # the KL's own slope by the logit of C is p_C (log p_C / q_C - KL)
        apart_BTA = logp_BTA - table.reference_SA[place_BT % len(table.prompts)]
        push_BT = push_BT + kl_slope_BT * p_BT * (apart_BTA[..., 0] - (logp_BTA.exp() * apart_BTA).sum(-1))
    cells = sample.groups * len(table.prompts)
    found = torch.bincount(place_BT.flatten(), (push_BT * batch.mask_BT).flatten(), cells)
    return sample.groups * found.view(sample.groups, -1)
