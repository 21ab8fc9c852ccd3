"""The report as a reader meets it: in a browser, on real runs of every kind of recipe."""

import json
from importlib import resources

import pytest
from families import FAMILIES
from until import until

from coevolve.report.page.build import write_page
from coevolve.report.runs import find
from coevolve.report.section import Plot, Section, Series
from coevolve.runs.folder import read_lines

pytestmark = pytest.mark.slow

DRAWN = "plot => plot.querySelectorAll('.scatterlayer path.js-line, .scatterlayer path.point, .barlayer path').length"
"""How many lines, points and bars a chart shows."""

PANELS = ("reward", "entropy", "grad_norm", "length", "eos_rate", "distinct_1", "tokens_per_second", "time")
"""Charts that every kind of run has."""

CENTRES = "all => all.map(one => [Number(one.getAttribute('cx')), Number(one.getAttribute('cy'))])"

PLOT = '(id) => document.querySelector(`[data-panel="${id}"] .plot`)'


def chart(tab, panel, wanted):
    """What plotly was given for this panel, as ``wanted`` (JavaScript over ``plot``) says."""
    until(tab, f"id => Boolean(({PLOT})(id)?.data)", arg=panel)
    return tab.evaluate(f"id => {{ const plot = ({PLOT})(id); return {wanted}; }}", panel)


def shows(tab):
    """run, source, step, problem and member of the dialogue that is open."""
    return json.loads(tab.get_attribute("#dialogues-part", "data-shows"))


def trained(tab):
    """The first problem of the first step of training, with the options unfolded."""
    tab.evaluate("document.querySelector('.options').open = true")
    tab.select_option("#source", "training")
    until(tab, "() => document.querySelector('#dialogues-part').dataset.shows.includes('training')")
    tab.fill("#step", "0")
    until(tab, "() => JSON.parse(document.querySelector('#dialogues-part').dataset.shows)[2] === 0")
    tab.select_option("#problem", "0")
    tab.focus("#dialogues-part")


def press(tab, key, changes=True):
    before = shows(tab)
    tab.keyboard.press(key)
    if changes:
        until(tab, "old => document.querySelector('#dialogues-part').dataset.shows !== old", arg=spelt(before))
    return shows(tab)


