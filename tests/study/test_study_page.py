"""Pictures and page of made-up results: the numbers by hand, and files that are read by others' parsers."""

import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_up import HERE, STUDY, everywhere, pairs, result

from coevolve.report.section import Plot, Section, Series
from coevolve.report.wording import many
from coevolve.study import layout, page
from coevolve.study.claims import Beyond, Figure, read
from coevolve.study.figures import drawn
from coevolve.study.layout import Chapter, Picture
from coevolve.study.results import Machine
from coevolve.study.svg import svg, ticks

PAGE = Path("study.md")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def book(tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "claims.yaml").write_text(STUDY)
    return read(tmp_path / "study" / "claims.yaml")


def with_figure(book, **changes):
    figure = book.study.figures["F1"].model_dump() | changes
    study = book.study.model_copy(update={"figures": {"F1": Figure.model_validate(figure)}})
    return type(book)(book.file, study)


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.31, 0.79, [0.3, 0.4, 0.5, 0.6, 0.7, 0.8]),
        (-3.0, 7600.0, [-2000, 0, 2000, 4000, 6000, 8000]),
        (5.0, 5.0, [4.4, 4.6, 4.8, 5.0, 5.2, 5.4, 5.6]),
    ],
)
def test_numbers_on_an_axis_are_round(low, high, wanted):
    assert ticks(low, high) == pytest.approx(wanted)
    assert ticks(low, high)[0] <= low
    assert ticks(low, high)[-1] >= high


def test_the_page_names_the_claims_that_git_shows_to_be_older_than_their_runs(book):
    lost = type(book)(book.file, book.study.model_copy(update={"lost": ["1" * 40], "figures": {}}))
    found = pairs([0.1] * 12)
    said = "Git shows for {} of the 1 claim with all pairs that they were first written before these runs"

    def text():
        return page.files(lost, everywhere(found), {}, PAGE)[PAGE]

    assert said.format(1) in text() and "caveats): [K1](#k1)." in text() and "The others" not in text()
    assert "before that commit" not in text()
    again = type(book)(book.file, lost.study.model_copy(update={"replaced": ["K1"]}))
    told = page.files(again, everywhere(found), {}, PAGE)[PAGE]
    assert (
        "Of these, K1 had a comparison with runs of both sides before that commit, which were made anew; none" in told
    )
    found["b"][7] = found["b"][7].model_copy(update={"commit": "1" * 40})
    assert said.format(0) in text() and "caveats). The others" in text()
    assert "| 12<br>1 of lost commits |" in text()
    del found["a"][0]
    assert "Git shows" not in text()


def test_a_study_that_has_lost_no_commits_says_nothing_of_them(book):
    without = type(book)(book.file, book.study.model_copy(update={"figures": {}}))
    assert "Git" not in page.files(without, everywhere(pairs([0.1] * 12)), {}, PAGE)[PAGE]


def test_a_claim_is_as_far_as_the_last_of_its_comparisons(book):
    def of(*found):
        return page.state(SimpleNamespace(claim=book.study.claims["K1"], found=found), book)

    def found(pairs, refused=0):
        return SimpleNamespace(pairs=dict.fromkeys(range(pairs)), refused=dict.fromkeys(range(pairs, pairs + refused)))

    assert of(found(12), found(3)) == "3 of 12 seeds"
    assert of(found(3), found(0)) == "0 of 12 seeds"
    assert of(found(12), found(7, 5)) == "7 of 12 seeds, 5 refused"
    assert of(found(0), found(0)) == "not run"


