"""The tables of docs/oracle.md and docs/oracle-tables.md: ``python tests/oracle/table.py`` prints them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # as a script it is not pytest that finds what tests share

import objectives
import problems
import test_bare_prompt
import test_critics
import test_preferences
import torch
from cases import PROTOCOLS, Protocol
from compare import CLOSE, Found, Row, Spread, plain_of, rows, spread
from credits import BASELINES, found_of, judged
from exact import ROLES
from sample import Sample, batch_of

from coevolve.algorithms import madpo

HEAD = ("algorithm", "expected", "team pay", "own pay", "variance, responses", "variance, rewards", "cosine")
RESPONSES = 64
"""Of which the cosine is."""


HERE = (
    "chain",
    "rounds(1), harmony",
    "rounds(1), chicken",
    "rounds(1), longer",
    "rounds(2)",
    "discussion(1)",
    "tree(2, 2), aligned",
)
"""The plays of the summary."""


def main() -> None:
    """Print the two tables of docs/oracle.md, then those of docs/oracle-tables.md."""
    print("\n".join([*summary(), *everything()]))


def everything() -> list[str]:
    """The sections of docs/oracle-tables.md, line by line."""
    parts = (lines, credit_lines, objective_lines, problem_lines, critic_lines, pair_lines, prompt_lines)
    return [line for part in parts for line in part()]


def summary() -> list[str]:
    """Two tables over some plays: credits by leave-one-out, and baselines of the team's return."""
    known = {name: judged(name)[0] for name in HERE}
    plays = {one.name: one for one in PROTOCOLS}
    credits = list(dict.fromkeys(label for found in known.values() for label in found))
    found = [*_head("In short: credits", "credit", HERE)]
    for label in credits:
        cells = [_short(plays[n], known[n][label]["loo"]) if label in known[n] else "refused" for n in HERE]
        found.append(f"| {label} | {' | '.join(cells)} |")
    found += ["", *_head("In short: baselines", "baseline", HERE)]
    for baseline in BASELINES:
        cells = [_short(plays[n], known[n]["team_return"][baseline]) for n in HERE]
        found.append(f"| {baseline} | {' | '.join(cells)} |")
    return [*found, ""]


