"""The page of the study: a pure function of the claims and the kept results. No result in it is typed by hand, but for
those of earlier runs and of single checks that the claims' caveats tell of.

First what follows for a user; then a row for each claim with its verdict and the reason, what stands against the
papers' own rules, open questions, pictures, premises, and at the end the details of each claim and run. ``layout``
turns it into files.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from coevolve.recipe.build import to_pretrain
from coevolve.report.findings.verdicts import GAIN, SLOPE, holds
from coevolve.report.section import Section
from coevolve.report.wording import and_list, many, number, within
from coevolve.study import layout
from coevolve.study.claims import ALPHA, Beyond, Book, Comparison, Study
from coevolve.study.figures import drawn
from coevolve.study.layout import BREAK, Chapter, Picture
from coevolve.study.measures import MEANINGS
from coevolve.study.results import Everywhere, Result, Results
from coevolve.study.run import in_words, seconds_of
from coevolve.study.svg import svg
from coevolve.study.verdicts import Found, Judged, judge

TITLE = "The study"
_INTRO = (
    "What of the papers' claims holds here, decided by rule. Made by `coevolve reproduce` from `study/claims.yaml` and "
    "the files under `study/results/`; do not edit. [How it is done]({})."
)
_COMMIT = re.compile(r"\b([0-9a-f]{7})[0-9a-f]{33,}\b")
_OTHERS = "other sources"
"""Claims of no source that the file names."""
_PACKAGES = ("python", "torch", "transformers")
"""Of the versions that a result keeps, those that the page names."""
_SIGNS = {"more": ">", "less": "<", "equal": "=", "open": "beside"}


def files(book: Book, kept: Everywhere, premises: Mapping[str, Mapping[str, Any]], page: Path) -> dict[Path, str]:
    """Return the files to write, path -> text: the page and, if it is Markdown, its pictures beside it."""
    found = chapters(book, kept, premises, _link_to(book.results, page))
    intro = _INTRO.format(_link_to(book.page.with_name("reproduce.md"), page))
    intro += f"\n\n{book.study.about}" * bool(book.study.about)
    if page.suffix == ".html":
        return {page: layout.html(TITLE, intro, found)}
    pictures = {id: one.svg for chapter in found for id, one in chapter.pictures.items()}
    beside = {page.with_name(layout.picture_name(page.stem, id)): text for id, text in pictures.items()}
    return {page: layout.markdown(TITLE, intro, found, page.stem), **beside}


def check_suffix(page: Path) -> None:
    """Raise ValueError for a page that is neither ``.md`` nor ``.html``."""
    if page.suffix not in (".md", ".html"):
        raise ValueError(f"--page {page}: want a name that ends in .md or .html")


def _link_to(file: Path, page: Path) -> str:
    """Return a file's path as a link from the page has it."""
    return Path(os.path.relpath(file, page.parent)).as_posix()


def chapters(book: Book, kept: Everywhere, premises: Mapping[str, Mapping[str, Any]], results: str) -> list[Chapter]:
    """Return the chapters of the page; empty ones are left out. results: the link to the folder of results."""
    judged = judge(book.study, kept, premises)
    claims = [one for one in judged if one.verdict != "open"]
    found = [
        Chapter(_follows(claims, book.study)),
        Chapter(_claims(book, claims)),
        *([Chapter(_beyond(beyond, claims, book.study.seeds["full"]))] if (beyond := book.study.beyond) else []),
        Chapter(_open([one for one in judged if one.verdict == "open"])),
        _pictures(book, kept),
        *([Chapter(_premises(book, premises))] if premises else []),
        Chapter(_measures(book)),
        Chapter(_how(book, claims), [_detail(book, one, kept, results) for one in judged]),
        *([Chapter(_runs(book, kept))] if kept else []),
    ]
    return [chapter for chapter in found if chapter.inner or chapter.section.rows or chapter.section.id == "follows"]


def state(one: Judged, book: Book) -> str:
    """Return the progress of a claim: ``12 of 12 seeds``, ``not run`` or ``not here``."""
    return "not here" if one.claim.elsewhere is not None else _progress(one.found, book.study.seeds["full"])


