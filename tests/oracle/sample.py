"""Play, collate, advantage, loss, gradient: the package's own path, with tables for models.

Groups are drawn as in training; or they are all the groups there can be, each with its probability.
Letters: N groups, S prompts, B rows, T action tokens. A gradient is that of the logit of move C at each prompt (that of
D is its negative). A loss is differentiated once by the log-probability of every row, and the softmax of the table does
the rest row by row, so the gradient of every single group is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from cases import Protocol
from exact import ROLES, prompts
from tabular import EveryEngine, Table, TabularEngine
from torch import Tensor

from coevolve.collate import collate, rows_of
from coevolve.play import Stage, rollout
from coevolve.tasks.games import Game
from coevolve.types import Algorithm, Batch, Episode, Lesson, Outputs, Problem, Sampling, State, Targets


@dataclass
class Sample:
    """Episodes of one protocol, and for each agent the group and the prompt of each of its rows."""

    protocol: Protocol
    tables: Mapping[str, Table]
    episodes: list[Episode]
    groups: int
    chances_N: Tensor | None = None
    """Of the groups, where they are all that there can be; None where they were drawn."""
    batches: dict[str, Batch] = field(default_factory=dict)
    credits: dict[str, list[float]] = field(default_factory=dict)
    places: dict[str, Tensor] = field(default_factory=dict)


def played(protocol: Protocol, groups: int) -> Sample:
    """The protocol on so many problems, with random tables for policies and references."""
    tables = _tables(protocol)
    return Sample(protocol, tables, _episodes(protocol, TabularEngine(tables), groups), groups)


def everything(protocol: Protocol) -> Sample:
    """All groups that there can be, each with its probability. An early stop leaves digits unused: they count once."""
    assert protocol.turns is not None
    tables, digits = _tables(protocol), protocol.members * len(ROLES) * protocol.turns
    groups = 2**digits
    episodes = _episodes(protocol, EveryEngine(tables, protocol.turns), groups)
    spoken = [(int(e.problem.id), t.logps[0]) for e in episodes for t in e.turns]
    group, logp = torch.tensor([n for n, _ in spoken]), torch.tensor([x for _, x in spoken], dtype=torch.float64)
    unused_N = digits - torch.bincount(group, minlength=groups)
    chances_N = torch.bincount(group, logp, groups).exp() * 0.5**unused_N
    return Sample(protocol, tables, episodes, groups, chances_N)


def _tables(protocol: Protocol) -> dict[str, Table]:
    return {role: Table(prompts(protocol.ways, role), 2 * protocol.seed + i) for i, role in enumerate(ROLES)}


def _episodes(protocol: Protocol, engine: TabularEngine, groups: int) -> list[Episode]:
    stage = Stage({role: role for role in ROLES}, Game(game=protocol.game), engine, Sampling(1), protocol.seed)
    return rollout(protocol.play, [Problem(str(i)) for i in range(groups)], stage, members=protocol.members)


def batch_of(sample: Sample, algorithm: Algorithm, role: str) -> Batch:
    """The agent's batch with this algorithm's credit.

    Collated once per agent; the credits of further algorithms are put in their place, which a test compares.
    """
    reward = Game(game=sample.protocol.game).reward
    if role not in sample.batches:
        rows = rows_of(sample.episodes, algorithm.credit, reward)
        sample.batches[role] = described(sample, collate(rows, role), role)
    key = str(algorithm.settings["credit"])
    if key not in sample.credits:
        sample.credits[key] = [number for found in algorithm.credit(sample.episodes, reward) for number in found]
    roles = [t.policy for e in sample.episodes for t in e.turns]
    mine = [number for number, name in zip(sample.credits[key], roles, strict=True) if name == role]
    return sample.batches[role].replace(credit_B=torch.tensor(mine))


def targets_of(algorithm: Algorithm, batch: Batch, episodes: list[Episode], state: State | None = None) -> Targets:
    """What the algorithm's advantage makes of one agent's batch."""
    lesson, before = Lesson(episodes, {"": batch}), algorithm.start if state is None else state
    return algorithm.advantage(lesson, before)[0][""]


def described(sample: Sample, batch: Batch, role: str) -> Batch:
    """What a policy adds to a batch: the reference's log-probabilities, and a critic that says 0."""
    table = sample.tables[role]
    if role not in sample.places:
        group = [int(t.problem.id) for e in sample.episodes for t in e.turns if t.policy == role]
        sample.places[role] = torch.tensor(group) * len(table.prompts) + table.prompts_of(batch)
    prompt_B = sample.places[role] % len(table.prompts)
    zero_BT = torch.zeros_like(batch.logp_BT)
    return batch.replace(
        logp_ref_BT=table.reference_SA[prompt_B].gather(1, batch.action_BT).float(), value_BT=zero_BT, kl_BT=zero_BT
    )


def slopes(algorithm: Algorithm, batch: Batch, episodes: list[Episode], state: State | None = None) -> Tensor:
    """By how much the objective grows with the log-probability of each token, [B, T]."""
    logp_BT, objective = batch.logp_BT.double().requires_grad_(), algorithm.objective
    targets = targets_of(algorithm, batch, episodes, state)
    out = Outputs(logp_BT, batch.value_BT)
    loss, _ = objective.loss(out, batch, targets, objective.loss_aggregation(batch))
    (slope_BT,) = torch.autograd.grad(-loss, logp_BT)
    return slope_BT


def estimates(sample: Sample, algorithm: Algorithm, role: str, batch: Batch, state: State | None = None) -> Tensor:
    """The ascent direction of every group, [N, S]; its mean is the gradient of the whole batch."""
    table, place_B = sample.tables[role], sample.places[role]
    p_B = table.logp_SA.detach()[place_B % len(table.prompts), 0].exp()
    push_B = (slopes(algorithm, batch, sample.episodes, state) * ((batch.action_BT == 0).double() - p_B[:, None])).sum(
        1
    )
    cells = sample.groups * len(table.prompts)
    return sample.groups * torch.bincount(place_B, push_B, cells).view(sample.groups, -1)