def test_an_overview_says_how_many_seeds_a_claim_has_in_the_words_of_the_list(book):
    """A claim of two comparisons: both begun; one whole; one without a pair."""
    (one,) = book.study.claims["K1"].comparisons
    second = one.model_copy(update={"arm": "a2", "than": "b2", "matched": "responses"})
    claim = book.study.claims["K1"].model_copy(update={"comparisons": [one, second]})
    book = type(book)(book.file, book.study.model_copy(update={"claims": {"K1": claim}, "figures": {}}))
    for (first, then), said in {
        (5, 3): ("0.250 [0.250, 0.250], 5 of 12 seeds, undecided", "0 [0, 0], 3 of 12 seeds, undecided"),
        (12, 3): ("0.250 [0.250, 0.250], 12 of 12 seeds, confirmed", "0 [0, 0], 3 of 12 seeds, undecided"),
        (12, 0): ("0.250 [0.250, 0.250], 12 of 12 seeds, confirmed", "not run, undecided"),
    }.items():
        more = {f"{arm}2": {seed: result(f"{arm}2", seed, reward=[0.5] * 5) for seed in range(then)} for arm in "ab"}
        kept = everywhere(pairs([0.25] * first) | more)
        lines = f"end reward: a > b: {said[0]}<br>end reward: a2 > b2, equal responses: {said[1]}"
        assert f"| **undecided** | {lines} |" in page.files(book, kept, {}, PAGE)[PAGE]


def test_a_value_lies_where_the_axes_say():
    text = svg(Plot("x", "y", [Series("one < two", [0.0, 1.0], [0.0, 1.0])]), "a title", "what it says")
    root = ElementTree.fromstring(text)
    assert (root.find(f"{SVG}title").text, root.find(f"{SVG}desc").text) == ("a title", "what it says")
    assert "one < two" in [each.text for each in root.iter(f"{SVG}text")]
    lines = [each.get("points") for each in root.iter(f"{SVG}polyline")]
    assert lines[0] == "64.0,282.0 612.0,14.0"  # from corner to corner
    assert root.find(f".//{SVG}circle").get("cx") == "612.0"  # marked where it ends
    assert "prefers-color-scheme:dark" in text


def test_a_gap_parts_a_line_and_single_points_have_whiskers():
    runs = Series("runs", [0.0, 1.0, 1.0, 0.0, 1.0], [0.0, 1.0, None, 1.0, 0.0])
    root = ElementTree.fromstring(svg(Plot("x", "y", [runs]), "t", "s"))
    assert [each.get("points") for each in root.iter(f"{SVG}polyline")][:2] == [
        "64.0,282.0 612.0,14.0",
        "64.0,14.0 612.0,282.0",
    ]
    points = Series("ends", [0.0, 1.0], [0.5, 0.5], [0.0, 0.5], [1.0, 0.5], points=True)
    root = ElementTree.fromstring(svg(Plot("x", "y", [points]), "t", "s"))
    whiskers = [each.get("points") for each in root.iter(f"{SVG}polyline") if each.get("class") == "l w"]
    assert whiskers == ["64.0,282.0 64.0,14.0", "612.0,148.0 612.0,148.0"]
    assert len(list(root.iter(f"{SVG}circle"))) == 3  # and one in the legend


def test_ends_of_arms_are_points_in_the_order_of_x(book):
    kept = {
        "a": {seed: result("a", seed, reward=[0.0, 0.5], kl=[0.0, kl]) for seed, kl in enumerate((3.0, 5.0))},
        "b": {0: result("b", 0, reward=[0.0, 0.25], kl=[0.0, 1.0])},
    }
    (one,) = drawn(book, {"p": kept})
    (series,) = one.plot.series
    assert (list(series.x), list(series.y), series.points) == ([1.0, 4.0], [0.25, 0.5], True)
    assert one.rows == [
        ["both", "a", "2", "4.00 [3.00, 5.00]", "0.500 [0.500, 0.500]"],
        ["both", "b", "1", "1.00", "0.250"],
    ]
    assert "both: 4.00 [3.00, 5.00] and 0.500 [0.500, 0.500]" in one.says