def _progress(found: Sequence[Found], full: int) -> str:
    """Return how many seeds of all these comparisons are pairs, ``3 of 12 seeds``: those of the comparison with the
    fewest, and its refused pairs. ``not run`` where none has two runs to compare."""
    if not any(one.pairs or one.refused for one in found):
        return "not run"
    fewest = min(found, key=lambda one: len(one.pairs))
    return f"{len(fewest.pairs)} of {full} seeds{f', {len(fewest.refused)} refused' if fewest.refused else ''}"


def cost(id: str, book: Book, kept: Results, left: Sequence[str] | None = None) -> str:
    """Return the time of one process for all seeds of a claim, from the seconds that its arms' runs took: ``about``
    where the time of an arm that has not been run is that of a similar arm, ``at least`` where there is none, or where
    a model of a run that is left has to be pre-trained. left: the arms of the runs that are left to make, one entry a
    run; if these are not all, their time is put before it."""
    if (other := book.study.claims[id].elsewhere) is not None:
        return other.cost
    arms = book.arms_of(id)
    each = {arm: seconds_of(arm, book, kept) for arm in arms}
    known = [seconds for seconds in each.values() if seconds is not None]
    if not known:
        return "–"
    said = in_words(sum(known) * book.study.seeds["full"])
    missing = [seconds for arm in left or () if (seconds := each[arm]) is not None]
    if missing and len(missing) < len(known) * book.study.seeds["full"]:
        said = f"{in_words(sum(missing))} of {said}"
    if len(known) < len(arms) or any(to_pretrain(book.first(arm)) for arm in set(left or ())):
        return f"at least {said}"
    return said if all(arm in kept for arm in arms) else f"about {said}"


def _follows(judged: Sequence[Judged], study: Study) -> Section:
    """Return the section on what follows for a user, in the texts that claims have for their verdicts."""
    said = f"Of {many(len(judged), 'claim')}: {and_list(_counts(judged, study.seeds['full']))}."
    said += _by_source(judged, study.sources)
    follows = "\n".join(f"- {one.follows} ({_link(one)}, {one.verdict})" for one in judged if one.follows is not None)
    none = "Nothing follows yet: no claim that has a consequence is decided."
    return Section("follows", "What follows", f"{follows or none}\n\n{said}")


def _by_source(judged: Sequence[Judged], sources: Sequence[str]) -> str:
    """Return how many claims of each source, and of others, are decided. sources: what ``paper`` begins with."""
    by: dict[str, list[Judged]] = {source: [] for source in (*sources, _OTHERS)}
    for one in judged:
        by[next((source for source in sources if one.claim.paper.startswith(source)), _OTHERS)].append(one)
    said = []
    for source, those in by.items():
        decided = Counter(one.verdict for one in those if one.verdict not in ("undecided", "not run here"))
        counts = and_list([f"{count} {verdict}" for verdict, count in decided.most_common()])
        said += [f"of the {len(those)} of {source} {counts or 'none'}"] * bool(those)
    return f" Decided: {'; '.join(said)}." * bool(sources)


def _counts(judged: Sequence[Judged], full: int) -> list[str]:
    """Return how many claims have each verdict, the undecided last, and how far these are."""
    verdicts = Counter(one.verdict for one in judged)
    undecided = verdicts.pop("undecided", 0)
    counts = [f"{count} {verdict}" for verdict, count in verdicts.most_common()]
    if undecided:
        far = Counter(_seeds(one, full) for one in judged if one.verdict == "undecided")
        how = and_list([f"{count} with {seeds}" for seeds, count in far.most_common()])
        counts.append(f"{undecided} undecided ({how})")
    return counts


def _seeds(one: Judged, full: int) -> str:
    """Return whether an undecided claim has all its seeds, lacks some, or has runs of all that are no pairs."""
    if any(len(found.pairs) + len(found.refused) < full for found in one.found):
        return "seeds missing"
    return "pairs refused" if any(found.refused for found in one.found) else f"all {full} seeds"


def _link(one: Judged) -> str:
    return f"[{one.id}](#{one.id.lower()})"


