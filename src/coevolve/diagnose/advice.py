"""Advice on the play, credit and baseline that suit a team, from the variance of its pay under its start policies.

Within a problem, the pay of response i of one agent with responses j of the others is R_ij = mu + A_i + B_j + C_ij: the
agent's own effect, its partners', and their interaction. An agent's credit has the variance

    own + partners + interaction            beside the partners of its episode (leave-one-out over members, ``marloo``)
    own + interaction                       beside the same partners (``resampled`` with ``first_joint``)
    own + interaction / G                   beside all partners' responses (``crossed``), at G x G rewards
    own + (partners + interaction) / 2      beside two of them (``crossed`` with two shifts), at 2 G
    own + interaction                       against other responses of its own there (``counterfactual``)

With its group's others as the baseline, which ``counterfactual`` has in it, a credit varies G / (G - 1) times as much.
With one number for the role as the baseline, the differences between problems are added, and the partners' part, which
a group has in common where the partners are the same.

In a chain of two the first role is paid r1 + r2, so the luck of the second, given what it heard, is included. The best
credit for its price has the least variance times seconds.

Letters: P problems, G members, A agents.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coevolve.credit.crossed import MOST
from coevolve.diagnose.paired import Numbers
from coevolve.diagnose.premise import premise, start
from coevolve.diagnose.scene import Row, Scene
from coevolve.evaluate import SEED
from coevolve.live import pay
from coevolve.measure import Clock
from coevolve.plays import observers, rounds
from coevolve.recipe.schema import Recipe
from coevolve.report.findings.verdicts import GAIN, SLOPE, reads
from coevolve.rollout import Stage, rollout
from coevolve.types import Case, Episode, Turn

SIMULTANEOUS = ("rounds", "tree", "best_of", "resampled", "hinted")
SEQUENTIAL = ("chain", "observers")
_HOW = {
    "team_return": "play: rounds; algorithm: marloo",
    "first_joint of resampled": "play: resampled; algorithm: {name: marloo, credit: first_joint}",
    "crossed, 2 shifts": "play: rounds; algorithm: {name: marloo, credit: {name: crossed, shifts: 2}}",
    "crossed": "play: rounds; algorithm: {name: marloo, credit: crossed}",
}
"""Credit -> the recipe to recommend; without ``counterfactual``, which varies more than team_return in some games."""
_READ = ("slope", "slope_low", "slope_high", "gain", "gain_low", "gain_high", "alone", "heard", "empty")
"""What a row on a second role has of its premise."""
SAVES = 0.8
"""Share of leave-one-out's variance below which a moving baseline is recommended: it has to save some, because it lags
behind the policy."""


def advise(recipe: Recipe, problems: int, members: int) -> dict[str, Any]:
    """Return the measurements (``rows``), every credit's variance and price, and the conclusions (``advice``, lines).

    Raises ValueError for one role, a play of another kind, and fewer than two members.
    """
    name, roles = str(recipe.play.get("name")), recipe.roles
    if len(roles) < 2:
        raise ValueError(f"advise is about teams; this one has one role, {next(iter(roles))}: grpo or rloo for groups")
    if members < 2:
        raise ValueError(f"advise: {members} members of a problem; want at least 2")
    if name not in SIMULTANEOUS + SEQUENTIAL or (name in SEQUENTIAL and len(roles) != 2):
        raise ValueError(
            f"advise: {name} of {len(roles)} roles is not measured; it knows chains of two, and plays where all act at "
            f"once: {', '.join(SIMULTANEOUS)}"
        )
    scene = start(recipe, rounds(), problems, members)
    found = _at_once(scene) if name in SIMULTANEOUS else _in_turn(scene, recipe, problems)
    return {"problems": len(scene.problems), "members": members, "play": name, **found}


# Plays in which all roles act at once.


def _at_once(scene: Scene) -> dict[str, Any]:
    episodes, cost = _timed(scene)
    turns = [episode.turns for episode in episodes]
    paid_APGG = np.stack([_table(scene, turns, agent) for agent in range(len(scene.cast))])
    shares = [two_way(paid_PGG) for paid_PGG in paid_APGG]
    own, partners, mixed = (float(np.mean([one[part] for one in shares])) for part in range(3))
    differ = between(paid_APGG.mean(0), own, partners, mixed)
    own, partners = max(own, 0.0), max(partners, 0.0)
    credits = _priced(own, partners, mixed, scene.members, len(scene.cast), **cost)
    who = zip(scene.cast, shares, strict=True)
    rows = [{"role": role, "own": o, "partners": p, "interaction": c} for role, (o, p, c) in who]
    advice = _said_at_once(own, partners, mixed, credits)
    advice += _said_of_baselines(_recommended(credits), own, partners, mixed, differ, scene.members)
    return {"rows": rows, "credits": credits, **cost, "advice": advice}


def _timed(scene: Scene) -> tuple[list[Episode], dict[str, float]]:
    """Play; also return the seconds of all answers to a problem and of a reward. These rewards are the first of their
    answers; for later ones a task may remember what a program or a judge said. What rewards load or start is there
    before."""
    rollout(scene.play, scene.problems[:1], Stage(scene.cast, scene.task, scene.engine, scene.sampling, SEED, "before"))
    clock, began = Clock(), time.perf_counter()
    episodes = scene.played(clock)
    sampling = time.perf_counter() - began - clock.seconds["reward"]
    rewards = sum(len(episode.joints) for episode in episodes)
    return episodes, {
        "seconds_sampling": sampling / len(scene.problems),
        "seconds_reward": clock.seconds["reward"] / rewards,
    }


def _table(scene: Scene, turns: Sequence[Sequence[Turn]], agent: int) -> Numbers:
    """Return the team's pay for the agent's response of one member beside the others' of another one, [P, G, G]."""
    count, size = len(scene.problems), scene.members
    cases = [
        Case(scene.problems[p], (*beside[:agent], turns[p * size + i][agent], *beside[agent + 1 :]))
        for p in range(count)
        for i in range(size)
        for beside in (tuple(turns[p * size + j]) for j in range(size))
    ]
    stage = Stage(scene.cast, scene.task, scene.engine, scene.sampling, SEED, "advise")
    return np.array([np.mean(one) for one in pay(cases, stage)], dtype=np.float64).reshape(count, size, size)


