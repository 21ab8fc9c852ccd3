"""The table of docs/oracle.md: ``python tests/oracle/table.py`` prints it."""

from __future__ import annotations

from compare import Found, Row, rows

HEAD = ("algorithm", "expected", "team pay", "own pay")


def main() -> None:
    """Print a section per protocol."""
    print("\n".join(lines()))


def lines() -> list[str]:
    """The sections, line by line."""
    found: list[str] = []
    for row in rows():
        title = f"### {row.protocol.name}"
        if title not in found:
            found += ["", title, "", f"| {' | '.join(HEAD)} |", "|---|---|---:|---:|"]
        found.append(f"| {' | '.join(cells(row))} |")
    return found[1:]


def cells(row: Row) -> list[str]:
    """Name, theory, and bias and angle by credit."""
    pays = [_cell(row, list(row.found[credit].values())) if credit in row.found else "" for credit in ("team", "own")]
    return [row.entry.name, row.entry.says, *pays]


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
