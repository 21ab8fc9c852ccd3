"""Pages that say how a claim of the study stands say what its page says, in verdicts and in numbers."""

import re
from pathlib import Path

import pytest

from coevolve.study.claims import read
from coevolve.study.run import kept
from coevolve.study.verdicts import judge

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [page for page in DOCS.glob("*.md") if page.name != "study.md" and not page.name.startswith("log")]


BY_HAND = {
    (".044", ".033", ".055"),  # M10 by its first twelve runs, which do not count any more
    ("+.027", "-.017", ".077"),  # M14 less M4
}
"""Intervals that are of no comparison of the study."""


@pytest.fixture(scope="module")
def intervals():
    """Mean, low and high of every comparison that has several pairs."""
    book = read(DOCS.parent / "study" / "claims.yaml")
    found = [found.estimate for one in judge(book.study, kept(book), {}) for found in one.found]
    return [one[1:] for one in found if one is not None and one.low is not None]


def is_rounded(written, numbers):
    """Whether these are the numbers to as many digits as are written, from either side's view."""
    mean, low, high = numbers
    views = ((mean, low, high), (-mean, -high, -low))
    digits = [len(one.partition(".")[2]) for one in written]
    return any(
        all(abs(float(one) - exact) <= 0.5 * 10**-n + 1e-9 for one, exact, n in zip(written, view, digits, strict=True))
        for view in views
    )


def study():
    """Claim -> its verdict and what it is because of, by the table of claims."""
    rows = re.findall(
        r"^\| \[(\w+)\]\(#\w+\) \| [^|]+ \| [^|]+ \| \*\*([^*|]+)\*\* \| ([^|]+) \|$",
        (DOCS / "study.md").read_text("utf-8"),
        re.MULTILINE,
    )
    return {id: (verdict, because) for id, verdict, because in rows}


def said(text, words):
    """(claim, word), of links to the study that one of these words follows directly: ``[C5](study.md#c5), refuted``."""
    return re.findall(rf"\[(\w+)\]\(study\.md#\w+\),? \**({'|'.join(words)})\b", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_verdict_is_the_studys(page):
    known = study()
    found = said(page.read_text("utf-8"), ["confirmed", "refuted", "undecided"])
    assert [(id, word) for id, word in found if word != known[id][0]] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_has_results_is_not_called_not_run(page):
    """In a clause, which may speak of several claims. Of what is begun the page says how many seeds there are."""
    known = study()
    holds = {"not run": "not run$", "begun": r".*\d+ of \d+ seeds"}
    clauses = [clause for clause in re.split(r"[|;]|\. ", page.read_text("utf-8")) if "study.md#" in clause]
    stale = [
        (id, word)
        for clause in clauses
        for word in holds
        if re.search(rf"\b{word}\b", clause)
        for id in re.findall(r"\]\(study\.md#(\w+)\)", clause)
        if id.upper() in known and not re.match(holds[word], known[id.upper()][1].partition("<br>")[0])
    ]
    assert stale == []


_NUMBER = r"([-+]?\d*\.?\d+)"
_INTERVAL = re.compile(rf"{_NUMBER}(?: nats)? \[{_NUMBER}, {_NUMBER}\]")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_an_interval_is_one_of_the_study(page, intervals):
    """Computed from the results, as the table's three digits rounded once more are sometimes others."""
    written = set(_INTERVAL.findall(page.read_text("utf-8"))) - BY_HAND
    assert [one for one in written if not any(is_rounded(one, numbers) for numbers in intervals)] == []


def test_what_the_intervals_find(intervals):
    assert _INTERVAL.findall("by +.12 [-.098, 1.4] nats, 16 nats [2, 31]") == [
        ("+.12", "-.098", "1.4"),
        ("16", "2", "31"),
    ]
    assert is_rounded((".12", "-.01", ".25"), (-0.1232, -0.2451, 0.0149))
    assert not is_rounded((".12", "-.01", ".25"), (-0.1232, -0.2451, 0.0151))
    assert len(intervals) > 100
    assert sum(len(_INTERVAL.findall(page.read_text("utf-8"))) for page in PAGES) > 90


def test_what_the_two_find():
    assert {"C1", "C14", "M14", "X8", "V3"} <= study().keys()
    text = "| [C5](study.md#c5), refuted; [X3](study.md#x3) **undecided** and [M2](study.md#m2) supports |"
    assert said(text, ["refuted", "undecided"]) == [("C5", "refuted"), ("X3", "undecided")]