def _claims(book: Book, judged: Sequence[Judged]) -> Section:
    rows = [
        [_link(one), one.claim.says, one.claim.number, f"**{one.verdict}**", _ours(one, book) + _caveat(one)]
        for one in judged
    ]
    sentence = (
        "In each line of ours: the measure, its two sides, what both spent alike, the mean difference with its 95 % "
        "interval, pairs of runs, and the verdict of the line; then the premise, of claims on agents that read. A "
        "claim's link leads to its command, margins and files."
    )
    columns = ("", "claim", "the paper's number", "verdict", "ours")
    return Section("claims", "Claims", sentence, columns, rows)


def _beyond(beyond: Beyond, judged: Sequence[Judged], full: int) -> Section:
    """Return the section on which claims stand against which paper, or in how many of their comparisons with it: those
    whose difference from its arms is beyond zero."""
    rows, stand = [], []
    for paper, arms in beyond.rules.items():
        against = [(one, _against(one, arms)) for one in judged if one.id in beyond.claims]
        links = [_link(one) + part for one, found in against if (part := _part(found, full)) is not None]
        stand.append(f"{paper}: {and_list(links) if links else 'none'}")
        for one, found in against:
            rows += [[_link(one), paper, _difference(each), _p(each), _stands(each, full)] for each in found]
    sentence = (
        "Which of ours beat what the papers train, or a common variant of it, at equal generated responses, by "
        f"{full} seeds, intervals beyond zero and p < {ALPHA:g}? Against {'; against '.join(stand)}. These intervals "
        "and tests are one by one; verdicts, which are corrected for all comparisons, ask for more."
    )
    sentence += f" {beyond.note}" * bool(beyond.note)
    for one in judged:
        if why := beyond.left_out.get(one.id):
            sentence += f" {_link(one)} is left out: {why}."
    return Section("beyond", "Beyond both papers", sentence, ("", "against", "difference", "p", "stands"), rows)


def _against(one: Judged, arms: Sequence[str]) -> list[Found]:
    """Return a claim's comparisons with these arms at equal responses."""
    return [found for found in one.found if found.comparison.meets(arms)]


def _part(found: Sequence[Found], full: int) -> str | None:
    """Return in how many of its comparisons a claim stands, if not in all of them; None if it stands in none."""
    clear = sum(_clear(one, full) for one in found)
    if clear == 0:
        return None
    return "" if clear == len(found) else f" (in {clear} of {len(found)} comparisons)"


def _stands(found: Found, full: int) -> str:
    if len(found.pairs) < full:
        return _progress([found], full)
    return "yes" if _clear(found, full) else "no"


def _clear(found: Found, full: int) -> bool:
    """Return whether all pairs exist, their whole interval lies on the claimed side of zero, and their exact p, not
    corrected for other comparisons, is small: intervals of a few seeds are narrow."""
    effect = found.estimate
    if effect is None or effect.low is None or effect.high is None or effect.n < full:
        return False
    if found.p is None or found.p >= ALPHA:
        return False
    sides = {"more": effect.low > 0, "less": effect.high < 0}
    return sides.get(found.comparison.direction, False)


def _open(judged: Sequence[Judged]) -> Section:
    sentence = "Nobody claimed an answer to these, so there is no test and no verdict, only what was measured."
    rows = [[_link(one), one.claim.says, _measured(one) + _caveat(one)] for one in judged]
    return Section("open", "Open questions", sentence, ("", "question", "measured"), rows)


def _caveat(one: Judged) -> str:
    return "" if one.claim.caveat is None else f"{BREAK}Caveat: {one.claim.caveat}"


def _measured(one: Judged) -> str:
    if any(found.pairs for found in one.found):
        premises = [_premise_of(name, found) for name, found in one.premises.items()]
        return BREAK.join(
            [*(_difference(each, _matched(each.comparison)) + _none(each) for each in one.found), *premises]
        )
    refused = sum(len(found.refused) for found in one.found)
    return f"{many(refused, 'pair')} refused" if refused else "not run"


def _none(found: Found) -> str:
    """Return why a comparison has no pair, after a colon; empty if it has one."""
    if found.pairs:
        return ""
    return f": {many(len(found.refused), 'pair')} refused" if found.refused else ": not run"


