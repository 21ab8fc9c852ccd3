"""What the rows of a diagnosis allow to conclude, one sentence or two per kind.

A difference counts as measured if its 95 % interval is on one side of 0, so of twenty differences that are none about
one is called measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

LAZY = 0.5
"""An agent with a smaller part of its equal share of all influence hardly moves the return by what it chooses."""


def team(rows: Sequence[Row]) -> str:
    """Trained and start."""
    trained, start = rows
    verdict = "training raised it" if _less(start) else "training lowered it" if _more(start) else "learnt nothing"
    spread = "" if trained["se"] is None else f" ± {trained['se']:.2g} (standard error)"
    return f"The return is {trained['reward']:.3g}{spread}. The untrained start: {_beside(start)}; {verdict}."


def alone(rows: Sequence[Row]) -> str:
    if all(map(_less, rows)):
        verdict = "the team earns more than any of its policies alone"
    elif better := [row["policy"] for row in rows if _more(row)]:
        verdict = f"{' and '.join(better)} would do better without the team"
    else:
        verdict = "not every policy is measurably worse off without the team"
    return f"Alone on the bare prompt, beside the team, {_list(rows, 'policy')}; {verdict}."


def swap(rows: Sequence[Row]) -> str:
    if any(map(_less, rows)):
        verdict = "the policies have specialised in their roles"
    elif any(map(_more, rows)):
        verdict = "another cast would do better than the one that was trained last"
    else:
        verdict = "each policy plays the other roles as well, as far as can be told"
    return f"With the policies in other roles, {_list(rows, 'setting')}; {verdict}."


_INSTEAD = {
    "blank": "nothing instead of the others' turns",
    "shuffled": "what was said on another problem",
    "own": "its own turn instead of the others'",
    "notes blank": "no notes",
}


def messages(rows: Sequence[Row]) -> str:
    found = []
    for role in dict.fromkeys(row["role"] for row in rows):
        of = {row["setting"]: row for row in rows if row["role"] == role}
        changes = "; ".join(f"{_INSTEAD[setting]}: {_beside(row)}" for setting, row in of.items())
        found.append(f"If {role} hears {changes}. {_heeds(of)}")
    return " ".join(found)


def _heeds(of: Mapping[str, Row]) -> str:
    """What follows from the settings of one listener."""
    found = []
    if shuffled := of.get("shuffled"):
        if _less(shuffled):
            found.append("What the others say on the problem matters to it.")
            if not _less(of["own"]):
                found.append("An answer of its own serves it as well, though.")
        elif _less(of["blank"]):
            found.append("It wants to hear something, and anything will do.")
        else:
            found.append("There is no measurable use of what it hears.")
    if notes := of.get("notes blank"):
        found.append("It uses the notes." if _less(notes) else "There is no measurable use of the notes.")
    return " ".join(found)


def influence(rows: Sequence[Row]) -> str:
    redrawn = {row["role"]: row for row in rows if row["setting"] == "redrawn"}
    silent = {row["role"]: row for row in rows if row["setting"] == "silent"}
    if any(row["share"] is None for row in redrawn.values()):
        return "The return does not vary with what the agents choose on one problem, so nobody's influence can be told."
    return " ".join(_moves(redrawn[role], silent[role], len(redrawn)) for role in redrawn)


def _moves(redrawn: Row, silent: Row, agents: int) -> str:
    """How much one agent moves the return, and whether it is lazy."""
    low, high, little = redrawn["share_low"], redrawn["share_high"], LAZY / agents
    between = "without an interval" if low is None else f"95 % interval {_percent(low)} to {_percent(high)}"
    if low is not None and low >= little:
        verdict = "what it says moves the return"
    elif _less(silent):
        verdict = "it counts that it speaks, more than what it says"
    elif high is not None and high < little:
        verdict = "it hardly moves the return (lazy?)"
    else:
        verdict = "whether it is lazy is open"
    return (
        f"{redrawn['role']} ({redrawn['policy']}) has {_percent(redrawn['share'])} of the influence ({between}; an "
        f"equal share is {_percent(1 / agents)}); the team with its turns empty: {_beside(silent)}; {verdict}."
    )


def cross_play(rows: Sequence[Row]) -> str:
    [mean] = [row for row in rows if row["setting"] == "mean"]
    if _less(mean):
        verdict = "the agents rely on those they were trained with"
    else:
        verdict = "the agents play as well with strangers as with those they were trained with, as far as can be told"
    return f"Mixed teams, beside the mean of both teams' own play: {_beside(mean)}; {verdict}."


def _list(rows: Sequence[Row], key: str) -> str:
    return "; ".join(f"{row[key]}: {_beside(row)}" for row in rows)


def _beside(row: Row) -> str:
    """A difference in words: how much less or more, and its interval."""
    if "reason" in row:
        return f"cannot be played ({row['reason']})"
    difference, low, high = row["difference"], row["low"], row["high"]
    if low is None:
        return f"{difference:+.2f}, without an interval"
    if _less(row):
        return f"{-difference:.2f} less ({-high:.2f} to {-low:.2f})"
    if _more(row):
        return f"{difference:.2f} more ({low:.2f} to {high:.2f})"
    return f"no measurable difference ({low:+.2f} to {high:+.2f})"


def _less(row: Row) -> bool:
    return row.get("high") is not None and row["high"] < 0


def _more(row: Row) -> bool:
    return row.get("low") is not None and row["low"] > 0


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
