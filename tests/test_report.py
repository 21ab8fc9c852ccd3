"""Curves, progress and dialogues, from metrics written by hand."""

import io
import json
import os

import pytest

from coevolve import cli
from coevolve.console import console
from coevolve.progress import progress
from coevolve.report.evaluation import show_evaluation
from coevolve.report.findings.ends import footnote, rise, sentence
from coevolve.report.plot import picture, reward_kl
from coevolve.report.runs import Run, grouped, read
from coevolve.report.samples import show_samples
from coevolve.report.section import Plot, Series


def line(step, reward=1.0, kl=0.5):
    return {
        "step": step,
        "cast": {"first": "ann", "second": "bob"},
        "reward": reward,
        "kl": kl,
        "objective": reward - 0.3 * kl,
    } | {f"agents/{name}/{key}": reward for name in ("ann", "bob") for key in ("reward", "kl", "objective")}


def write_run(folder, steps=5, **values):
    """A run whose recipe is named and seeded as its folder: ``cory-1`` is seed 1 of cory."""
    folder.mkdir(parents=True)
    name, _, seed = folder.name.rpartition("-")
    (folder / "recipe.yaml").write_text(f"task: {name}\nseed: {seed}\n")
    text = "".join(json.dumps(line(i, **values)) + "\n" for i in range(steps))
    (folder / "metrics.jsonl").write_text(text)
    return folder


def curves(runs, tmp_path, monkeypatch):
    """The labelled lines (label -> y values) of each panel, and the number of bands."""
    from matplotlib.axes import Axes

    drawn, bands = [], []
    plot, fill = Axes.plot, Axes.fill_between
    monkeypatch.setattr(
        Axes, "plot", lambda axis, x, y, *a, **k: drawn.append((k["label"], list(y))) or plot(axis, x, y, *a, **k)
    )
    monkeypatch.setattr(
        Axes,
        "fill_between",
        lambda axis, x, low, high, **k: bands.append((list(low), list(high))) or fill(axis, x, low, high, **k),
    )
    reward_kl(runs, tmp_path / "deep" / "out.png")
    assert (tmp_path / "deep" / "out.png").read_bytes().startswith(b"\x89PNG")
    return drawn, bands


def test_one_run_is_drawn_with_its_policies(tmp_path, monkeypatch):
    drawn, bands = curves([write_run(tmp_path / "cory-0")], tmp_path, monkeypatch)
    assert [label for label, _ in drawn] == ["cory", "ann", "bob"] * 3
    assert drawn[0][1] == [1.0] * 5
    assert drawn[6][1] == pytest.approx([0.85] * 5)
    assert bands == []


