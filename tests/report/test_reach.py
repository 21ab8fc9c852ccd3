"""Who has no mouse, no wide screen or no eyes reaches every number of a page."""

import pytest
from until import until

from coevolve.runs.folder import read_lines

pytestmark = pytest.mark.slow

PARTS = ("overview", "findings", "curves", "dialogues", "recipes")
GRAVE = ("serious", "critical")
DRAWINGS = {"exclude": [["svg.main-svg"]]}  # hidden from screen readers; the numbers stand beside them


FOLDED = "details:not(#curves-part .card:nth-child(n+2) details)"  # of the curves' cards, all alike, the first


def unfold(tab):
    tab.eval_on_selector_all(FOLDED, "all => all.forEach(one => { one.open = true; })")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "scheme", "width"), [("cory", "light", 1300), ("tree", "dark", 375)])
def test_axe_finds_nothing_serious(visit, page_of, family, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-core (coevolve[dev])")
    tab = visit(page_of(family), "overview", width=width, color_scheme=scheme)
    for part in PARTS:
        tab.click(f"header nav a[href='#{part}']")
        unfold(tab)
        found = axe.Axe().run(tab, context=DRAWINGS).response
        assert found["testEngine"]["name"] == "axe-core"
        grave = [one for one in found["violations"] if one["impact"] in GRAVE]
        assert [(part, one["id"], node["html"]) for one in grave for node in one["nodes"]] == []


def test_axe_would_find_a_picture_without_words(visit, page_of):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-core (coevolve[dev])")
    tab = visit(page_of("cory"), "recipes")
    tab.evaluate("document.querySelector('#recipes-part').append(document.createElement('img'))")
    found = axe.Axe().run(tab, context="#recipes-part").response["violations"]
    assert [one["id"] for one in found if one["impact"] in GRAVE] == ["image-alt"]


def test_every_number_of_a_curve_is_in_a_table(visit, page_of, run_of):
    lines = read_lines(run_of("cory") / "metrics.jsonl")
    tab = visit(page_of("cory"), "curves")
    tab.focus("[data-panel=reward] summary")
    tab.keyboard.press("Enter")
    rows = "#curves-part [data-panel=reward] tr"
    until(tab, f"document.querySelectorAll('{rows}').length === {len(lines) + 1}")
    told = tab.eval_on_selector_all(rows, "all => all.map(row => [...row.cells].map(cell => cell.textContent))")
    assert told[0] == ["step", "team", "ann", "bob"]
    keys = ("reward", "agents/ann/reward", "agents/bob/reward")
    wanted = [[line["step"], *(line[key] for key in keys)] for line in lines]
    assert [list(map(float, row)) for row in told[1:]] == [pytest.approx(row, rel=1e-3) for row in wanted]


def test_no_table_scrolls_sideways_on_a_phone(visit, page_of):
    tab = visit(page_of("tree"), "findings", width=375, height=800)
    for part in ("findings", "dialogues"):
        tab.click(f"header nav a[href='#{part}']")
        unfold(tab)
        if part == "dialogues":
            tab.check("#numbers")
            tab.wait_for_selector("#episode .turn table")
        tables = f"[...document.querySelectorAll('#{part}-part table')]"
        assert tab.evaluate(f"{tables}.length") > 0
        wide = "table => table.parentElement.scrollWidth > table.parentElement.clientWidth"
        assert tab.evaluate(f"{tables}.filter({wide}).map(table => table.textContent)") == []