def spelt(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_run_is_drawn_and_its_dialogues_are_coloured(visit, page_of, run_of, family):
    tab = visit(page_of(family), "curves", height=9000)  # all charts are in the window
    tab.click("#more summary")
    until(tab, f"[...document.querySelectorAll('#curves-part .plot')].every({DRAWN})")
    drawn = tab.eval_on_selector_all("#curves-part .card", "all => all.map(one => one.dataset.panel)")
    assert set(PANELS) <= set(drawn)
    tab.click("header nav a[href='#dialogues']")
    trained(tab)
    dialogue_is_told(tab, read_lines(run_of(family) / "episodes.jsonl")[0])


def dialogue_is_told(tab, record):
    text = tab.text_content("#episode")
    for turn in record["turns"]:
        assert f"{turn['role']} played by {turn['policy']}" in text
        assert turn["text"] in text
        for note in (part for part in turn["heard"] if isinstance(part, str)):
            assert note in text
    assert tab.locator("#episode .token").count() == sum(turn["tokens"] for turn in record["turns"])
    assert tab.locator("#episode .joint").count() == len(record["joints"])
    assert tab.locator("#episode details.heard:not(.prompt)").count() == sum(
        isinstance(p, int) for t in record["turns"] for p in t["heard"]
    )
    tab.select_option("#measure", "logps")
    tab.wait_for_selector(".legend .rising")
    colours = tab.eval_on_selector_all(
        "#episode .token", "all => all.map(one => getComputedStyle(one).backgroundColor)"
    )
    surprise = [-p for turn in record["turns"] for p in turn["logps"]]
    assert colours[surprise.index(max(surprise))] != "rgba(0, 0, 0, 0)"
    assert len(set(colours)) > 1 or len(set(surprise)) == 1


def test_a_tree_is_indented_by_what_continues_what(visit, page_of, run_of):
    record = read_lines(run_of("tree") / "episodes.jsonl")[0]
    tab = visit(page_of("tree"), "dialogues")
    trained(tab)
    deep = sum(joint["after"] is not None for joint in record["joints"])
    assert deep and tab.locator("#episode .continued .joint").count() == deep
    root, leaf = (
        tab.locator("#episode .joint .verdict").first.bounding_box(),
        tab.locator("#episode .continued .verdict").first.bounding_box(),
    )
    assert leaf["x"] > root["x"]


def test_the_value_under_the_pointer_is_the_recorded_one(visit, page_of, run_of):
    line = read_lines(run_of("cory") / "metrics.jsonl")[2]
    tab = visit(page_of("cory"), "curves")
    x, y = chart(
        tab,
        "reward",
        "(() => { const box = plot.getBoundingClientRect(), {xaxis, yaxis} = plot._fullLayout;"
        " return [box.x + xaxis._offset + xaxis.l2p(2), box.y + yaxis._offset + yaxis._length / 2]; })()",
    )
    tab.mouse.move(x, y)
    tab.wait_for_selector('[data-panel="reward"] .hoverlayer .legend')
    read = tab.text_content('[data-panel="reward"] .hoverlayer')
    for name in ("reward", "agents/ann/reward", "agents/bob/reward"):
        assert f"{line[name]:.4g}".replace("-", "−") in read
    assert "bob plays pioneer, ann plays observer" in read  # the roles were exchanged at this step


def test_a_token_under_the_pointer_tells_its_numbers(visit, page_of, run_of):
    turn = read_lines(run_of("cory") / "episodes.jsonl")[0]["turns"][0]
    tab = visit(page_of("cory"), "dialogues")
    trained(tab)
    tab.hover("#episode .token >> nth=1")
    tip = tab.inner_text("#tip")
    assert json.dumps(turn["pieces"][1]) in tip
    assert f"advantage: {turn['adv'][1]:.4g}" in tip
    assert f"−log p, nats: {-turn['logps'][1]:.4g}" in tip
    tab.check("#numbers")
    assert f"{turn['adv'][1]:.4g}" in tab.inner_text("#episode .turn table >> nth=0")


def test_controls_change_what_is_drawn(visit, page_of, run_of):
    lines = read_lines(run_of("cory") / "metrics.jsonl")
    tab = visit(page_of("cory"), "curves")
    team = "plot.data.find(trace => trace.name === 'team')"
    assert chart(tab, "reward", f"{team}.x") == [0, 1, 2, 3]
    tab.select_option("#axis", "turns")
    assert chart(tab, "reward", f"{team}.x") == [4, 8, 12, 16]  # two problems, two roles
    tab.select_option("#axis", "updates")
    assert chart(tab, "reward", f"{team}.x") == [8, 16, 24, 32]  # two agents, four epochs of one mini-batch
    tab.fill("#smooth", "0.5")
    raw = [line["reward"] for line in lines]
    smooth = raw[:1]
    for value in raw[1:]:
        smooth.append(0.5 * smooth[-1] + 0.5 * value)
    faint, strong = chart(tab, "reward", "plot.data.filter(trace => trace.name === 'team').map(trace => trace.y)")
    assert faint == pytest.approx(raw, rel=1e-4) and strong == pytest.approx(smooth, rel=1e-4)
    assert chart(tab, "reward", "plot.layout.yaxis.type") == "linear"
    tab.fill("#smooth", "0")
    tab.check("#log")
    assert chart(tab, "reward", "plot.layout.yaxis.type") == "log"
    below = sum(v <= 0 for v in raw) + sum(line[f"agents/{p}/reward"] <= 0 for line in lines for p in ("ann", "bob"))
    note = tab.inner_text('[data-panel="reward"] .lost') if below else ""
    assert note.startswith(f"{below} value") == bool(below)
    marks = "plot.data.filter(trace => trace.name === 'roles').length"
    assert chart(tab, "reward", marks) == 2  # the dotted lines, and who plays what at every step
    tab.uncheck("#roles")
    assert chart(tab, "reward", marks) == 0


def test_dialogues_by_keyboard(visit, page_of, run_of):
    lines = read_lines(run_of("cory") / "episodes.jsonl")
    first = [line for line in lines if line["step"] == 0]
    mean = {one["problem"]: sum(t["reward"] for t in one["turns"]) / 2 for one in first}
    tab = visit(page_of("cory"), "dialogues")
    trained(tab)
    assert shows(tab) == ["cory-0", "training", 0, first[0]["problem"], 0]
    assert press(tab, "ArrowDown")[3] == first[1]["problem"]
    assert press(tab, "ArrowUp")[3] == first[0]["problem"]
    best, worst = max(mean, key=mean.get), min(mean, key=mean.get)
    assert press(tab, "b", changes=best != first[0]["problem"])[3] == best
    assert press(tab, "w", changes=best != worst)[3] == worst
    assert press(tab, "r", changes=False)[3] in mean
    assert press(tab, "ArrowRight")[2] == 1
    assert press(tab, "ArrowLeft")[2] == 0


def test_search_finds_what_was_said_and_enter_opens_it(visit, page_of, run_of):
    tab = visit(page_of("cory"), "dialogues")
    record = read_lines(run_of("cory") / "episodes.jsonl")[-1]
    turn = record["turns"][1]
    tab.focus("#dialogues-part")
    tab.keyboard.press("/")
    tab.keyboard.type(turn["text"].strip().upper())
    tab.wait_for_selector("#hits li")
    assert f"step {record['step']}, {turn['role']}" in tab.inner_text("#hits")
    tab.keyboard.press("Enter")
    until(tab, "() => document.activeElement.id === 'dialogues-part'")
    assert shows(tab) == ["cory-0", "training", record["step"], record["problem"], record["member"]]
    tab.fill("#search", "nobody ever said this")
    until(tab, "() => document.querySelector('.search .note').textContent === '0 hits'")


def test_a_held_out_problem_is_followed_through_training(visit, page_of, run_of):
    samples = read_lines(run_of("cory") / "samples.jsonl")
    same = [line for line in samples if line["problem"] == samples[1]["problem"]]
    assert [line["step"] for line in same] == [0, 2, 4]
    tab = visit(page_of("cory"), "dialogues")
    assert shows(tab)[:3] == ["cory-0", "held_out", 4]  # the end of the training, beside its start
    tab.focus("#dialogues-part")
    press(tab, "ArrowDown")
    last = tab.locator("#episode .episode").all()
    for line, episode in zip((same[0], same[2]), last, strict=True):
        assert line["turns"][0]["text"] in episode.text_content()
    tab.evaluate("document.querySelector('.options').open = true")
    tab.select_option("#beside", "before")
    tab.focus("#dialogues-part")
    assert press(tab, "ArrowLeft")[2:4] == [2, same[1]["problem"]]
    before, now = tab.locator("#episode .episode").all()
    for line, episode in ((same[0], before), (same[1], now)):
        assert line["turns"][0]["text"] in episode.text_content()
    missing = tab.locator("#measure option[value=adv]")
    assert missing.is_disabled() and "nothing is learnt from these" in missing.inner_text()


def test_the_prompt_is_shown_as_it_was_sent(visit, page_of, run_of):
    samples = read_lines(run_of("cory") / "samples.jsonl")
    [turn, *_] = next(line for line in samples if line["step"] == 4)["turns"]
    tab = visit(page_of("cory"), "dialogues")
    assert shows(tab)[2] == 4
    prompt = tab.locator("#episode .episode >> nth=1").locator(".prompt >> nth=0")
    prompt.locator("summary").click()
    assert prompt.locator("blockquote").text_content() == turn["prompt"] != ""


WEB = resources.files("coevolve.report").joinpath("page").joinpath("web")


@pytest.mark.parametrize(
    ("before", "after", "gone", "fresh"),
    [
        ("the film was dull", "the film was very good", ["dull"], ["very", "good"]),
        ("a b c d", "b x d", ["a", "c"], ["x"]),
        ("", "all new", [], ["all", "new"]),
        ("same  same", " same same ", [], []),
    ],
)
def test_words_that_changed(browser, before, after, gone, fresh):
    tab = browser.new_page()
    code = WEB.joinpath("diff.js").read_text("utf-8")
    found = tab.evaluate(f"([a, b]) => {{ {code}; return changedWords(a, b); }}", [before, after])
    tab.close()
    assert [
        [text[start:end] for start, end in places] for text, places in zip((before, after), found, strict=True)
    ] == [
        gone,
        fresh,
    ]


def test_words_that_changed_are_marked_in_the_dialogue(visit, page_of, run_of):
    samples = read_lines(run_of("cory") / "samples.jsonl")
    same = [line["turns"][0] for line in samples if line["problem"] == samples[0]["problem"] and line["step"] in (0, 4)]
    gone, fresh = (set(a["text"].split()) - set(b["text"].split()) for a, b in (same, same[::-1]))
    tab = visit(page_of("cory"), "dialogues")
    for side, tag, words in ((0, "del", gone), (1, "ins", fresh)):
        marked = tab.locator("#episode .episode").nth(side).locator(".turn").first.locator(tag).all_text_contents()
        assert all(word in "".join(marked) for word in words)


@pytest.mark.parametrize("family", ["tree", "discussion"])
def test_who_heard_whom_is_drawn(visit, page_of, run_of, family):
    record = read_lines(run_of(family) / "episodes.jsonl")[0]
    tab = visit(page_of(family), "dialogues")
    trained(tab)
    assert tab.locator("#episode .graph circle").count() == len(record["turns"])
    heard = sum(isinstance(part, int) for turn in record["turns"] for part in turn["heard"])
    assert heard and tab.locator("#episode .graph path.heard").count() == heard
    places = tab.eval_on_selector_all("#episode .graph circle", CENTRES)
    assert len(set(map(tuple, places))) == len(places)
    for number, turn in enumerate(record["turns"]):
        assert all(places[part][0] < places[number][0] for part in turn["heard"] if isinstance(part, int))


def test_marks_say_what_they_mean_in_a_line_each(visit, page_of):
    tab = visit(page_of("cory"), "dialogues", width=375)
    trained(tab)
    assert tab.locator(".legend").count() == 1  # an episode that stands alone has no words to compare
    assert tab.inner_text(".legend").startswith("advantage")
    assert tab.locator(".legend .range").bounding_box()["height"] < 30
    tab.select_option("#source", "held_out")
    tab.wait_for_selector(".legend del")
    assert [tab.inner_text(f".legend {tag}") for tag in ("del", "ins")] == ["only at the start", "only after 4 steps"]


def test_a_reward_of_many_parts_is_folded(visit, page_of, run_of):
    record = read_lines(run_of("feedback") / "episodes.jsonl")[0]
    tab = visit(page_of("feedback"), "dialogues", width=375)
    trained(tab)
    folded = tab.locator("#episode details", has_text=f"{len(record['parts'])} parts of the reward").first
    assert folded.locator(".chip").count() == len(record["parts"]) > 4
    assert not folded.locator(".chip").first.is_visible()


@pytest.mark.parametrize(("family", "exchanged"), [("cory", True), ("writing", False)])
def test_exchanges_are_spoken_of_where_roles_are_exchanged(visit, page_of, family, exchanged):
    tab = visit(page_of(family), "curves")
    assert tab.is_visible("#roles") == exchanged
    tab.click("header nav a[href='#overview']")
    tab.wait_for_selector("#overview-part:not([hidden])")
    assert tab.is_visible("text=Dotted lines") == exchanged


def test_roles_have_colours_of_their_own(visit, page_of):
    tab = visit(page_of("cory"), "curves")
    colours = "plot.data.filter(trace => trace.name !== 'roles').map(trace => trace.line.color)"
    agents, roles = (chart(tab, panel, colours) for panel in ("reward", "reward by role"))
    assert len(set(agents) | set(roles)) == len(agents) + len(roles) == 5


def test_what_is_printed_is_drawn(visit, page_of):
    tab = visit(page_of("cory"), "curves")
    empty = "[...document.querySelectorAll('#panels .plot')].filter(plot => !plot.data).length"
    assert tab.evaluate(empty) > 0  # they wait to be scrolled to
    tab.pdf()
    assert tab.evaluate(empty) == 0


def test_a_run_without_kl_says_so(visit, page_of):
    tab = visit(page_of("writing"), "dialogues")
    trained(tab)
    missing = tab.locator("#measure option[value=kl]")
    assert missing.is_disabled() and "this run has none" in missing.inner_text()


def test_light_and_dark(visit, page_of):
    paper = "() => getComputedStyle(document.body).backgroundColor"
    ink = "plot.layout.font.color"
    light, dark = (visit(page_of("cory"), "curves", color_scheme=scheme) for scheme in ("light", "dark"))
    assert light.evaluate(paper) != dark.evaluate(paper)
    as_dark = chart(dark, "reward", ink)
    assert chart(light, "reward", ink) != as_dark
    light.click("#theme")
    assert light.evaluate(paper) == dark.evaluate(paper)
    until(light, f"ink => ({PLOT})('reward').layout.font.color === ink", arg=as_dark)


def test_options_say_what_they_are_on_a_phone(visit, page_of):
    """A box to tick stood there without a word."""
    tab = visit(page_of("cory"), "dialogues", width=375)
    tab.click(".options summary")
    words = tab.locator(".options label > span")
    assert words.all_inner_texts() == ["tokens by", "beside", "numbers as tables", "search"]
    assert all(one.bounding_box()["width"] > 20 for one in words.all())


def test_there_is_no_half_step(visit, page_of):
    tab = visit(page_of("cory"), "findings")
    until(tab, "() => Boolean(document.querySelector('#articles .plot')?.data)")
    assert tab.evaluate("document.querySelector('#articles .plot').layout.xaxis.dtick") == 1


@pytest.mark.parametrize("family", ["tree", "cory"])
def test_a_phone_never_scrolls_sideways(visit, page_of, family):
    tab = visit(page_of(family), width=375, height=700)
    tab.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")
    for part in ("overview", "findings", "curves", "dialogues", "recipes"):
        tab.click(f"header nav a[href='#{part}']")
        tab.wait_for_selector(f"#{part}-part h2")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 375


def test_runs_are_overlaid_and_can_be_taken_out(visit, run_of, tmp_path):
    """Two seeds of one recipe and one of another: a mean for the first two."""
    runs = [tmp_path / name for name in ("pair-0", "pair-1", "other-0")]
    for run, seed, task in zip(runs, (0, 1, 0), ("a", "a", "b"), strict=True):
        run.mkdir()
        (run / "recipe.yaml").write_text(json.dumps({"task": task, "seed": seed}))
        lines = [{"step": i, "cast": {"solo": "ann"}, "turns": 1, "reward": float(i + seed)} for i in range(3)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tab = visit(write_page(find(runs), tmp_path / "report.html"), "curves")
    drawn = "plot.data.map(trace => [trace.name, trace.y])"
    seeds = [["pair, seed 0", [0, 1, 2]], ["pair, seed 1", [1, 2, 3]]]
    read = "plot.data.find(trace => trace.name === 'pair').text"
    assert chart(tab, "reward", read) == ["0, 1", "1, 2", "2, 3"]  # the seeds, under the pointer
    assert chart(tab, "reward", drawn) == [*seeds, ["pair", [0.5, 1.5, 2.5]], ["other", [0, 1, 2]]]
    tab.uncheck("#runs input[value=pair-1]")
    assert chart(tab, "reward", drawn) == [["pair", [0, 1, 2]], ["other", [0, 1, 2]]]


def test_every_step_is_in_the_table_though_some_have_no_update(visit, tmp_path):
    run = tmp_path / "mine-0"
    run.mkdir()
    lines = [
        {"step": i, "cast": {"solo": "ann"}, "turns": 1, "reward": i, "agents/ann/updates": i // 3} for i in range(5)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tab = visit(write_page(find([run]), tmp_path / "report.html"), "curves")
    tab.select_option("#axis", "updates")
    tab.click("[data-panel=reward] .numbers summary")
    tab.wait_for_selector("[data-panel=reward] .numbers table")  # "toggle" comes after the click
    rows = tab.locator("[data-panel=reward] .numbers tbody tr").all_inner_texts()
    assert [row.split("\t")[:2] for row in rows] == [[x, str(i)] for i, x in enumerate("00012")]


def test_a_finding_is_a_sentence_a_table_and_a_plot(visit, run_of, tmp_path, monkeypatch):
    band = Series("band", [0, 1], [1.0, 2.0], low=[0.5, 1.5], high=[1.5, 2.5])
    points = Series("points", [0.5], [1.5], low=[1.25], high=[2.5], labels=["<here>"], points=True)
    section = Section("one", "One <finding>", "It is so.", ("run", "reward"), [("a", 0.123456), ("b", None)],
                      Plot("cost", "gain", [band, points]))  # fmt: skip
    monkeypatch.setattr("coevolve.report.page.build.findings", lambda runs: [section])
    tab = visit(write_page(find([run_of("cory")]), tmp_path / "report.html"))
    assert tab.inner_text("#one h3") == "One <finding>"
    assert tab.inner_text("#one .sentence") == "It is so."
    rows = tab.eval_on_selector_all("#one tr", "all => all.map(row => [...row.cells].map(cell => cell.textContent))")
    assert rows == [["run", "reward"], ["a", "0.1235"], ["b", "–"]]
    until(tab, "Boolean(document.querySelector('#one .plot')?.data)")
    drawn = "document.querySelector('#one .plot').data.map(trace => [trace.name, trace.y])"
    assert tab.evaluate(f"{drawn}.filter(([name]) => name)") == [["band", [1, 2]], ["points", [1.5]]]
    assert tab.evaluate(f"{drawn}.filter(([name]) => !name)") == [[None, [0.5, 1.5]], [None, [1.5, 2.5]]]
    bars = tab.evaluate("document.querySelector('#one .plot').data.at(-1).error_y")
    assert (bars["array"], bars["arrayminus"]) == ([1.0], [0.25])
    assert tab.locator("#one .errorbar").count() == 1
    tab.click("#one .numbers summary")
    tab.wait_for_selector("#one .numbers table")
    points = "all => all.map(row => [...row.cells].map(cell => cell.textContent))"
    assert tab.eval_on_selector_all("#one .numbers tr", points) == [
        ["of", "cost", "gain", "low", "high"],
        ["band", "0", "1", "0.5", "1.5"],
        ["band", "1", "2", "1.5", "2.5"],
        ["points", "0.5", "1.5", "1.25", "2.5"],
    ]


def test_text_of_a_run_is_never_html(visit, tmp_path):
    evil = "</script><img src=x onerror='window.caught=1'><script>window.caught=1</script>"
    run = tmp_path / "evil-0"
    run.mkdir()
    policy = "<img src=x onerror='window.caught=1'>"
    line = {"step": 0, "cast": {"solo": policy}, "turns": 1, "reward": 1.0, f"agents/{policy}/reward": 1.0}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(line | {"step": 1}) + "\n")
    (run / "recipe.yaml").write_text(json.dumps({"task": {"name": evil}}))
    turn = {"role": evil, "policy": policy, "round": 0, "text": evil, "reward": 1.0, "tokens": 1, "finished": False,
            "heard": [evil], "pieces": [evil], "logps": [-1.0]}  # fmt: skip
    record = {"step": 0, "problem": evil, "member": 0, "data": {evil: evil}, "turns": [turn], "parts": {evil: 1.0},
              "joints": [{"turns": [0], "rewards": [1.0], "after": None}]}  # fmt: skip
    (run / "episodes.jsonl").write_text(json.dumps(record) + "\n")
    tab = visit(write_page(find([run]), tmp_path / "report.html"), "dialogues")
    assert tab.text_content(".tokens") == evil
    tab.evaluate("document.querySelector('.options').open = true")
    tab.fill("#search", "onerror")
    tab.wait_for_selector("#hits li")
    for part in ("overview", "findings", "curves", "recipes"):
        tab.click(f"header nav a[href='#{part}']")
    chart(tab, "reward", "1")
    assert tab.evaluate("window.caught") is None
    assert tab.locator("main img").count() == 0


def test_the_page_asks_nobody_for_anything(page_of):
    page = page_of("cory").read_text()
    start = page[: page.index('id="plotly"')] + page[page.index('<script type="module">') :]
    assert "default-src 'none'" in start
    assert "http" not in start.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")  # a namespace's name