def test_a_curve_is_the_mean_over_seeds_and_runs_are_each_their_own(book):
    lines = {name: {"arm": name, "x": "responses", "y": "reward"} for name in ("a", "b")}
    kept = {"a": {seed: result("a", seed, reward=[0.0, float(seed)], turns=[4, 4]) for seed in (0, 1)}}
    (one,) = drawn(with_figure(book, draws="curve", lines=lines), {"p": kept})
    (series,) = one.plot.series
    assert (series.x, series.y) == ([4.0, 8.0], [0.0, 0.5])
    assert (series.low, series.high) == ([0.0, 0.0], [0.0, 1.0])  # of two values all resamples
    assert one.missing == ["b"]
    (one,) = drawn(with_figure(book, draws="runs", lines=lines), {"p": kept})
    assert one.plot.series[0].x == [4.0, 8.0, 8.0, 4.0, 8.0]
    assert one.plot.series[0].y == [0.0, 0.0, None, 0.0, 1.0]


def test_marks_are_single_points_beside_the_lines(book):
    lines = {"a": {"arm": "a", "x": "kl", "y": "reward"}}
    kept = {"a": {0: result("a", 0, reward=[0.0, 0.5], kl=[0.0, 3.0])}}
    marks = {"equilibria": [[1, 6], [6, 1]]}
    (one,) = drawn(with_figure(book, draws="runs", lines=lines, marks=marks), {"p": kept})
    series = one.plot.series[1]
    assert (series.name, series.x, series.y, series.points) == ("equilibria", [1, 1, 6], [6, None, 1], True)
    assert [row[0] for row in one.rows] == ["a"]
    root = ElementTree.fromstring(svg(one.plot, "t", "s"))
    assert len(root.findall(f".//{SVG}rect")) == 1 + 3  # the card, two marks, and one in the legend
    assert len(root.findall(f".//{SVG}polyline")) == 1 + 2  # the run, and a line of the legend for each
    assert drawn(with_figure(book, draws="runs", lines=lines, marks=marks), {}) == []


def test_a_figure_of_a_metric_that_is_not_there_is_told(book):
    with pytest.raises(ValueError, match="a figure draws kl of a, whose results have no such curve"):
        drawn(book, {"p": {"a": {0: result("a", 0, reward=[0.0, 0.5])}}})


def test_a_curve_has_no_points_where_a_seed_does_not_know(book):
    one, two = (result("a", seed, reward=[0.0, 1.0], kl=[0.5, 1.0]) for seed in (0, 1))
    two.curves["kl"][0] = None
    lines = {"a": {"arm": "a", "x": "kl", "y": "reward"}}
    for draws, x, y in (("curve", [1.0], [1.0]), ("runs", [0.5, 1.0, 1.0, 1.0], [0.0, 1.0, None, 1.0])):
        (found,) = drawn(with_figure(book, draws=draws, lines=lines), {"p": {"a": {0: one, 1: two}}})
        assert (found.plot.series[0].x, found.plot.series[0].y) == (x, y)
    one.curves["kl"] = [None, None]
    (found,) = drawn(with_figure(book, draws="runs", lines=lines), {"p": {"a": {0: one, 1: two}}})
    assert (found.plot.series[0].x, found.plot.series[0].y) == ([1.0], [1.0])  # of the run that knows any


def test_a_figure_is_of_the_processor_that_made_most_of_it_and_says_so_where_others_made_the_rest(book):
    old, new = (HERE.model_copy(update={"processor": name}) for name in ("old", "new"))

    def of(machine, arm, seeds, kl):
        return {arm: {seed: result(arm, seed, machine=machine, reward=[0.0, 0.5], kl=[0.0, kl]) for seed in seeds}}

    everywhere = {"new": of(new, "a", (0, 1), 3.0), "old": of(old, "a", (0,), 9.0) | of(old, "b", (0, 1, 2), 1.0)}
    (one,) = drawn(book, everywhere)
    # of a, seed 1 is new's alone
    assert [row[2:4] for row in one.rows] == [["2", "6.00 [3.00, 9.00]"], ["3", "1.00 [1.00, 1.00]"]]
    assert one.apart == "Runs of several processors, which are no pairs: new and old."
    del everywhere["old"]["a"], everywhere["new"]["a"][1]
    everywhere["old"] |= of(old, "a", (0,), 9.0)
    (one,) = drawn(book, everywhere)
    assert (one.plot.series[0].x, one.apart) == ([1.0, 9.0], "")