def _ours(one: Judged, book: Book) -> str:
    """Return what was measured of a claim: a line for each comparison, or why there is none."""
    if one.claim.elsewhere is not None:
        return one.claim.elsewhere.why
    lines = [_compared(found, book.study.seeds["full"]) for found in one.found]
    if one.verdict == "vacuous":
        lines = [
            f"premise {name}: the observer does not read: slope {number(found['slope'])} ({SLOPE:g} wanted), gain "
            f"{number(found['gain'])} (above {GAIN:g} wanted)"
            for name, found in one.premises.items()
            if found is not None and not holds(found)
        ]
    else:
        lines += [_premise_of(name, found) for name, found in one.premises.items()]
    return BREAK.join(lines)


def _compared(found: Found, full: int) -> str:
    """Return a comparison in a line, with what both sides spent alike, how far it is and its verdict."""
    measured = "" if found.estimate is None else f" {within(*found.estimate[1:])},"
    seeds = f"{_progress([found], full)}{_signs(found, full)}"
    return f"{_claimed(found.comparison)}{_matched(found.comparison)}:{measured} {seeds}, {found.verdict}"


def _signs(found: Found, full: int) -> str:
    """Return how many differences have one sign, after a comma; empty where this says nothing of the verdict."""
    if found.verdict != "undecided" or found.comparison.direction == "equal" or len(found.pairs) < full:
        return ""
    return f", {found.alike} of one sign"


def _pictures(book: Book, kept: Everywhere) -> Chapter:
    inner, pictures = [], {}
    for one in drawn(book, kept):
        missing = f" Not run yet: {and_list(one.missing)}." if one.missing else ""
        apart = f" {one.apart}" if one.apart else ""
        id = f"figure-{one.id}"
        columns = ("line", "arm", "seeds", f"{one.plot.x}, at the end", f"{one.plot.y}, at the end")
        inner.append(Section(id, one.figure.title, f"{one.figure.reads}{missing}{apart}", columns, one.rows))
        pictures[id] = Picture(svg(one.plot, one.figure.title, one.says), one.figure.title)
    sentence = "As the papers drew them. Bands and whiskers are 95 % intervals of the mean over seeds."
    return Chapter(Section("pictures", "Pictures", sentence), inner, pictures)


def _measures(book: Book) -> Section:
    """Return the section on how the comparisons of this study measure."""
    every = (one for claim in book.study.claims.values() for one in claim.comparisons)
    used = {re.split("[ /]", measure)[0] for one in every for measure in one.measures}
    rows = [[f"`{how}`", means] for how, means in MEANINGS.items() if how in used]
    sentence = (
        "The first word of a measure says how the metric after it is taken. Smoothed is over a tenth of a run's steps. "
        "`parts/return` is the share of the most that a team can earn; `parts/ungated_NAME` is a part by itself, also "
        "where an earlier part failed and nothing is paid for it."
    )
    return Section("measures", "Measures", sentence, ("measure", "of a metric"), rows)


def _how(book: Book, claims: Sequence[Judged]) -> Section:
    sentence = (
        f"Verdicts need all {book.study.seeds['full']} seeds, p < .05 by exact sign flips and Holm's correction for "
        f"the {book.study.tests} comparisons of the study, and a difference beyond the margin."
        f"{_all_alike(book, claims)} Differences are first arm less second one. `reward`, `kl` and `objective`, reward "
        "less the weighted KL, are means over the roles, of CORY thus over pioneer and observer. Bootstrap intervals "
        "of few seeds are narrow: of 12 normal values they hold the true mean in 91 cases of 100, of 5 in 84, of 3 in "
        "75."
    )
    if any(arm.evaluation_seed is not None for arm in book.study.arms.values()):
        sentence += (
            " Of arms whose runs were all evaluated by random numbers of one seed (the table of runs says which), "
            "intervals of held-out measures leave that chance out."
        )
    return Section("details", "Each claim", sentence + _predating(book, claims))


def _all_alike(book: Book, claims: Sequence[Judged]) -> str:
    """Return that one seed of another sign is too many, where that is so: the next to pass Holm's correction is then
    tested by at least this p times the comparisons that have not passed."""
    passed = sum(found.adjusted < ALPHA for one in claims for found in one.found)
    least = 2 * 2 / 2 ** book.study.seeds["full"]
    if least * (book.study.tests - passed) < ALPHA:
        return ""
    return " With so many comparisons a single seed of the other sign is too many."


