"""Evaluation on held-out problems: the team, and each policy alone on the bare problem, greedy and sampled.

The result is a list of flat rows, which a data frame or ``jq`` reads from ``eval.json`` directly:

    weights    "start" before any update, "trained" from the checkpoint
    setting    "team": the play with its cast; "alone": one policy in the first role, without partners
    role, policy, decoding ("greedy" or "sampled")
    turns, length, eos_rate, distinct_1, distinct_2, kl (where there is a reference)
    reward, reward_se: mean and standard error over problems, of each the mean over episodes of the mean over turns
    gain, gain_se: of trained rows, the reward less that of the start on the same problems (``gains``)

Where the task names components of its reward there is also a row with role "all": the reward at the end of the
interaction, tokens and seconds per problem and sample, and ``parts/<name>``: the mean over the problems that have it,
of each the mean over samples.

With several samples of a problem, sampled rows also have ``best@k/reward`` and ``best@k/parts/<name>``: the expected
best of k samples, k = 1, 2, 4, ... For a reward of 0 or 1, or a part such as ``solved``, that is pass@k.

Problems and random numbers are the same in all rows, so that rows can be compared problem by problem.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import comb
from statistics import fmean, stdev
from typing import Any, Protocol

from coevolve import noise
from coevolve.collate import collate, plain_rows
from coevolve.held_out import EVALUATED
from coevolve.interfaces import Task, TurnSource
from coevolve.measure import episode_parts, mean_reward, means, outcome, spoken
from coevolve.plays import chain
from coevolve.rollout import Stage, rollout
from coevolve.types import Batch, Episode, Play, PolicyName, Problem, Role, Sampling

Row = dict[str, Any]

SEED = 0
"""Default seed, so that two runs are compared on the same problems with the same random numbers."""


GREEDY, SAMPLED = DECODINGS = ("greedy", "sampled")

BY_PROBLEM = "by_problem"
"""Key of a row with its mean reward of every problem, by the problem's id; ``eval.json`` leaves it out."""


class Describes(Protocol):
    """A policy as evaluation needs it, besides its engine."""

    def describe(self, batch: Batch) -> Batch: ...


def evaluate(
    *,
    task: Task,
    play: Play,
    cast_at: Mapping[Role, PolicyName],
    policies: Mapping[PolicyName, Describes],
    engine: TurnSource,
    sampling: Sampling,
    problems: Sequence[Problem],
    seed: int = SEED,
    alone: Sequence[PolicyName] | None = None,
    samples: int = 1,
    decodings: Sequence[str] = DECODINGS,
    progress: Callable[[str, float], None] = lambda done, seconds: None,
) -> list[Row]:
    """Return one row per role of the team and one per policy alone, of each decoding; see the module.

    cast_at: role -> policy. policies: by name, for their KL. sampling: of a range of lengths the largest is used;
    greedy changes the temperature only. alone: the policies to evaluate alone (None: all); none where the task is not
    ``solo``. samples: episodes per problem in sampled rows; greedy rows have one. decodings: which of ``DECODINGS`` to
    play; the rows of one do not depend on whether the other is played. progress: called with what was played, and the
    seconds that it took with its KL. Raises ValueError as ``rollout`` does, for samples below 1 and unknown decodings.
    """
    if samples < 1:
        raise ValueError(f"{samples} samples of a problem asked for; want at least 1")
    if not decodings or set(decodings) - set(DECODINGS):
        raise ValueError(f"decodings are {list(decodings)}; want some of {', '.join(DECODINGS)}")
    longest = sampling.at_length(sampling.length_range[1])
    first = next(iter(cast_at))
    tried: Iterable[PolicyName] = policies if alone is None else alone
    if not getattr(task, "solo", True):
        tried = ()
    rows: list[Row] = []
    ways = {GREEDY: (dataclasses.replace(longest, temperature=0.0), 1), SAMPLED: (longest, samples)}
    for decoding, (chosen, members) in [(name, ways[name]) for name in DECODINGS if name in decodings]:
        for setting, how, cast in [("team", play, cast_at), *(("alone", chain(), {first: name}) for name in tried)]:
            stage = Stage(cast, task, engine, chosen, seed, "evaluate")
            start = time.perf_counter()
            episodes = rollout(how, problems, stage, members=members)
            seconds = time.perf_counter() - start
            for role, name, measured in (*_by_role(episodes, cast, policies), *_whole(episodes, cast, task, seconds)):
                rows.append({"setting": setting, "role": role, "policy": name, "decoding": decoding, **measured})
            progress(f"{team_name(cast)} {setting}, {decoding}", time.perf_counter() - start)  # with the KL
    return rows