def test_a_figure_without_results_is_left_out(book):
    assert drawn(book, {}) == []


@pytest.mark.parametrize("draws", ["ends", "curve", "runs"])
def test_what_no_run_knows_is_not_drawn(book, draws):
    """The curve of a metric that was null at every step."""
    unknown = {seed: result("a", seed, reward=[0.0, 0.5], kl=[math.nan, math.nan]) for seed in (0, 1)}
    known = {0: result("b", 0, reward=[0.0, 0.25], kl=[0.0, 1.0])}
    lines = {name: {"arm": name, "x": "kl", "y": "reward"} for name in ("a", "b")}
    book = with_figure(book, draws=draws, lines=lines)
    assert drawn(book, {"p": {"a": unknown}}) == []
    (one,) = drawn(book, {"p": {"a": unknown, "b": known}})
    assert [series.name for series in one.plot.series] == ["b"]
    assert one.rows == [["a", "a", "2", "– [–, –]", "0.500 [0.500, 0.500]"], ["b", "b", "1", "1.00", "0.250"]]
    assert svg(one.plot, "t", one.says).endswith("</svg>\n")


def test_a_page_in_both_forms(book):
    kept = pairs([0.2] * 12, kl=[0.0, 1.0, 1.0, 1.0, 1.0])
    for arm in ("b",):
        kept[arm] = {seed: result(arm, seed, reward=[0.5] * 5, kl=[1.0] * 5) for seed in range(12)}
    files = page.files(book, everywhere(kept), {}, Path("docs/study.md"))
    assert set(files) == {Path("docs/study.md"), Path("docs/study-figure-F1.svg")}
    text = files[Path("docs/study.md")]
    assert "- Take a. ([K1](#k1), confirmed)" in text
    assert (
        "| [K1](#k1) | a is better | much | **confirmed** | end reward: a > b: 0.200 [0.200, 0.200], 12 of 12 seeds, "
        "confirmed |" in text
    )
    assert "![Both arms](study-figure-F1.svg)" in text
    assert "### K1\n\na is better\n\n**confirmed.** a paper: much." in text
    (text,) = page.files(book, everywhere(kept), {}, Path("study.html")).values()
    assert '<h3 id="k1">K1</h3>' in text
    assert "<svg" in text
    assert '<li>Take a. (<a href="#k1">K1</a>, confirmed)</li>' in text


def test_what_a_claim_cannot_show_stands_beside_its_verdict(book):
    claim = book.study.claims["K1"].model_copy(update={"caveat": "b was ill."})
    book = type(book)(book.file, book.study.model_copy(update={"claims": {"K1": claim}, "figures": {}}))
    text = page.files(book, everywhere(pairs([0.2] * 12)), {}, PAGE)[PAGE]
    assert (
        "| **confirmed** | end reward: a > b: 0.200 [0.200, 0.200], 12 of 12 seeds, confirmed<br>Caveat: b was ill. |"
        in text
    )
    assert "**confirmed.** a paper: much.\n\nCaveat: b was ill.\n\n" in text


