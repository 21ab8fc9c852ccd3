"""The conclusions from the rows of a diagnosis, one or two sentences per kind of row.

A difference counts as measured if its 95 % interval is on one side of 0, so of twenty true differences of 0 about one
is called measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coevolve.report.findings.statistics import FEWEST
from coevolve.report.wording import and_list, number, plus_minus

Row = Mapping[str, Any]

FEW = 20
"""Fewest problems with which a bootstrap interval is wide enough."""

LAZY = 0.5
"""Limit for lazy agents, as a part of an equal share of all influence: with less, an agent's choices hardly move the
return."""

SLOPE, GAIN = 0.3, 0.0
"""The premise of CORY holds with at least this slope of the second role's reward on the first's, and more than this
gain of reading."""


def holds(premise: Row) -> bool:
    """Return whether the start policies read a reference and verify it; False where nothing could be measured."""
    slope, gain = premise["slope"], premise["gain"]
    return slope is not None and gain is not None and bool(slope >= SLOPE and gain > GAIN)


def reads(premise: Row) -> bool | None:
    """Return what the intervals of slope and gain say: whether the second role reads, None if that is open. Unlike
    ``holds``, by which the study's claims were decided, this does not judge by the side of 0 on which noise fell."""
    slope, gain = (_side(premise, name, limit) for name, limit in (("slope", SLOPE), ("gain", GAIN)))
    if slope is False or gain is False:
        return False
    return True if slope and gain else None


def _side(premise: Row, name: str, limit: float) -> bool | None:
    """Return whether a number is above its limit, None if its interval has the limit within; without a slope, as of a
    first role whose answers are all worth the same, nothing is read."""
    value, low, high = (premise[key] for key in (name, f"{name}_low", f"{name}_high"))
    if value is None or math.isnan(value):
        return False
    if low is None or high is None or math.isnan(low + high):
        return None
    return True if low > limit else False if high <= limit else None


def team(rows: Sequence[Row]) -> str:
    """Return the conclusion from the returns of the trained team and of its start."""
    trained, start = rows
    verdict = "raised it" if _less(start) else "lowered it" if _more(start) else "changed nothing measurable"
    earned = plus_minus(trained["reward"], trained["se"])
    said = f"The return is {earned} (standard error). The untrained start: {_beside(start)}; training {verdict}."
    return said + _few(trained.get("n", FEW))


def _few(problems: int) -> str:
    """Return a caution if the intervals are of few problems, or not there."""
    if problems < FEWEST:
        return f" Fewer than {FEWEST} problems have no intervals, so nothing here counts as measured."
    return f" Intervals of fewer than {FEW} problems, as all of these are, are too narrow." if problems < FEW else ""


def alone(rows: Sequence[Row]) -> str:
    """Return the conclusion from each policy playing alone."""
    if all(map(_less, rows)):
        verdict = "the team earns more than any of its policies alone"
    elif better := [row["policy"] for row in rows if _more(row)]:
        verdict = f"{and_list(better)} would do better without the team"
    elif worse := [row["policy"] for row in rows if _less(row)]:
        verdict = f"{and_list(worse)} earns more in the team, of the others it cannot be told"
    else:
        verdict = "no policy is measurably worse off without the team"
    return _concluded("Alone on the bare prompt, compared with the mean of the team's agents,", rows, "policy", verdict)


def swap(rows: Sequence[Row]) -> str:
    """Return the conclusion from the same policies in other roles."""
    better = [row["setting"] for row in rows if _more(row)]
    if any(map(_less, rows)):
        verdict = "the policies have specialised in their roles"
        if better:
            verdict += f", and yet {and_list(better)} would do better than the cast that was trained last"
    elif better:
        verdict = "another cast would do better than the one that was trained last"
    else:
        verdict = "each policy plays the other roles as well, as far as can be told"
    return _concluded("With the policies in other roles,", rows, "setting", verdict)


def _concluded(begin: str, rows: Sequence[Row], key: str, verdict: str) -> str:
    """Return the rows in words, with the verdict unless one of them could not be played."""
    return f"{begin} {_list(rows, key)}{'' if any('reason' in row for row in rows) else f'; {verdict}'}."


_INSTEAD = {
    "blank": "nothing instead of the others' turns",
    "shuffled": "what was said in another episode",
    "own": "its own turn instead of the others'",
    "notes blank": "no notes",
}


def messages(rows: Sequence[Row]) -> str:
    """Return the conclusion from roles that hear something else than what was said."""
    found = []
    for role in dict.fromkeys(row["role"] for row in rows):
        of = {row["setting"]: row for row in rows if row["role"] == role}
        changes = "; ".join(f"{_INSTEAD[setting]}: {_beside(row)}" for setting, row in of.items())
        found.append(f"If {role} hears {changes}.")
        if not any("reason" in row for row in of.values()):
            found += _heeds(of)
    return " ".join(found)