def team_name(cast: Mapping[Role, PolicyName]) -> str:
    """Return the names of a team's policies, joined by "+"."""
    return "+".join(dict.fromkeys(cast.values()))


def _whole(
    episodes: Sequence[Episode], cast: Mapping[Role, PolicyName], task: Task, seconds: float
) -> Iterator[tuple[Role, PolicyName, Row]]:
    """Yield the row of the whole team (role "all"), if the task names components of its reward."""
    parts = episode_parts(episodes, task)
    if any(parts):
        tokens = sum(len(turn.action_ids) for episode in episodes for turn in episode.turns)
        paid = [outcome(episode) for episode in episodes]
        values = [{"reward": reward, **part} for reward, part in zip(paid, parts, strict=True)]
        where = [episode.problem.id for episode in episodes]
        yield (
            "all",
            team_name(cast),
            {
                "turns": sum(len(episode.turns) for episode in episodes),
                "tokens": tokens / len(episodes),
                "seconds": seconds / len(episodes),
                **_of_problems(where, values),
                **_over_problems(where, paid),
                **_best(where, values),
            },
        )


def _of_problems(where: Sequence[str], values: Sequence[Mapping[str, float]]) -> Row:
    """Return each name's mean over the problems that have it. where: the problem id of each element of ``values``."""
    drawn: dict[str, list[Mapping[str, float]]] = {}
    for problem, value in zip(where, values, strict=True):
        drawn.setdefault(problem, []).append(value)
    return means([means(some) for some in drawn.values()])


def _best(where: Sequence[str], values: Sequence[Mapping[str, float]]) -> Row:
    """Return ``best@k/<name>`` for k = 1, 2, 4, ..., the mean over problems, if these have several samples.

    where: the problem id of each element of ``values``.
    """
    drawn: dict[str, dict[str, list[float]]] = {}
    for problem, value in zip(where, values, strict=True):
        for name, number in value.items():
            drawn.setdefault(name, {}).setdefault(problem, []).append(number)
    samples = {name: min(map(len, by_problem.values())) for name, by_problem in drawn.items()}
    most = max(samples.values())
    powers = [1 << i for i in range(most.bit_length())] if most > 1 else []
    return {
        f"best@{k}/{name}": fmean(best_at(numbers, k) for numbers in by_problem.values())
        for k in powers
        for name, by_problem in drawn.items()
        if k <= samples[name]
    }


def best_at(values: Sequence[float], k: int) -> float:
    """Return the expected maximum of k of these n values drawn without replacement, an unbiased estimate of best of k.

    The i-th smallest is the largest of comb(i - 1, k - 1) of the comb(n, k) draws. For values of 0 and 1, c of them 1,
    it is pass@k = 1 - comb(n - c, k) / comb(n, k) (Chen et al. 2021, arXiv 2107.03374, equation 1). Raises ValueError
    unless 1 <= k <= n.
    """
    n = len(values)
    if not 1 <= k <= n:
        raise ValueError(f"the best of {k} of {n} samples; want 1 <= k <= {n}")
    # In fractions: with a thousand samples the number of draws exceeds the range of a float.
    largest = (comb(i - 1, k - 1) * Fraction(float(value)) for i, value in enumerate(sorted(values), 1))
    return float(sum(largest) / comb(n, k))