def _predating(book: Book, claims: Sequence[Judged]) -> str:
    """Return for which claims with all their pairs the history shows that they were first written before their runs;
    empty where none has all of them, and in a study without lost commits."""
    whole = [one for one in claims if one.found and all(len(f.pairs) == book.study.seeds["full"] for f in one.found)]
    shown = [_link(one) for one in whole if not any(found.lost for found in one.found)]
    if not (book.study.lost and whole):
        return ""
    said = f": {and_list(shown)}" if shown else ""
    others = " The others have pairs of commits that this history has lost." * (len(shown) < len(whole))
    return (
        f"{_written(book)} Git shows for {len(shown)} of the {many(len(whole), 'claim')} with all pairs that they "
        f"were first written before these runs (what was changed in them since is in their caveats){said}."
        f"{_replaced(book, shown)}{others}"
    )


def _replaced(book: Book, shown: Sequence[str]) -> str:
    """Return which of these claims could be compared before git shows them. shown: links to claims."""
    before = [id for id in book.study.replaced if any(link.startswith(f"[{id}]") for link in shown)]
    if not before:
        return ""
    return (
        f" Of these, {and_list(before)} had a comparison with runs of both sides before that commit, which were made "
        f"anew; none of the other {len(shown) - len(before)} had."
    )


def _written(book: Book) -> str:
    first = _COMMIT.sub(r"\1", book.study.written)
    return f" The first commit of the claims that this history holds is {first}." * bool(first)


def _detail(book: Book, one: Judged, kept: Everywhere, results: str) -> Section:
    """Return the section of one claim: the paper's number, every comparison, and the command and results behind it."""
    premise = "".join(f" {_premise_of(name, measured)}" for name, measured in one.premises.items())
    source = one.claim.paper if one.claim.number == one.claim.paper else f"{one.claim.paper}: {one.claim.number}"
    said = f"{one.claim.says}\n\n**{one.verdict}.** {source}.{premise}\n\n"
    if one.claim.caveat is not None:
        said += f"Caveat: {one.claim.caveat}\n\n"
    if one.claim.since is not None:
        said += f"Runs count that finished on {one.claim.since} or later.\n\n"
    if (other := one.claim.elsewhere) is not None:
        said += f"{other.why} `{other.recipe}`. What would decide it: `{other.command}`"
        return Section(one.id.lower(), one.id, said)
    made_on = {arm: [name for name, results in kept.items() if arm in results] for arm in book.arms_of(one.id)}
    files = [f"[{arm}]({results}/{arm})" for arm, names in made_on.items() if names]
    said += f"`coevolve reproduce {one.id} --tier full`" + (f"; results: {', '.join(files)}" if files else "")
    several = any(len(names) > 1 for names in made_on.values())
    rows = [_comparison(found, several) for found in one.found]
    columns = ("claimed", "equal", "difference", "margin", "seeds", "p, adjusted", "")
    return Section(one.id.lower(), one.id, said, columns, rows)


def _comparison(found: Found, several: bool) -> list[str]:
    """Return a table row. several: whether the claim's arms have runs on more than one kind of processor, so that the
    row names those of the pairs."""
    refused = "".join(
        f"{BREAK}{many(count, 'pair')} refused: {why}" for why, count in Counter(found.refused.values()).items()
    )
    estimate = found.estimate
    return [
        _claimed(found.comparison),
        "–" if found.comparison.matched == "nothing" else found.comparison.matched,
        ("–" if estimate is None else within(*estimate[1:])) + refused,
        number(found.margin),
        str(len(found.pairs))
        + "".join(f"{BREAK}on {name}" for name in dict.fromkeys(found.made_on.values()) if several)
        + f"{BREAK}{len(found.lost)} of lost commits" * bool(found.lost),
        _p(found) + f", {number(found.adjusted)}" * (found.p is not None),
        found.verdict,
    ]


def _p(found: Found) -> str:
    return "–" if found.p is None else number(found.p)


def _difference(found: Found, matched: str = "") -> str:
    """Return a comparison in a line: its two sides, the text ``matched``, and the difference if it was measured."""
    sides = f"{_claimed(found.comparison)}{matched}"
    if found.estimate is None:
        return sides
    n, mean, low, high = found.estimate
    return f"{sides}: {within(mean, low, high)}, {many(n, 'seed')}"