def test_parts_of_the_reward_have_a_panel_each(tmp_path, monkeypatch):
    run = write_run(tmp_path / "pair-0")
    more = {f"parts/{name}": 0.25 for name in "abc"}  # the last of five is not drawn
    lines = [json.loads(text) | {"parts/return": 0.25, "parts/ungated_return": 0.75} | more for text in run_lines(run)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    drawn, _ = curves([run, write_run(tmp_path / "alone-0")], tmp_path, monkeypatch)
    assert [(label, y) for label, y in drawn if y[0] in (0.25, 0.75)] == [
        ("pair", [value] * 5) for value in (0.25, 0.75, 0.25, 0.25)
    ]


def run_lines(run):
    return (run / "metrics.jsonl").read_text().splitlines()


def test_an_evaluation_with_parts_prints_them(capsys):
    row = {"weights": "start", "setting": "team", "role": "all", "policy": "a+b", "decoding": "greedy", "reward": 1.5}
    row |= {"reward_se": 0.1, "tokens": 40.0, "seconds": 0.25, "parts/return": 0.5, "parts/words_1": 12.0}
    show_evaluation({"checkpoint": 3, "problems": 4, "max_new_tokens": 8, "rows": [row]})
    lines = [text.split() for text in capsys.readouterr().out.splitlines()]
    assert ["return", "0.500"] in lines
    assert ["words_1", "12.000"] in lines
    assert ["tokens", "per", "problem", "and", "sample", "40.0"] in lines


def test_an_evaluation_prints_what_was_gained(capsys):
    row = {"weights": "trained", "setting": "team", "role": "solo", "policy": "ann", "decoding": "greedy"}
    row |= {"reward": 1.5, "reward_se": 0.1, "gain": 0.5, "gain_se": 0.25}
    show_evaluation({"checkpoint": 3, "problems": 4, "max_new_tokens": 8, "rows": [row]})
    [line] = [text for text in capsys.readouterr().out.splitlines() if "trained" in text]
    assert line.split()[5:11] == ["1.50", "±", "0.10", "+0.50", "±", "0.25"]


def test_of_one_agent_alone_and_the_team_are_told_once(capsys):
    row = {"weights": "start", "role": "solo", "policy": "ann", "decoding": "greedy", "reward": 1.5}
    rows = [row | {"setting": "team", "seconds": 1.0}, row | {"setting": "alone", "seconds": 2.0}]
    about = {"checkpoint": 3, "problems": 4, "max_new_tokens": 8}
    show_evaluation({**about, "rows": rows})
    assert "alone" not in capsys.readouterr().out
    for others in (
        [row | {"setting": "alone", "reward": 1.4}],  # its team has several turns
        [row | {"setting": "team", "role": "observer", "policy": "bob"}, rows[1]],
    ):
        show_evaluation({**about, "rows": [rows[0], *others]})
        assert "alone" in capsys.readouterr().out


def test_seeds_of_one_recipe_become_a_mean_with_a_standard_error(tmp_path, monkeypatch):
    runs = [write_run(tmp_path / "cory-0", reward=1.0), write_run(tmp_path / "cory-1", steps=3, reward=3.0)]
    drawn, bands = curves([*runs, write_run(tmp_path / "ppo-0")], tmp_path, monkeypatch)
    teams = [(label, y) for label, y in drawn if label][:2]
    assert teams == [("cory (2 seeds, ±SE)", [2.0] * 3), ("ppo", [1.0] * 5)]  # only steps that both seeds have
    assert bands[0] == ([1.0] * 3, [3.0] * 3)  # deviation sqrt(2), over sqrt(2) runs: 1


def test_runs_without_a_recipe_are_drawn_side_by_side(tmp_path, monkeypatch):
    runs = [write_run(tmp_path / name, reward=reward) for name, reward in (("cory-0", 1.0), ("ppo-0", 2.0))]
    for run in runs:
        (run / "recipe.yaml").unlink()
    drawn, bands = curves(runs, tmp_path, monkeypatch)
    assert [(label, y) for label, y in drawn if label][:2] == [("cory-0", [1.0] * 5), ("ppo-0", [2.0] * 5)]
    assert bands == []


def test_a_section_is_drawn_with_bands_and_points(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn = []
    plot = Axes.plot
    monkeypatch.setattr(
        Axes, "plot", lambda axis, x, y, style, **k: drawn.append((k["label"], style)) or plot(axis, x, y, style, **k)
    )
    line = Series("mean", [0, 1, 2], [1.0, None, 2.0], [0.5, None, 1.0], [1.5, None, 3.0])
    picture(Plot("step", "reward", [line, Series("seeds", [0], [1.0], points=True)]), tmp_path / "one.png")
    assert drawn == [("mean", "-"), ("seeds", "o")]
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_seeds_differ_in_neither_the_order_of_roles_nor_checkpoints_that_change_numbers(tmp_path):
    def groups(*recipes):
        runs = [Run(tmp_path, "mine", recipe | {"seed": seed}, []) for seed, recipe in enumerate(recipes)]
        return len(grouped(runs))

    one, other = {"pioneer": "ann", "observer": "bob"}, {"observer": "bob", "pioneer": "ann"}
    assert groups({"roles": one}, {"roles": one}) == 1
    assert groups({"roles": one}, {"roles": other}) == groups({"cast": [one]}, {"cast": [other]}) == 2
    for staleness, number in ((0, 1), (1, 2)):
        engine = {"engine": {"name": "vllm", "staleness": staleness}}
        assert groups(engine | {"save_every": 2}, engine | {"save_every": 3}) == number


def test_a_gap_in_the_metrics_is_told(tmp_path):
    run = write_run(tmp_path / "mine-0", steps=3)
    first, _, last = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(first + last)
    with pytest.warns(UserWarning, match=r"metrics\.jsonl lacks step 1; bring it back"):
        read(run)


def test_a_run_without_metrics_is_named(tmp_path):
    with pytest.raises(ValueError, match="nothing-0 has no metrics yet"):
        reward_kl([tmp_path / "nothing-0"], tmp_path / "out.png")


def test_the_rise_is_stated_in_standard_errors():
    lines = [line(i, reward=r, kl=0.0) for i, r in enumerate([0.0, 2.0, *[1.0] * 16, 4.0, 6.0])]
    # Two steps at each end: means 1 and 5, variances 2 and 2; the error is sqrt(2/2 + 2/2), and 4 / sqrt(2) = 2.8
    moved = "1.00 -> 5.00 (+2.8 standard errors)"
    assert rise(lines) == f"reward {moved}, objective {moved}; means of the first and the last 2 of 20 steps"
    apart = "+2.8 and +2.8 standard errors apart; clear from 4.3 on"  # t of two degrees of freedom
    assert footnote(lines) == f"Means of the first and the last 2 of 20 steps, {apart}."
    not_clear = "did not clearly move, from 1.00 to 5.00"
    assert sentence(lines) == f"The reward {not_clear}, and the objective {not_clear}."
    surer = [line(i, reward=r, kl=0.0) for i, r in enumerate([0.5, 1.5, *[1.0] * 16, 4.5, 5.5])]
    assert sentence(surer) == "The reward rose from 1.00 to 5.00, and the objective rose from 1.00 to 5.00."
    assert footnote(lines[:2]) == ""
    assert rise(lines[:2]) == "reward 0 -> 2.00, objective 0 -> 2.00"  # one step has no error
    assert rise([{"step": 0, "reward": None}]) == "no turn was scored"


def test_terminal_page_and_table_say_the_same_start_and_end(tmp_path):
    from coevolve.report.findings import findings
    from coevolve.report.findings.opening import opening
    from coevolve.report.runs import find

    run = write_run(tmp_path / "cory-0", steps=40)
    lines = [one | {"reward": 1.0 + one["step"] / 10} for one in map(json.loads, run_lines(run))]
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    [one] = find([run])
    assert rise(one.lines).startswith("reward 1.15 -> 4.75 (")
    assert "reward rose from 1.15 to 4.75" in opening([one]).came
    row = dict(zip(findings([one])[0].columns, findings([one])[0].rows[0], strict=True))
    assert (row["reward at start"], row["final reward"]) == pytest.approx((1.15, 4.75))


def test_progress_is_plain_lines_without_a_terminal():
    out = io.StringIO()
    with progress(3, console(file=out, width=40)) as show:
        for step in range(3):
            show(line(step) | {"tokens_per_second": 1234.5})
    said = out.getvalue().splitlines()
    assert said[0] == "step 1/3  reward 1  KL 0.5  objective 0.85  tok/s 1234"
    assert said[2].startswith("step 3/3") and said[2].endswith("ETA 0 s")


def test_progress_of_many_steps_is_ten_lines(monkeypatch):
    now = iter(range(0, 10_000))
    monkeypatch.setattr("coevolve.progress.time.monotonic", lambda: float(next(now)))
    out = io.StringIO()
    with progress(40, console(file=out, width=40)) as show:
        for step in range(40):
            show(line(step))
    assert [said.split()[1] for said in out.getvalue().splitlines()] == ["1/40", *(f"{4 * i}/40" for i in range(1, 11))]


def test_progress_of_slow_steps_is_a_line_a_minute(monkeypatch):
    now = iter(range(0, 100_000, 40))
    monkeypatch.setattr("coevolve.progress.time.monotonic", lambda: float(next(now)))
    out = io.StringIO()
    with progress(1000, console(file=out, width=40)) as show:
        for step in range(9):
            show(line(step))
    assert [said.split()[1] for said in out.getvalue().splitlines()] == [f"{i}/1000" for i in (1, 3, 5, 7, 9)]


def test_progress_is_live_on_a_terminal():
    out = io.StringIO()
    with progress(3, console(file=out, width=120, force_terminal=True)) as show:
        show(line(2))
    assert "3/3" in out.getvalue()
    assert "objective 0.85" in out.getvalue()


TURN = {"round": 0, "finished": True, "pieces": []}
JUDGED = {"joints": [], "parts": {}}


def test_dialogues_stand_side_by_side(tmp_path):
    def turns(text, reward):
        return [{**TURN, "role": "pioneer", "policy": "ann", "text": text, "reward": reward, "heard": []}]

    ends = {"p0": ("so good", 2.0), "p1": ("much better", 9.0), "p2": ("much worse", -9.0)}
    rows = [
        {"step": i, "problem": p, "member": 0, "data": {}, "turns": t, **JUDGED}
        for p, end in ends.items()
        for i, t in [(0, turns("so\ndull [b]", -1.5)), (4, turns("so so", 1.0)), (8, turns(*end))]
    ]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = io.StringIO()
    show_samples(tmp_path, console(file=out))
    text = out.getvalue()
    assert text.count("problem p0") == 1  # neither the best nor the worst
    assert "p1" not in text and "p2" not in text
    row = next(one for one in text.splitlines() if "dull" in one)
    assert row.index("pioneer (ann, -1.50): so dull [b]") < row.index("pioneer (ann, +2.00): so good")


def test_a_dialogue_shows_what_a_turn_was_told(tmp_path):
    first = {**TURN, "role": "short", "policy": "ann", "text": "so", "reward": 1.0, "heard": []}
    second = first | {"text": "so much", "heard": [0, "Write\nmore."]}
    row = {"step": 0, "problem": "p0", "member": 0, "data": {}, "turns": [first, second], **JUDGED}
    (tmp_path / "samples.jsonl").write_text(json.dumps(row) + "\n")
    out = io.StringIO()
    show_samples(tmp_path, console(file=out))
    lines = [" ".join(text.split()) for text in out.getvalue().splitlines()]
    assert lines.index("[Write more.]") == lines.index("short (ann, +1.00): so much") - 1


def test_models_that_are_pre_trained_beside_runs_have_no_report(tmp_path):
    from coevolve.report.runs import find

    trained, other = tmp_path / "cory-0", tmp_path / "pretrain-0"
    for folder, recipe, line in (
        (trained, "seed: 0", {"step": 0, "reward": 1.0}),
        (other, "kind: causal_lm", {"loss": 2}),
    ):
        folder.mkdir()
        (folder / "recipe.yaml").write_text(recipe)
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert [run.name for run in find([tmp_path])] == ["cory-0"]
    with pytest.raises(ValueError, match="pretrain-0 pre-trains a model, of which there is no report"):
        find([other])
    (trained / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match="the runs in it pre-train models, of which there is no report"):
        find([tmp_path])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "run", "-o", "file/x.html"], "--output: file is a file; choose another folder"),
        (["report", "run", "-o", "d.html"], "--output d.html is a folder; name a file"),
        (["sweep", "quickstart", "seed=0..1", "--output", "file/x"], "output: file is a file; choose another folder"),
        (
            ["train", "quickstart", "--dry-run", "output_dir=file/x"],
            "output_dir: file is a file; choose another folder",
        ),
        (["train", "quickstart", "output_dir=/sealed/x"], "output_dir: /sealed may not be written; choose another fol"),
        (["report", "run", "-o", "/sealed/x.html"], "--output: /sealed may not be written; choose another folder"),
    ],
)
def test_where_nothing_can_be_written_is_told(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "d.html").mkdir()
    (tmp_path / "sealed").mkdir()
    access = os.access  # the superuser's tests may write everywhere
    monkeypatch.setattr(os, "access", lambda path, mode: "sealed" not in str(path) and access(path, mode))
    assert cli.main([word.replace("/sealed", str(tmp_path / "sealed")) for word in words]) == 2
    said = said.replace("/sealed", str(tmp_path / "sealed"))
    assert said in capsys.readouterr().err