def _head(title: str, first: str, columns: Sequence[str]) -> list[str]:
    return [f"### {title}", "", f"| {first} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]


def _short(protocol: Protocol, one: Spread) -> str:
    """Angle of the mean, and the variance at equal responses and at equal rewards."""
    if abs(one.size) < CLOSE:
        return "0"
    return f"{one.angle:.0f}° · {' · '.join(_noise(plain_of(protocol), one)[:2])}"


def credit_lines() -> list[str]:
    """Credits by baselines, a section for each play."""
    found: list[str] = []
    for protocol in PROTOCOLS:
        known, refused = judged(protocol.name)
        found += ["", *_head(f"Credits: {protocol.name}", "credit", BASELINES)]
        for label, by_baseline in known.items():
            cells = (_spread(plain_of(protocol), by_baseline[one]) for one in BASELINES)
            found.append(f"| {label} | {' | '.join(cells)} |")
        found += ["", f"Refused: {'; '.join(refused) or 'none'}."]
    return found


def objective_lines() -> list[str]:
    """Whose column is whose, and all of them by credit where responses have one token or two."""
    found = ["", *_head("Objectives: which column", "algorithm", ["column", "less one number more"])]
    for name, column in objectives.COLUMNS.items():
        found.append(f"| {name} | {column.baseline} | {'whitened' if column.whitened else ''} |")
    judged_longer = objectives.longer()
    found += ["", *_head(f"Objectives: {objectives.LONGER}", "algorithm", list(judged_longer))]
    [protocol] = (one for one in PROTOCOLS if one.name == objectives.LONGER)
    for name in objectives.COLUMNS:
        cells = [_short(protocol, one[name]) if name in one else "refused" for one in judged_longer.values()]
        found.append(f"| {name} | {' | '.join(cells)} |")
    return found


def problem_lines() -> list[str]:
    """Baselines across three problems, which pay alike or apart."""
    columns = [(credit, levels) for credit in problems.CREDITS for levels in problems.LEVELS]
    found = ["", *_head(f"Three problems: {problems.PLAY}", "baseline", [", ".join(one) for one in columns])]
    for baseline in problems.BASELINES:
        cells = [
            _spread(problems.judged("team_return", "mean", levels), problems.judged(credit, baseline, levels))
            for credit, levels in columns
        ]
        found.append(f"| {baseline} | {' | '.join(cells)} |")
    return found


def critic_lines() -> list[str]:
    """Actors with a critic, by what it has read, what it says of that, whose return it is, and lambda."""
    sample, lams = test_critics.alone(), (0.0, 0.5, 1.0)
    found = ["", *_head("Critics: rounds(2)", "algorithm", [f"λ = {lam:g}" for lam in lams])]
    for what in itertools.product(test_critics.RULES, "vq", test_critics.CREDITS):
        for known, values in (("right", test_critics.values), ("wrong", test_critics.wrong)):
            cells = [_spread(plain_of(test_critics.TWICE), _critic(sample, what, values(sample, *what), lam))
                     for lam in lams]  # fmt: skip
            name, value, credit = what
            found.append(f"| {name}, {value}, {credit}, {known} | {' | '.join(cells)} |")
    return found


def _critic(sample: Sample, what: tuple[str, str, str], worth: Mapping[tuple[str, str], float], lam: float) -> Spread:
    """what: algorithm, value and credit. worth: what the critic says."""
    name, value, credit = what
    rule = test_critics.RULES[name](whiten=False, lam=lam, value=value, credit=credit)
    agents = {role: found_of(sample, test_critics.groups(sample, rule, worth, role), role) for role in ROLES}
    batch_of(sample, rule, ROLES[0])  # what its credit costs
    return spread(sample, agents, credit)


def pair_lines() -> list[str]:
    """What a DPO step on pairs of two members' joints is beside the gradient of the expected pay."""
    sample, margins = test_preferences.pairs(), ("joint", "own")
    found = ["", *_head(f"Preferences: {sample.protocol.name}", "algorithm", [f"margin: {one}" for one in margins])]
    cells = []
    for margin in margins:
        rule, agents = madpo(beta=test_preferences.BETA, margin=margin), {}
        for role in ROLES:
            ones = torch.eye(sample.groups, dtype=torch.float64)
            steps = [test_preferences.step(sample, rule, role, one_N) for one_N in ones]
            agents[role] = found_of(sample, -torch.stack(steps), role)
        cells.append(_spread(plain_of(test_preferences.PLAY), spread(sample, agents, "team_return")))
    return [*found, f"| madpo, beta: {test_preferences.BETA} | {' | '.join(cells)} |"]


def prompt_lines() -> list[str]:
    """Hindsight's rows behind the bare prompt, by the cap of their weights."""
    return ["", "### Hindsight: chain", "", *test_bare_prompt.table()]


def _spread(plain: Spread, one: Spread) -> str:
    """Length and angle of the mean, variance by responses and by rewards beside MAGRPO's, and the cosine."""
    if abs(one.size) < CLOSE:
        return "0"
    return f"{one.size:.2f}, {one.angle:.0f}° · {' · '.join(_noise(plain, one))}"


def _noise(plain: Spread, one: Spread) -> list[str]:
    beside = [f"{x:.2f}" if x < 1e3 else "–" for x in one.beside(plain)]
    return [*beside, f"{one.cosine_of(RESPONSES):.2f}"]


def lines() -> list[str]:
    """The sections of algorithms, line by line."""
    found: list[str] = []
    for row in rows():
        title = f"### {row.protocol.name}"
        if title not in found:
            found += ["", title, "", f"| {' | '.join(HEAD)} |", "|---|---|---:|---:|---:|---:|---:|"]
        found.append(f"| {' | '.join(cells(row))} |")
    return found[1:]


def cells(row: Row) -> list[str]:
    """Name, theory, bias and angle by credit, and how the team's varies."""
    pays = [_cell(row, list(row.found[credit].values())) if credit in row.found else "" for credit in ("team", "own")]
    return [row.entry.name, row.entry.says, *pays, *_noise(plain_of(row.protocol), row.spread)]


def _cell(row: Row, agents: list[Found]) -> str:
    """Of the agent that has more of it. The length of a ``free`` gradient depends on the batch, so only its angle."""
    worse = max(agents, key=lambda one: one.angle if row.entry.free else one.bias)
    angle = f"{worse.angle:.0f}°"
    if row.entry.free:
        return angle
    bias = f"{100 * worse.bias:.0f}"
    return f"{bias} %, {angle}" if row.protocol.turns else f"{bias} ± {100 * worse.noise:.0f} %, {angle}"


if __name__ == "__main__":
    main()