def _matched(one: Comparison) -> str:
    return "" if one.matched == "nothing" else f", equal {one.matched}"


def _claimed(one: Comparison) -> str:
    """Return a comparison as text, ``end kl: cory < ppo``, or ``cory: bare/ann reward = bare/bob reward`` where an arm
    is compared with itself."""
    ours, theirs = (side[0] if len(side) == 1 else f"{side[0]} and {len(side) - 1} more" for side in one.sides)
    sign = _SIGNS[one.direction]
    if one.than_measure is None:
        return f"{one.measure}: {ours} {sign} {theirs}"
    than = one.than_measure if one.than is None else f"{one.than_measure} of {theirs}"
    return f"{ours}: {one.measure} {sign} {than}"


def _premise_of(name: str, found: Mapping[str, Any] | None) -> str:
    if found is None:
        return f"Premise {name}: not measured."
    fails = "" if holds(found) else " (does not hold)"
    return f"Premise {name}: slope {number(found['slope'])}, gain {number(found['gain'])}{fails}."


def _premises(book: Book, premises: Mapping[str, Mapping[str, Any]]) -> Section:
    sentence = (
        "Can the start policies read a reference and verify it? slope: of the observer's reward on the pioneer's, "
        "within a problem; gain: of the observer over the pioneer and over an observer with an empty reference. Claims "
        f"that need the premise are vacuous with a slope below {SLOPE:g} or a gain of {GAIN:g} or less."
    )
    rows = [
        [
            name,
            f"`{book.study.premises[name].recipe.removeprefix('../')}`",
            within(found["slope"], found["slope_low"], found["slope_high"]),
            within(found["gain"], found["gain_low"], found["gain_high"]),
            f"{number(found['alone'])}, {number(found['heard'])}, {number(found['empty'])}",
            f"{found['problems']} x {found['members']}",
            "holds" if holds(found) else "does not hold",
        ]
        for name, found in premises.items()
    ]
    columns = ("premise", "start policies of", "slope", "gain", "pioneer, observer, empty reference", "episodes", "")
    return Section("premises", "Premises", sentence, columns, rows)


def _runs(book: Book, kept: Everywhere) -> Section:
    sentence = (
        "Whoever doubts a row makes one of its runs anew and compares it with the kept file, times and commit aside, "
        "by the command of the last column."
    )
    made = [(arm, results[arm]) for arm in book.study.arms for _, results in sorted(kept.items()) if arm in results]
    rows = [_run(book, arm, seeds) for arm, seeds in made]
    columns = ("arm", "recipe and overrides", "seeds", "each took", "computed by", "versions, commits", "again")
    return Section("runs", "Runs", sentence, columns, rows)


def _run(book: Book, arm: str, seeds: Mapping[int, Result]) -> list[str]:
    """Return the table row of an arm's runs on one kind of processor."""
    about = book.study.arms[arm]
    settings = " ".join([about.recipe.removeprefix("../"), *about.overrides])
    by = f", evaluated by {about.evaluated_by}" if about.evaluated_by else ""
    by += f", all by random numbers of seed {about.evaluation_seed}" if about.evaluation_seed is not None else ""
    machines = dict.fromkeys(f"{one.machine.processor}; {', '.join(one.machine.compute)}" for one in seeds.values())
    return [
        arm,
        f"`{settings}`{by}",
        _ranges(seeds),
        f"{fmean(one.seconds for one in seeds.values()):.0f} s",
        BREAK.join(machines),
        _versions(seeds.values()),
        f"`coevolve reproduce --again {arm}/{next(iter(seeds))}`",
    ]


def _versions(found: Any) -> str:
    given: list[Result] = list(found)
    packages = dict.fromkeys(", ".join(f"{name} {one.versions.get(name, '?')}" for name in _PACKAGES) for one in given)
    commits = dict.fromkeys(_COMMIT.sub(r"\1", one.commit) for one in given)
    return f"{BREAK.join(packages)}; {', '.join(commits)}"


def _ranges(seeds: Mapping[int, Any]) -> str:
    """Return seeds as ranges: ``0..3, 7``."""
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(f"{run[0]}..{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
