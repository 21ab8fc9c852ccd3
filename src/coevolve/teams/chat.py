"""A team in a terminal: the user enters a problem, and the roles answer it in their play."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from coevolve.console import console, printable
from coevolve.teams.team import Team
from coevolve.types import Episode, Turn

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def chat(folder: str | Path, *, greedy: bool = False, seed: int = 0, trust_code: bool = False) -> None:
    """Read problems, a line for each column, and print every turn, until the input ends.

    From a pipe, each line is a column's value, and the output is plain. The n-th problem, from 0, is sampled with
    ``seed + n``. A play that fails is reported, and the next problem is read. Raises ValueError as ``Team.load`` does,
    and for a task without ``asks``.
    """
    team = Team.load(folder, trust_code=trust_code)
    if team.asks is None:
        raise ValueError(
            f'the task {team.task.name} does not say what it asks for; give its class asks = ("column", ...) in the '
            "team's code, or use Team.load(...).play(column=...)"
        )
    out = console(highlight=False, soft_wrap=True)
    terminal = sys.stdin is not None and sys.stdin.isatty()
    played = 0
    while (columns := _problem(team.asks, terminal)) is not None:
        if team.asks and not any(columns.values()):
            continue
        try:
            episode = team.play(columns, seed=seed + played, temperature=0.0 if greedy else None)
        except ValueError as error:
            out.print(Text(f"error: {error}", "red"))
        else:
            _show(episode, list(team.roles), out)
        played += 1


def _problem(asks: Sequence[str], terminal: bool) -> dict[str, str] | None:
    """Read a line for each column; None at the end of the input. For a task without columns, wait for a line. Raises
    ValueError if piped input ends within a problem. terminal: whether to print the column's name first."""
    if sys.stdin is None:  # standard input is closed
        return None
    given = dict[str, str]()
    try:
        for name in asks or ("go on",):
            given[name] = input(printable(f"{name}> ") if terminal else "")
    except EOFError:
        if any(given.values()) and not terminal:
            first, missing = next(iter(given.values())), asks[len(given)]
            raise ValueError(f"the input ends before {missing!r} of the problem that begins with {first!r}") from None
        return None
    return given if asks else {}


def _show(episode: Episode, roles: Sequence[str], out: Console) -> None:
    """Print each turn: the last note that it was shown, then ``role (policy, heard other roles): text``."""
    for turn in episode.turns:
        colour = _COLOURS[roles.index(turn.role) % len(_COLOURS)]
        others = dict.fromkeys(part.role for part in turn.heard if isinstance(part, Turn) and part.role != turn.role)
        notes = [part for part in turn.heard if isinstance(part, str) and part]
        if notes:
            out.print(Text(f"[{' '.join(notes[-1].split())}]", "dim"))
        heard = f", heard {' and '.join(others)}" if others else ""
        name = (f"{turn.role} ({turn.policy}{heard}):", f"bold {colour}")
        cut = "" if turn.finished else " [cut]"
        out.print(Text.assemble(name, f" {turn.text.strip()}", (cut, "dim")))
    out.print()
