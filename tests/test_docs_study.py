"""Pages that say how a claim of the study stands say what its page says."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [page for page in DOCS.glob("*.md") if page.name != "study.md" and not page.name.startswith("log")]


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


def test_what_the_two_find():
    assert {"C1", "C14", "M14", "X8", "V3"} <= study().keys()
    text = "| [C5](study.md#c5), refuted; [X3](study.md#x3) **undecided** and [M2](study.md#m2) supports |"
    assert said(text, ["refuted", "undecided"]) == [("C5", "refuted"), ("X3", "undecided")]
