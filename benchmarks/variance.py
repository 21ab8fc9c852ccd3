"""How much a group's gradient varies on real models, credit by credit: what docs/oracle.md proves of games, measured.

    python benchmarks/variance.py            # two tables, some minutes of one core

The policies that two recipes start from say G responses a role to each of many problems, and every rule learns from
the same ones (``resampled`` says its own, as many). The gradient of one problem's group is the package's own: credit,
advantage, loss, backward, all weights of all agents in one line. Half the squared distance of two groups' gradients is
an unbiased estimate of the trace of a group's covariance; the table has the mean over pairs of problems, and its ratio
to MAGRPO's with a bootstrap's standard error over pairs. All these rules have the same expected gradient, MAGRPO (G -
1)/G of it, which the ratios take out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers.utils import logging

from coevolve.algorithms import magrpo, mareinforce, marloo
from coevolve.collate import collate, rows_of
from coevolve.learners.local import LocalLearner
from coevolve.live import pay
from coevolve.measure import Clock
from coevolve.plays import resampled, rounds
from coevolve.recipe.build import build
from coevolve.recipe.read import load_recipe
from coevolve.rollout import rollout
from coevolve.runs.environment import processor
from coevolve.trainer import Trainer, batch_of
from coevolve.types import Algorithm, Case, Episode, Lesson, Row

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ("magrpo-writing-mini", "magrpo-mini-coop-tiny")
MEMBERS, PAIRS = 4, 48


@dataclass(frozen=True)
class Rule:
    """An algorithm by the name of its row. factor: of its expected gradient. again: it wants turns said again."""

    name: str
    algorithm: Algorithm
    factor: float = 1.0
    again: bool = False


RULES = (
    Rule("magrpo", magrpo(), (MEMBERS - 1) / MEMBERS),
    Rule("marloo", marloo()),
    Rule("mareinforce", mareinforce()),
    Rule("marloo, baseline: length", marloo(baseline="length")),
    Rule("marloo, crossed, 2 shifts", marloo(credit={"name": "crossed", "shifts": 2})),
    Rule("marloo, crossed", marloo(credit="crossed")),
    Rule("mareinforce, counterfactual", mareinforce(credit="counterfactual")),
    Rule("mareinforce, difference", mareinforce(credit="difference")),
    Rule("marloo, difference", marloo(credit="difference")),
    Rule("marloo, first_joint of resampled", marloo(credit="first_joint"), again=True),
    Rule("marloo, team_return of resampled", marloo(), again=True),
)


@dataclass(frozen=True)
class Found:
    """Of a rule: half the squared distance of every pair of groups, and what a group costs."""

    rule: Rule
    halves: np.ndarray
    responses: float
    rewards: float


def main() -> None:
    """Print a table per recipe."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    print(f"{processor()}, torch {torch.__version__}; {2 * PAIRS} problems, G = {MEMBERS}")
    for name in RECIPES:
        print(f"\n{name}\n\n| rule | trace | responses | rewards | at equal responses | at equal rewards |")
        print("|---|---:|---:|---:|---:|---:|")
        found = measured(name)
        for one in found:
            cells = (f"{one.halves.mean():.3g}", f"{one.responses:g}", f"{one.rewards:g}")
            print(f"| {' | '.join((one.rule.name, *cells, *ratios(one, found[0])))} |", flush=True)


def measured(name: str) -> list[Found]:
    """Every rule on the start policies of a recipe."""
    trainer = build(load_recipe(ROOT / "recipes" / f"{name}.yaml", ["workers=false"]))
    problems = batch_of(trainer.task.train, 0, 2 * PAIRS, trainer.seed)
    stage = trainer.stage(0, Clock())
    once = rollout(rounds(), problems, stage, members=MEMBERS)
    again = rollout(resampled(MEMBERS), problems, stage, members=1)
    return [_measured(trainer, rule, again if rule.again else once) for rule in RULES]


def _measured(trainer: Trainer, rule: Rule, episodes: list[Episode]) -> Found:
    asked, stage = list[Case](), trainer.stage(0, Clock())

    def paid(cases: Sequence[Case]) -> list[list[float]]:
        asked.extend(cases)
        return pay(cases, stage=stage)

    groups: dict[str, list[Row]] = {}
    for row in rows_of(episodes, rule.algorithm.credit, paid):
        groups.setdefault(row.turn.problem.id, []).append(row)
    found = map(partial(gradient, trainer, rule.algorithm, episodes), groups.values())
    halves = [float((one - other).square().sum()) / 2 for one, other in zip(found, found, strict=True)]
    count, joints = len(groups), sum(len(episode.joints) for episode in episodes)
    responses = sum(len(episode.turns) for episode in episodes) / count
    return Found(rule, np.array(halves), responses, (joints + len(asked)) / count)


def gradient(trainer: Trainer, rule: Algorithm, episodes: list[Episode], rows: list[Row]) -> torch.Tensor:
    """Of the loss on one group, by all weights of all agents."""
    parts = []
    for name in dict.fromkeys(row.turn.policy for row in rows):
        policy, batch = trainer.policies[name], collate(rows, name)
        assert isinstance(policy, LocalLearner)
        targets = rule.advantage(Lesson(episodes, {name: batch}), rule.start)[0][name]
        for parameter in policy.parameters:
            parameter.grad = None
        weight_BT = rule.objective.loss_aggregation(batch)
        rule.objective.loss(policy.outputs(batch), batch, targets, weight_BT)[0].backward()
        parts += [p.grad.flatten().clone() for p in policy.parameters if p.grad is not None]
    return torch.cat(parts)


def ratios(one: Found, plain: Found) -> list[str]:
    """Its trace over MAGRPO's, lengths made equal, times what it costs more; with a standard error over pairs."""
    drawn = np.random.default_rng(0).integers(len(plain.halves), size=(2000, len(plain.halves)))
    scale = (plain.rule.factor / one.rule.factor) ** 2
    ratio = scale * one.halves.mean() / plain.halves.mean()
    error = float((scale * one.halves[drawn].mean(1) / plain.halves[drawn].mean(1)).std())
    prices = (one.responses / plain.responses, one.rewards / plain.rewards)
    return [f"{price * ratio:.2f} ± {price * error:.2f}" for price in prices]


if __name__ == "__main__":
    main()
