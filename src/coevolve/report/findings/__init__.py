"""The findings of a report: all its sections besides a run's curves and dialogues, in reading order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from coevolve.report.findings import alarms, alike, compare, diagnostics, frontier, held_out, matched, summary
from coevolve.report.findings.arms import arms, task
from coevolve.report.findings.measures import measures
from coevolve.report.runs import Run
from coevolve.report.section import Section
from coevolve.report.wording import and_list


def findings(runs: Sequence[Run]) -> list[Section]:
    """Return the sections on these runs: results, alarms, comparisons, evaluations and diagnostics."""
    found = [*summary.sections(runs), alarms.section(runs), *_comparison(runs)]
    for run in runs:
        found += _of(run, held_out.sections(run), runs)
    diagnosed = [run for run in runs if run.written(diagnostics.FILE) is not None]
    for run in diagnosed or runs[:1]:  # if no run has diagnostics, the first one's section says how to make them
        found += _of(run, diagnostics.sections(run), runs)
    return list(_numbered(found))


def _of(run: Run, found: Iterable[Section], runs: Sequence[Run]) -> list[Section]:
    """Return the sections of one run, with the run's name in their titles if there are several runs."""
    return [replace(one, title=f"{one.title} of {run.name}") if len(runs) > 1 else one for one in found]


def _comparison(runs: Sequence[Run]) -> list[Section]:
    """Return the sections that compare the groups; for a single run, its reward against its KL."""
    groups = arms(runs)
    if len(tasks := sorted({task(group) for group in groups})) > 1:
        sentence = (
            f"Not compared: these runs learn {and_list(tasks)}, whose rewards are on different scales. Give one report "
            "the runs of one task."
        )
        return [Section("groups", "Comparison", sentence)]
    if (reward := alike.compared(groups)) is None:
        return [Section("groups", "Comparison", alike.REFUSED)]
    if len(runs) == 1:
        found = matched.match(matched.KL, groups)
        return [matched.section(found)] if found.rewards else []
    equal = matched.costs(groups, reward)
    compared = measures(groups, equal, reward)
    return [
        compare.of_groups(groups, compared, reward),
        *([compare.differences(groups, compared)] if len(groups) > 1 else []),
        *(matched.section(one) for one in equal),
        *frontier.sections(groups, reward),
    ]


def _numbered(sections: Iterable[Section]) -> Iterable[Section]:
    """Yield the sections with unique ids: repeated ones get a number."""
    times: dict[str, int] = {}
    for section in sections:
        times[section.id] = number = times.get(section.id, 0) + 1
        yield section if number == 1 else replace(section, id=f"{section.id}-{number}")