def two_way(paid_PGG: Numbers) -> tuple[float, float, float]:
    """Return the variances of the row effects, the column effects and the rest within a problem, each unbiased (two-way
    analysis of variance with random effects, one number a cell), so that small ones may come out below 0."""
    size = paid_PGG.shape[1]
    mean_P11 = paid_PGG.mean((1, 2), keepdims=True)
    row_PG1, column_P1G = paid_PGG.mean(2, keepdims=True), paid_PGG.mean(1, keepdims=True)
    rest = float(((paid_PGG - row_PG1 - column_P1G + mean_P11) ** 2).sum((1, 2)).mean()) / (size - 1) ** 2
    rows, columns = (
        float(((part - mean_P11) ** 2).sum((1, 2)).mean()) * size / (size - 1) for part in (row_PG1, column_P1G)
    )
    return (rows - rest) / size, (columns - rest) / size, rest


def between(paid_PGG: Numbers, own: float, partners: float, mixed: float) -> float:
    """Return the variance of problems' mean pay, less the sampling variance of those means; NaN for one problem."""
    if len(paid_PGG) < 2:
        return float("nan")
    size: int = paid_PGG.shape[1]
    return float(np.var(paid_PGG.mean((1, 2)), ddof=1)) - (own + partners + mixed / size) / size


def _priced(
    own: float, partners: float, mixed: float, size: int, agents: int, seconds_sampling: float, seconds_reward: float
) -> list[Row]:
    """Return every credit's variance, rewards a problem and price (variance x seconds a problem), cheapest first.

    A variance is G / (G - 1) times smaller than that of the credit less the mean of the others of its group. With two
    shifts neighbours share a partner, which that difference cancels in part; with more than two agents not always, and
    the most is listed."""
    shared = (size - 2) / (2 * (size - 1)) if agents == 2 else 0.5
    credits = {
        "team_return": (own + partners + mixed, size),
        "first_joint of resampled": (own + mixed, agents * (size - 1) + 1),
        "counterfactual": (own + mixed, size + agents * size * (size - 1)),
        "crossed, 2 shifts": (own + partners * shared + mixed / 2, 2 * size),
    }
    if size**agents <= MOST:
        credits["crossed"] = (own + mixed / size, size**agents)
    rows = []
    for name, (variance, calls) in credits.items():
        seconds = seconds_sampling + calls * seconds_reward
        rows.append({"credit": name, "variance": variance, "rewards": calls, "price": variance * seconds})
    return sorted(rows, key=lambda row: row["price"])