def _heeds(of: Mapping[str, Row]) -> Iterator[str]:
    """Yield the conclusions for one role, from its rows by setting."""
    if "shuffled" in of:
        if _less(of["shuffled"]):
            yield "What the others say on the problem matters to it."
            if not _less(of["own"]):
                yield "An answer of its own would serve as well, as far as can be told."
            if _more(of["blank"]):
                yield "It would do better yet without hearing them."
        elif _less(of["blank"]):
            yield "It wants to hear something, and anything will do."
        elif _more(of["shuffled"]) or _more(of["blank"]):
            yield "It would do better without hearing them."
        else:
            yield "It makes no measurable use of what it hears."
    if notes := of.get("notes blank"):
        if _more(notes):
            yield "It would do better without the notes."
        else:
            yield "It uses the notes." if _less(notes) else "It makes no measurable use of the notes."


def influence(rows: Sequence[Row]) -> str:
    """Return the conclusion on which agents' choices, and which agents' speaking at all, the return depends on."""
    redrawn = {row["role"]: row for row in rows if row["setting"] == "redrawn"}
    silent = {row["role"]: row for row in rows if row["setting"] == "silent"}
    if fails := [row for row in redrawn.values() if "reason" in row]:
        return (
            f"Whose choices move the return cannot be told: with the turns of {fails[0]['role']} drawn anew it "
            f"{_beside(fails[0])}. The team with one agent's turns empty: {_list(list(silent.values()), 'role')}."
        )
    if any(row["share_high"] is None for row in redrawn.values()):
        varies = "Within a problem the return varies too little, whatever the agents choose,"
        if any(row.get("n", FEWEST) < FEWEST for row in redrawn.values()):
            varies = f"{FEWEST} problems are the fewest"
        empty = _list(list(silent.values()), "role")
        return f"{varies} to tell whose choices move it. The team with one agent's turns empty: {empty}."
    return " ".join(_moves(redrawn[role], silent[role], len(redrawn)) for role in redrawn)


def _moves(redrawn: Row, silent: Row, agents: int) -> str:
    """Return how much one agent moves the return, and whether it is lazy."""
    low, high, little = redrawn["share_low"], redrawn["share_high"], LAZY / agents
    if low >= little:
        verdict = "what it says moves the return"
    elif _less(silent):
        verdict = "it counts that it speaks, more than what it says"
    elif high < little and "reason" not in silent:
        verdict = "it hardly moves the return (lazy?)"
    else:
        verdict = "whether it is lazy is open"
    return (
        f"{redrawn['role']} ({redrawn['policy']}) has {_percent(redrawn['share'])} of the influence (95 % interval "
        f"{_percent(low)} to {_percent(high)}, an equal share is {_percent(1 / agents)}); the team with its turns "
        f"empty: {_beside(silent)}; {verdict}."
    )


def cross_play(rows: Sequence[Row]) -> str:
    """Return the conclusion from agents that play with partners they were not trained with."""
    mean = rows[-1]
    if mean["setting"] != "mean":
        return f"No mixed team could be compared: {_list([row for row in rows if 'reason' in row][:1], 'role')}."
    if refused := [row for row in rows if "reason" in row]:
        return (
            f"Mixed teams that could be played, beside both teams' own play: {_beside(mean)}; {_list(refused, 'role')}."
        )
    if _less(mean):
        verdict = "the agents rely on those they were trained with"
    elif _more(mean):
        verdict = "the agents play better with strangers than with those they were trained with"
    else:
        verdict = "the agents play as well with strangers as with those they were trained with, as far as can be told"
    return f"Mixed teams, compared with the mean of both teams' own play: {_beside(mean)}; {verdict}."


def _list(rows: Sequence[Row], key: str) -> str:
    return "; ".join(f"{row[key]}: {_beside(row)}" for row in rows)


def _beside(row: Row) -> str:
    """Return a difference in words: how much less or more, and its interval."""
    if "reason" in row:
        return f"cannot be played ({row['reason']})"
    difference, low, high = row["difference"], row["low"], row["high"]
    if low is None:
        return f"a difference of {number(difference)}, without an interval"
    if _less(row):
        return f"{number(-difference)} less ({number(-high)} to {number(-low)})"
    if _more(row):
        return f"{number(difference)} more ({number(low)} to {number(high)})"
    return f"no measurable difference ({number(low)} to {number(high)})"


def _less(row: Row) -> bool:
    return row.get("high") is not None and row["high"] < 0


def _more(row: Row) -> bool:
    return row.get("low") is not None and row["low"] > 0


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