def test_a_premise_that_fails_or_was_not_measured_is_named(book):
    update = {"premise": ["reads", "checks"], "needs_premise": True}
    claim = book.study.claims["K1"].model_copy(update=update)
    book = type(book)(book.file, book.study.model_copy(update={"claims": {"K1": claim}, "figures": {}}))
    ends = dict.fromkeys(("slope_low", "slope_high", "gain_low", "gain_high", "alone", "heard", "empty"), 0.1)
    fails = {"slope": 0.6, "gain": -0.2, "problems": 8, "members": 8, **ends}

    def text(**premises):
        return page.files(book, everywhere(pairs([0.2] * 12)), premises, PAGE)[PAGE]

    assert "| **vacuous** | premise checks: the observer does not read: slope 0.600 (0.3 wanted), gain -0.200" in text(
        checks=fails
    )
    holds = fails | {"gain": 0.2}
    half = text(reads=holds)
    beside = "12 of 12 seeds, confirmed<br>Premise reads: slope 0.600, gain 0.200.<br>Premise checks: {}. |"
    assert "| **undecided** | end reward: a > b: 0.200 [0.200, 0.200], " + beside.format("not measured") in half
    assert "Premise reads: slope 0.600, gain 0.200. Premise checks: not measured." in half
    assert beside.format("slope 0.600, gain 0.200") in text(reads=holds, checks=holds)
    book.study.claims["K1"] = claim.model_copy(update={"needs_premise": False})
    assert beside.format("slope 0.600, gain -0.200 (does not hold)") in text(reads=holds, checks=fails)


@pytest.mark.parametrize(
    ("differences", "direction", "said"),
    [
        ([0.1, 0.3] * 6, "more", "Against Paper: [K1](#k1). "),
        ([0.1, 0.3] * 6, "less", "Against Paper: none. "),
        ([-0.1, -0.3] * 6, "less", "Against Paper: [K1](#k1). "),
        ([0.9, -0.5] * 6, "more", "Against Paper: none. "),
        ([0.1, 0.3] * 5, "more", "Against Paper: none. "),  # two seeds are missing
        # an interval of [.009, .350], and an exact p of .125
        ([0.9, 0.7, 0.3] + [0.05] * 4 + [-0.05] * 3 + [-0.02] * 2, "more", "Against Paper: none. "),
    ],
)
def test_what_beats_a_paper_is_told_by_intervals_and_exact_tests(book, differences, direction, said):
    (one,) = book.study.claims["K1"].comparisons
    asked = one.model_copy(update={"direction": direction, "matched": "responses"})
    elsewhere = asked.model_copy(update={"arm": "a2", "than": "b2"})  # not against the paper's arm, so of no account
    claim = book.study.claims["K1"].model_copy(update={"comparisons": [asked, elsewhere]})
    beyond = Beyond(claims=["K1"], rules={"Paper": ["b"]})
    study = book.study.model_copy(update={"claims": {"K1": claim}, "beyond": beyond, "figures": {}})
    files = page.files(type(book)(book.file, study), everywhere(pairs(differences)), {}, Path("study.md"))
    assert said in files[Path("study.md")]


