"""Everything a report says besides a run's own curves and dialogues, in reading order."""

from __future__ import annotations

from collections.abc import Sequence

from coevolve.report import alarms, diagnostics, summary
from coevolve.report.runs import Run
from coevolve.report.section import Section


def findings(runs: Sequence[Run]) -> list[Section]:
    """What was reached, what went wrong, what differs, and what else was measured of these runs."""
    return [
        *summary.sections(runs),
        alarms.section(runs),
        *(section for run in runs for section in diagnostics.sections(run)),
    ]
