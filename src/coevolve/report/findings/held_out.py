"""The results of ``coevolve eval`` on held-out problems: the team and each policy alone, at the start and trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coevolve.report.evaluation import NAMES
from coevolve.report.runs import Run
from coevolve.report.section import Cell, Plot, Section, Series
from coevolve.report.wording import plus_minus

Row = Mapping[str, Any]

_NUMBERS = {
    "reward": "reward", "reward_se": "standard error", "gain": "gain", "gain_se": "standard error of the gain",
    "kl": "KL (nats/turn)", "length": "length (tokens)",
    "eos_rate": "ended by itself", "distinct_2": "distinct 2-grams",
}  # fmt: skip
_MORE = ("parts/", "best@")


def sections(run: Run) -> list[Section]:
    """Return a section on the run's ``eval.json``, and one on components and best of k if it has them; none without the
    file."""
    found = run.written("eval.json")
    if found is None:
        return []
    rows: list[Row] = found["rows"]
    sentence = (
        f"Step {found['checkpoint']} on {found['problems']} held-out problems, the same in every row: "
        f"{'; '.join(_moved(rows)) or 'no role is scored'}. The standard error is over problems; it says nothing about "
        "other seeds."
    )
    keys = [key for key in _NUMBERS if not key.startswith("gain") or any(key in row for row in rows)]
    table = [[*(str(row[key]) for key in NAMES), *(row.get(key) for key in keys)] for row in rows]
    columns = (*NAMES, *(_NUMBERS[key] for key in keys))
    return [Section("evaluation", "Evaluation", sentence, columns, table, _plot(rows)), *_components(rows)]


def _plot(rows: Sequence[Row]) -> Plot | None:
    """Plot the sampled reward of each role and setting with its standard error; a series for each kind of weights."""
    scored = [row for row in rows if row["decoding"] == "sampled" and row.get("reward") is not None]
    series = []
    for weights in dict.fromkeys(row["weights"] for row in scored):
        those = [row for row in scored if row["weights"] == weights]
        names = [f"{row['setting']}, {row['role'] if row['setting'] == 'team' else row['policy']}" for row in those]
        rewards, errors = [row["reward"] for row in those], [row.get("reward_se") or 0.0 for row in those]
        low = [reward - error for reward, error in zip(rewards, errors, strict=True)]
        high = [reward + error for reward, error in zip(rewards, errors, strict=True)]
        series.append(Series(weights, names, rewards, low, high, points=True))
    return Plot("", "reward, one standard error", series) if series else None


def _moved(rows: Sequence[Row]) -> list[str]:
    """Return a text for each role of the team: its sampled reward, trained and at the start."""
    sampled = [row for row in rows if row["decoding"] == "sampled" and row.get("reward") is not None]
    start = {row["role"]: row for row in sampled if (row["weights"], row["setting"]) == ("start", "team")}
    return [
        f"{role} earns {_paid(row)}, {_paid(start[role])} at the start{_gained(row)}"
        for row in sampled
        if (row["weights"], row["setting"]) == ("trained", "team") and (role := row["role"]) in start
    ]


def _gained(row: Row) -> str:
    gain = row.get("gain")
    return "" if gain is None else f" (problem by problem it gained {plus_minus(gain, row.get('gain_se'))})"


def _paid(row: Row) -> str:
    return plus_minus(row["reward"], row.get("reward_se"))


def _components(rows: Sequence[Row]) -> list[Section]:
    """Return a section with the components of the reward and the best of k samples, with a column per row of the
    evaluation that has any."""
    more = [row for row in rows if any(key.startswith(_MORE) for key in row)]
    if not more:
        return []
    keys = dict.fromkeys(key for row in more for key in row if key.startswith(_MORE))
    names = [f"{row['weights']} {row['setting']} {row['role']} ({row['policy']}), {row['decoding']}" for row in more]
    table: list[list[Cell]] = [[key.replace("parts/", ""), *(row.get(key) for row in more)] for key in keys]
    sentence = "Means over problems. best@k is the expected best of k samples; for what is 0 or 1, that is pass@k."
    return [Section("components", "Components on held-out problems", sentence, ("measure", *names), table)]