@pytest.mark.parametrize(
    ("seeds", "differences", "sentence", "row"),
    [
        (0, 0.1, "[K1](#k1) (in 1 of 2 comparisons)", "a2 > b2 | – | not run"),
        (3, 0.1, "[K1](#k1) (in 1 of 2 comparisons)", "a2 > b2: 0.100 [0.100, 0.100], 3 seeds | – | 3 of 12 seeds"),
        (12, -0.1, "[K1](#k1) (in 1 of 2 comparisons)", "a2 > b2: -0.100 [-0.100, -0.100], 12 seeds | 0.000488 | no"),
        (12, 0.1, "[K1](#k1)", "a2 > b2: 0.100 [0.100, 0.100], 12 seeds | 0.000488 | yes"),
    ],
)
def test_what_beats_a_paper_in_part_says_so_and_what_was_not_run_has_a_row(book, seeds, differences, sentence, row):
    first = book.study.claims["K1"].comparisons[0].model_copy(update={"matched": "responses"})
    second = first.model_copy(update={"arm": "a2", "than": "b2"})
    claim = book.study.claims["K1"].model_copy(update={"comparisons": [first, second]})
    beyond = Beyond(claims=["K1"], rules={"Paper": ["b", "b2"]}, left_out={"K2": "it is of two ways to play"})
    changes = {"claims": {"K1": claim, "K2": book.study.claims["K1"]}, "beyond": beyond, "figures": {}}
    kept = pairs([0.1] * 12)
    for arm, reward in (("a2", 0.5 + differences), ("b2", 0.5)):
        kept[arm] = {seed: result(arm, seed, reward=[reward] * 5) for seed in range(seeds)}
    text = page.files(type(book)(book.file, book.study.model_copy(update=changes)), everywhere(kept), {}, PAGE)[PAGE]
    assert f"Against Paper: {sentence}. " in text
    assert "| [K1](#k1) | Paper | end reward: a > b: 0.100 [0.100, 0.100], 12 seeds | 0.000488 | yes |" in text
    assert f"| [K1](#k1) | Paper | end reward: {row} |" in text
    assert "ask for more. [K2](#k2) is left out: it is of two ways to play.\n" in text


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ([0.25] * 11 + [-0.01], "12 of 12 seeds, 11 of one sign, undecided |"),
        ([0.25, -0.2, 0.0] * 4, "12 of 12 seeds, 4 of one sign, undecided |"),
        ([5.0] + [-0.1] * 11, "12 of 12 seeds, 11 of one sign, undecided |"),  # not that of the mean
        ([0.25] * 12, "12 of 12 seeds, confirmed |"),
        ([0.25] * 5 + [-0.2], "6 of 12 seeds, undecided |"),
    ],
)
def test_of_an_undecided_difference_it_is_told_how_many_seeds_agree(book, differences, said):
    """A family of 80 tests asks for all of them, one of 20 does not."""
    one = book.study.claims["K1"].comparisons[0]
    claims = {"K1": book.study.claims["K1"]} | {
        f"K{i}": book.study.claims["K1"].model_copy(update={"comparisons": [one.model_copy(update={"arm": "a2"})]})
        for i in range(2, 81)
    }
    book = type(book)(book.file, book.study.model_copy(update={"claims": claims, "figures": {}}))
    text = page.files(book, everywhere(pairs(differences)), {}, PAGE)[PAGE]
    assert said in text
    assert "a single seed of the other sign is too many" in text
    few = type(book)(book.file, book.study.model_copy(update={"claims": dict(list(claims.items())[:20])}))
    assert "a single seed" not in page.files(few, everywhere(pairs(differences)), {}, PAGE)[PAGE]


def test_of_an_open_question_comparisons_without_runs_are_told(book):
    first = book.study.claims["K1"].comparisons[0].model_copy(update={"direction": "open"})
    claim = book.study.claims["K1"].model_copy(
        update={"comparisons": [first, first.model_copy(update={"arm": "a2"})], "follows": {}}
    )
    book = type(book)(book.file, book.study.model_copy(update={"claims": {"K1": claim}, "figures": {}}))
    row = "end reward: a beside b: 0.100 [0.100, 0.100], 3 seeds<br>end reward: a2 beside b: not run |"
    assert row in page.files(book, everywhere(pairs([0.1] * 3)), {}, PAGE)[PAGE]
    assert "| not run |" in page.files(book, {}, {}, PAGE)[PAGE]


def test_links_lead_from_where_the_page_lies(book, tmp_path):
    book = type(book)(book.file, book.study.model_copy(update={"figures": {}}))
    for name, back in {"study.md": "", "far/away/mine.md": "../../"}.items():
        file = tmp_path / name
        text = page.files(book, everywhere(pairs([0.1])), {}, file)[file]
        links = re.findall(r"\]\((?!#)([^)]+)\)", text)
        assert links == [f"{back}{to}" for to in ("reproduce.md", "study/results/a", "study/results/b")]


