"""The first screen: what was trained, what came of it, two curves, a problem before and after, alarms."""

import json

import pytest
from until import until

from coevolve.report.findings.opening import opening
from coevolve.report.page.build import write_page
from coevolve.report.runs import find
from coevolve.report.watch import serving
from coevolve.runs.folder import read_lines

pytestmark = pytest.mark.slow

PAIR = "() => document.querySelectorAll('#before-after .episode').length === 2"


def test_what_was_trained_is_told_by_the_recipe(run_of):
    [one] = find([run_of("cory")])
    assert opening([one]).trained == (
        "ann and bob (coevolve-tiny) learnt sentiment as pioneer and observer in the play chain by CORY: "
        "4 steps of 2 problems, seed 0."
    )


@pytest.mark.parametrize(("scheme", "width"), [("light", 1300), ("dark", 375)])
def test_the_first_screen(visit, page_of, run_of, scheme, width):
    """With a picture within the first screen, on a phone too, and nothing to scroll sideways."""
    tab = visit(page_of("cory"), "overview", width=width, color_scheme=scheme)
    [one] = find([run_of("cory")])
    said = opening([one])
    text = tab.inner_text("#overview-part")
    for sentence in (said.trained, said.came, "Too short to be watched for alarms."):
        assert sentence in text
    panels = tab.eval_on_selector_all("#front-curves .card", "all => all.map(one => one.dataset.panel)")
    assert panels == ["front-reward", "front-objective"]
    until(tab, "() => Boolean(document.querySelector('[data-panel=front-reward] .plot')?.data)")
    lines = "plot => plot.data.filter(trace => trace.showlegend !== false).map(trace => [trace.name, trace.y.length])"
    assert tab.evaluate(f"({lines})(document.querySelector('[data-panel=front-reward] .plot'))") == [
        ["team", 4], ["ann", 4], ["bob", 4],
    ]  # fmt: skip
    assert tab.locator("[data-panel=front-reward] .plot").bounding_box()["y"] < 600
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_a_problem_stands_before_and_after(visit, page_of, run_of):
    samples = read_lines(run_of("cory") / "samples.jsonl")
    problems = [line for line in samples if line["step"] == 0]
    tab = visit(page_of("cory"), "overview")
    until(tab, PAIR)
    for place, first in enumerate(problems):
        tab.select_option("#front-problem", str(place))
        last = next(line for line in samples if line["step"] == 4 and line["problem"] == first["problem"])
        until(tab, "text => document.querySelector('#before-after').textContent.includes(text)",
              arg=last["turns"][1]["text"])  # fmt: skip
        for line, episode in zip((first, last), tab.locator("#before-after .episode").all(), strict=True):
            shown = episode.text_content()
            assert all(turn["text"] in shown and turn["role"] in shown for turn in line["turns"])


def test_answers_are_on_the_first_screen_though_a_problem_is_long(visit, page_of):
    """Its text, tests and entry point had pushed them off it."""
    tab = visit(page_of("feedback"), "overview")
    until(tab, PAIR)
    assert tab.locator("#overview-part .problem").get_attribute("open") is None
    assert tab.locator("#before-after .turn").first.bounding_box()["y"] < 800


def test_of_a_tree_one_branch_is_read_and_the_others_are_folded(visit, page_of, run_of):
    """All of it is a dozen screens of a phone."""
    tab = visit(page_of("tree"), "overview", width=375)
    until(tab, PAIR)
    episode = tab.locator("#before-after .episode").first
    turns = read_lines(run_of("tree") / "samples.jsonl")[0]["turns"]
    seen = sum(turn.is_visible() for turn in episode.locator(".turn").all())
    assert (seen, episode.locator(".turn").count()) == (4, len(turns))
    episode.locator("details.others > summary").first.click()
    assert sum(turn.is_visible() for turn in episode.locator(".turn").all()) > seen


def test_what_is_the_same_for_all_is_one_line(visit, page_of):
    """Where all are paid the same, three lines on one another looked like one of a colour that no legend has."""
    tab = visit(page_of("writing"), "overview")
    until(tab, "() => Boolean(document.querySelector('[data-panel=front-reward] .plot')?.data)")
    plot = "document.querySelector('[data-panel=front-reward] .plot')"
    assert tab.evaluate(f"{plot}.data.map(trace => trace.name)") == ["team, ann, bob"]
    assert tab.evaluate(f"{plot}.layout.xaxis.dtick") == 1


def test_alarms_stand_on_the_first_screen(visit, tmp_path):
    folder = tmp_path / "bad-0"
    folder.mkdir()
    lines = [{"step": i, "reward": 1.0 + i / 10, "objective": 1.0 - i / 10, "turns": 1} for i in range(40)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tab = visit(write_page(find([folder]), tmp_path / "report.html"), "overview")
    assert "objective fell below its start (team)" in tab.inner_text(".alarms")
    assert "No held-out problem was played" in tab.inner_text("#overview-part")


def test_dialogues_that_do_not_fit_are_said_to_be_left_out(visit, run_of, tmp_path, monkeypatch):
    """And not that none were written."""
    monkeypatch.setattr("coevolve.report.page.build.LIMIT", 0)
    tab = visit(write_page(find([run_of("cory")]), tmp_path / "report.html"), "overview")
    until(tab, "() => document.querySelector('#overview-part').textContent.includes('The dialogues are left out')")
    tab.click("header nav a[href='#dialogues']")
    until(tab, "() => document.querySelector('#dialogues-part').innerText.includes('The dialogues are left out')")
    assert not tab.is_visible("#step")


def test_the_problem_shown_first_is_of_what_there_is_now(visit, tmp_path):
    """When only the start is known, no reward has changed yet, and the second of three would have been kept."""
    run = tmp_path / "mine-0"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 0, "turns": 1, "reward": 0.0}\n')

    def played(step, rewards):
        with (run / "samples.jsonl").open("a") as file:
            for number, reward in enumerate(rewards):
                turn = {"role": "solo", "policy": "ann", "round": 0, "text": "so", "reward": reward, "tokens": 1,
                        "finished": False, "heard": [], "pieces": ["so"]}  # fmt: skip
                joint = {"turns": [0], "rewards": [reward], "after": None}
                line = {"step": step, "problem": f"p{number}", "member": 0, "data": {}, "turns": [turn],
                        "joints": [joint], "parts": {}}  # fmt: skip
                file.write(json.dumps(line) + "\n")

    played(0, [0.0, 0.0, 0.0])
    with serving([run]) as address:
        tab = visit(address, "overview")
        until(tab, "() => document.querySelector('#front-problem').value === '1'")
        played(1, [2.0, 0.0, 3.0])
        (run / "metrics.jsonl").open("a").write('{"step": 1, "turns": 1, "reward": 1.0}\n')
        until(tab, "() => document.querySelector('#front-problem').value === '0'")  # whose change is the median
        tab.close()  # before the server, which it would ask again