def _said_at_once(own: float, partners: float, mixed: float, credits: Sequence[Row]) -> list[str]:
    total = own + partners + mixed
    if total <= 0:
        return ["within a problem the pay does not vary: no credit helps; want other problems, or more sampling noise"]
    best = _recommended(credits)
    plain = next(row for row in credits if row["credit"] == "team_return")
    lines = [
        f"of the variance of an agent's credit {own / total:.0%} is its own, {partners / total:.0%} its partners', "
        f"{mixed / total:.0%} how they go together"
    ]
    if best is plain:
        return [*lines, f"{_HOW['team_return']}: no other credit is worth its rewards here"]
    shares = f"{best['variance'] / plain['variance']:.2f} of the variance of team_return"
    price = f"{best['price'] / plain['price']:.2f} of its variance x seconds"
    return [*lines, f"{_HOW[best['credit']]}: {shares}, {price}"]


def _recommended(credits: Sequence[Row]) -> Row:
    return next(row for row in credits if row["credit"] in _HOW)


def _said_of_baselines(credit: Row, own: float, partners: float, mixed: float, differ: float, size: int) -> list[str]:
    """Return a line on the recommended credit's variance against its group and against one number for the role."""
    met = {"crossed": size, "crossed, 2 shifts": 2}.get(credit["credit"], 1)
    group = credit["variance"] * size / (size - 1)
    role = own + (partners + mixed) / met + max(differ, 0.0)
    if not np.isfinite(differ) or own + partners + mixed <= 0:
        return []
    said = f"against the others of its group it varies {group:.3g}, against one number for the role {role:.3g}"
    moving = role < SAVES * group
    better = "baseline: moving, in place of marloo's loo" if moving else "baseline: loo (marloo's own)"
    return [f"problems differ by a variance of {max(differ, 0.0):.3g}; {said}; {better}"]


# Plays in which two roles act one after the other.


def _in_turn(scene: Scene, recipe: Recipe, problems: int) -> dict[str, Any]:
    own, luck, cost = _nested(replace(scene, play=observers(scene.members)))
    best = float(np.sqrt(max(luck, 0.0) / own)) if own > 0 else float("nan")
    rows: list[Row] = [{"role": next(iter(scene.cast)), "own": own, "partners": luck, "best observers": best}]
    try:
        read = premise(recipe.model_copy(update={"play": {"name": "chain"}}), problems, 2 * scene.members)
    except ValueError as error:  # a task may refuse an empty answer, for instance where it wants a move
        return {"rows": rows, **cost, "advice": [*_said_of_luck(own, luck, best), f"whether the second reads: {error}"]}
    rows.append({"role": list(scene.cast)[1], **{k: read[k] for k in _READ}})
    return {"rows": rows, **cost, "advice": [*_said_of_luck(own, luck, best), *_said_of_reading(read)]}


def _nested(scene: Scene) -> tuple[float, float, dict[str, float]]:
    """Return two variances of the sum r1 + r2 within a problem: that of the first role's answers, and that of the
    second's luck after hearing one (nested analysis of variance). Also the seconds, as ``_timed`` returns them."""
    size, count = scene.members, len(scene.problems)
    episodes, cost = _timed(scene)
    sums_PGM = np.array(
        [[sum(joint.rewards) for joint in episode.joints] for episode in episodes], dtype=np.float64
    ).reshape(count, size, size)
    luck = float(sums_PGM.var(2, ddof=1).mean())
    return float(sums_PGM.mean(2).var(1, ddof=1).mean()) - luck / size, luck, cost


def _said_of_luck(own: float, luck: float, best: float) -> list[str]:
    if own <= 0:
        return ["what the first one says makes no measurable difference to r1 + r2, however many observers hear it"]
    share = f"{luck / (own + luck):.0%}"
    return [f"of the variance of r1 + r2 {share} is the second one's luck; best number of observers {best:.2f}"]


def _said_of_reading(read: Row) -> list[str]:
    slope = f"slope of r2 on r1 {read['slope']:.2f} [{read['slope_low']:.2f}, {read['slope_high']:.2f}]"
    gain = f"gain of reading {read['gain']:+.3f} [{read['gain_low']:+.3f}, {read['gain_high']:+.3f}]"
    line = f"{slope} (wants {SLOPE}), {gain} (wants above {GAIN:g}), with 95 % intervals"
    found = reads(read)
    if found is None:
        return [
            line,
            "whether the second one reads is open: an interval has both sides of its limit; give more --problems",
        ]
    if found:
        theory = "by theory; not measured where observers read, see O7 of the study"
        return [line, f"the second one reads: play: chain; algorithm: {{name: cory, credit: to_go}}, {theory}"]
    return [
        line,
        "too little is gained by reading, and what the first is paid for it is noise; play: chain, one policy in both "
        "roles, members: 4, algorithm: hindsight; or one role with rloo at as many answers",
    ]