def test_why_nothing_is_decided_is_told(book):
    """All runs are there and five are no pairs; later runs are missing; there are none."""
    kept = pairs([0.25] * 12)
    far = Machine(processor=kept["b"][0].machine.processor, compute=("cpu",), threads=1)
    kept["a"] |= {seed: result("a", seed, reward=[0.6] * 5, machine=far) for seed in range(5)}
    book = type(book)(book.file, book.study.model_copy(update={"figures": {}}))
    for said, runs in {
        "7 of 12 seeds, 5 refused": kept,
        "11 of 12 seeds": pairs([0.25] * 11),
    }.items():
        line = f"| **undecided** | end reward: a > b: 0.250 [0.250, 0.250], {said}, undecided |"
        assert line in page.files(book, everywhere(runs), {}, PAGE)[PAGE]
    assert "| **undecided** | end reward: a > b: not run, undecided |" in page.files(book, {}, {}, PAGE)[PAGE]


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ("u12 u3 c e u12 c u7/5 n u0", "2 confirmed, 1 equal, 1 not run here and 5 undecided (2 with all 12 seeds, "
         "2 with seeds missing and 1 with pairs refused)"),
        ("u12 u12 c", "1 confirmed and 2 undecided (2 with all 12 seeds)"),
        ("u3/5", "1 undecided (1 with seeds missing)"),
        ("c c", "2 confirmed"),
    ],
)  # fmt: skip
def test_undecided_claims_are_counted_by_whether_they_have_all_their_seeds(verdicts, said):
    """u7/5: undecided, its last comparison with 7 pairs and 5 refused."""

    def judged(short):
        counts = [int(count) for count in short[1:].split("/")] if short[0] == "u" else [12]
        pairs, refused = (range(count) for count in (*counts, 0)[:2])
        verdict = {"u": "undecided", "c": "confirmed", "e": "equal", "n": "not run here"}[short[0]]
        whole, last = SimpleNamespace(pairs=range(12), refused=range(0)), SimpleNamespace(pairs=pairs, refused=refused)
        return SimpleNamespace(id="K1", verdict=verdict, found=[whole, last], follows=None)

    found = [judged(short) for short in verdicts.split()]
    study = SimpleNamespace(seeds={"full": 12}, sources=[])
    assert page._follows(found, study).sentence.endswith(f"\n\nOf {many(len(found), 'claim')}: {said}.")


def test_decided_claims_are_counted_by_source():
    """Not by the letters of their names: a control that a paper lacks is no claim of it."""
    of = {
        "ONE, table": ["undecided", "refuted"],
        "not in the paper": ["confirmed"],
        "ours": ["undecided", "not run here"],
        "TWO": ["confirmed", "refuted", "confirmed"],
    }
    found = [
        SimpleNamespace(id="K1", verdict=said, found=[], follows=None, claim=SimpleNamespace(paper=paper))
        for paper, verdicts in of.items()
        for said in verdicts
    ]
    study = SimpleNamespace(seeds={"full": 12}, sources=["ONE", "TWO", "ours", "THREE"])
    said = " Decided: of the 2 of ONE 1 refuted; of the 3 of TWO 2 confirmed and 1 refuted; of the 2 of ours none; "
    assert page._follows(found, study).sentence.endswith(f"{said}of the 1 of other sources 1 confirmed.")


def test_the_page_says_what_its_runs_are_of_and_how_it_measures(book):
    text = page.files(book, {}, {}, PAGE)[PAGE]
    assert "| `end` | smoothed" in text and "| `halfway` |" not in text  # nothing is measured so in this book
    about = type(book)(book.file, book.study.model_copy(update={"about": "Of small models."}))
    assert "reproduce.md).\n\nOf small models.\n\n## " in page.files(about, {}, {}, PAGE)[PAGE]


def test_of_an_open_question_it_is_told_what_both_sides_spent_alike(book):
    first = book.study.claims["K1"].comparisons[0].model_copy(update={"direction": "open", "matched": "responses"})
    claim = book.study.claims["K1"].model_copy(update={"comparisons": [first], "follows": {}})
    book = type(book)(book.file, book.study.model_copy(update={"claims": {"K1": claim}, "figures": {}}))
    assert "end reward: a beside b, equal responses:" in page.files(book, everywhere(pairs([0.1] * 3)), {}, PAGE)[PAGE]