def _by_role(
    episodes: Sequence[Episode], cast: Mapping[Role, PolicyName], policies: Mapping[PolicyName, Describes]
) -> Iterator[tuple[Role, PolicyName, Row]]:
    """Yield (role, policy, row) for each role with turns."""
    kl: dict[int, float] = {}
    for name in dict.fromkeys(cast.values()):
        if name in policies:
            kl |= _kl(episodes, name, policies[name])
    for role, name in cast.items():
        turns = [turn for episode in episodes for turn in episode.turns if turn.role == role]
        if turns:
            row: Row = dict(spoken(turns))
            if "reward" in row:
                where, paid = _per_episode(episodes, role)
                row |= {**_over_problems(where, [one["reward"] for one in paid]), **_best(where, paid)}
            if all(id(turn) in kl for turn in turns):
                row["kl"] = fmean(kl[id(turn)] for turn in turns)
            yield role, name, row


def _per_episode(episodes: Sequence[Episode], role: Role) -> tuple[list[str], list[dict[str, float]]]:
    """Return problem ids and mean rewards of the episodes in which this role was scored."""
    scored = [e for e in episodes if any(t.role == role and t.reward is not None for t in e.turns)]
    paid = [mean_reward(turn for turn in e.turns if turn.role == role) for e in scored]
    return [e.problem.id for e in scored], [{"reward": mean} for mean in paid]


def _kl(episodes: Sequence[Episode], name: PolicyName, policy: Describes) -> dict[int, float]:
    """Return id(turn) -> KL to the reference in nats, for this policy's turns; empty without a reference."""
    turns = [turn for episode in episodes for turn in episode.turns if turn.policy == name]
    if not turns:
        return {}
    kl_BT = policy.describe(collate(plain_rows(episodes), name)).kl_BT
    return {} if kl_BT is None else dict(zip(map(id, turns), kl_BT.sum(1).tolist(), strict=True))


def _over_problems(where: Sequence[str], paid: Sequence[float]) -> Row:
    """Return the mean reward of every problem, their mean and its standard error: episodes of one problem are not
    independent, so problems are the unit. where: the problem id of each reward."""
    by_problem: dict[str, list[float]] = {}
    for problem, reward in zip(where, paid, strict=True):
        by_problem.setdefault(problem, []).append(reward)
    found = {problem: fmean(rewards) for problem, rewards in by_problem.items()}
    values = list(found.values())
    return {"reward": fmean(values), "reward_se": _standard_error(values), BY_PROBLEM: found}


def _standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of independent values, NaN for a single one."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def gains(start: Sequence[Row], trained: Sequence[Row]) -> list[Row]:
    """Return the trained rows with ``gain`` and ``gain_se``: the reward less that of the start's row of the same
    setting, role and decoding, as a mean over problems with its standard error.

    The difference is taken problem by problem, of those that both have, so the error leaves out how unlike problems
    are. Alone, a policy is compared with itself at the start or, if the start has rows of one policy only because all
    began alike, with that one; otherwise its row gets no gain.
    """
    alone = {row["policy"] for row in start if row["setting"] == "alone"}
    one_for_all = next(iter(alone)) if len(alone) == 1 else None

    def named(row: Row) -> tuple[str | None, ...]:
        who = "" if row["setting"] == "team" else row["policy"] if row["policy"] in alone else one_for_all
        return row["setting"], row["role"], row["decoding"], who

    before = {named(row): row.get(BY_PROBLEM, {}) for row in start}
    found = []
    for row in trained:
        then, now = before.get(named(row), {}), row.get(BY_PROBLEM, {})
        differences = [value - then[problem] for problem, value in now.items() if problem in then]
        gain = {"gain": fmean(differences), "gain_se": _standard_error(differences)} if differences else {}
        found.append({**row, **gain})
    return found


def choose(task: Task, problems: int | None) -> list[Problem]:
    """Return this many held-out problems (None: EVALUATED, or all if there are fewer), always the same ones."""
    available = len(task.test)
    if not available:
        raise ValueError(f"the task {type(task).__name__} has no held-out problems, its test is empty")
    wanted = min(EVALUATED, available) if problems is None else problems
    if not 1 <= wanted <= available:
        raise ValueError(f"{wanted} problems asked for; {type(task).__name__} has {available} held out")
    return [task.test[position] for position in noise.permutation(available, SEED, "evaluate")[:wanted]]