def test_where_runs_are_of_several_processors_it_is_told_which_were_paired(book):
    book = type(book)(book.file, book.study.model_copy(update={"figures": {}}))
    kept = everywhere(pairs([0.1] * 12))
    assert "on a processor" not in page.files(book, kept, {}, PAGE)[PAGE]
    far = Machine(processor="another", compute=("cpu",), threads=1)
    more = {"another": {"a": {5: result("a", 5, reward=[0.6] * 5, machine=far)}}}
    text = page.files(book, kept | more, {}, PAGE)[PAGE]
    assert "12<br>on a processor |" in text
    assert "0..11 | 72 s | a processor; cpu" in text
    assert "5 | 72 s | another; cpu" in text


def test_arms_that_share_the_numbers_of_their_evaluation_are_named(book):
    study = book.study.model_copy(update={"figures": {}})
    told = "all by random numbers of seed 0", "intervals of held-out measures leave that chance out"
    plain = page.files(type(book)(book.file, study), everywhere(pairs([0.1] * 12)), {}, PAGE)[PAGE]
    assert not any(said in plain for said in told)
    arms = {**study.arms, "a": study.arms["a"].model_copy(update={"evaluation_seed": 0})}
    shared = type(book)(book.file, study.model_copy(update={"arms": arms}))
    assert all(said in page.files(shared, everywhere(pairs([0.1] * 12)), {}, PAGE)[PAGE] for said in told)


def test_cells_of_tables_cannot_break_them():
    section = Section("x", "X", "- a\n- b\n\n`c` < [d](#e)", ("one", "two"), [["a|b", "c\nd"]])
    chapter = Chapter(Section("w", "W", ""), [section], {"x": Picture("<svg/>", "a picture")})
    text = layout.markdown("T", "intro", [chapter], "page")
    assert "| a\\|b | c<br>d |" in text
    assert "![a picture](page-x.svg)" in text
    text = layout.html("T", "intro", [chapter])
    assert '<ul>\n<li>a</li>\n<li>b</li>\n</ul>\n<p><code>c</code> &lt; <a href="#e">d</a></p>' in text
    assert "<td>a|b</td>\n<td>c<br>d</td>" in text
    assert '<div class="wide" tabindex="0"><svg/></div>' in text


def test_a_heading_has_the_id_that_links_have():
    titles = {"Open questions": "open-questions", "A `code` & (B)?": "a-code-b", "Of 2 - 4 agents": "of-2-4-agents"}
    text = layout.html("T", "intro", [Chapter(Section("x", title, "")) for title in titles])
    assert [f'<h2 id="{id}">' in text for id in titles.values()] == [True] * 3
    table = Section("x", "X", "", ("a", "b|c"), [["1", "2"]])
    assert "<th>b|c</th>" in layout.html("T", "intro", [Chapter(table)])


def test_tags_in_texts_are_shown_as_text():
    section = Section("x", "<b>X</b>", '<script>x</script> [d](javascript:x) <img src="y">', ("<i>",), [["<script>"]])
    text = layout.html("<b>T</b>", "<style>", [Chapter(section)])
    assert text.startswith("<!doctype html>")
    page = text.partition("</style>")[2]
    assert "<title>&lt;b&gt;T&lt;/b&gt;</title>" in text
    assert "<p>&lt;script&gt;x&lt;/script&gt; [d](javascript:x) &lt;img src=&quot;y&quot;&gt;</p>" in page
    assert '<h2 id="bxb">&lt;b&gt;X&lt;/b&gt;</h2>' in page
    assert "<th>&lt;i&gt;</th>" in page and "<td>&lt;script&gt;</td>" in page
