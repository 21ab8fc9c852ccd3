"""Sweeps: what is to be trained, where, and real small trainings that are skipped, resumed, failing or interrupted."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from toy import without_times

from coevolve import cli
from coevolve.console import console
from coevolve.recipe.inputs import dump
from coevolve.recipe.read import load_recipe
from coevolve.report.runs import find, grouped
from coevolve.runs import signature
from coevolve.runs.folder import RunDir, read_lines
from coevolve.runs.lock import alone
from coevolve.runs.trained import checkpoint_of
from coevolve.sweep import plan, pool, sweep
from coevolve.sweep.grid import grid, values
from coevolve.sweep.show import last_metrics, progress, table
from coevolve.sweep.slots import Slot, slots, visible

QUICKSTART = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"
SMALL = ["batch_size=2", "samples=1", "policies.ann.device=cpu", "policies.bob.device=cpu"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3", ["3"]),
        ("0..3", ["0", "1", "2", "3"]),
        ("-1..1", ["-1", "0", "1"]),
        ("0..1,7,3..3", ["0", "1", "7", "3"]),
        ("0.03,0.1, 1e-3", ["0.03", "0.1", "1e-3"]),
        ("[2,8]", ["[2,8]"]),
        ("[2, 8],[4, 16]", ["[2, 8]", "[4, 16]"]),
        ("{name: rotate, every: 2},{name: fixed}", ["{name: rotate, every: 2}", "{name: fixed}"]),
        ("'a, b',\"c, d\"", ["'a, b'", '"c, d"']),
        ("{prompt: 'a, }b', x: [1, {y: 2}]},null", ["{prompt: 'a, }b', x: [1, {y: 2}]}", "null"]),
        ("mine.py:Task,other.py:Task", ["mine.py:Task", "other.py:Task"]),
        ("1..x", ["1..x"]),
        ("é,ü", ["é", "ü"]),
        ("", [""]),
    ],
)
def test_values_are_separated_by_commas_outside_of_brackets_and_quotes(text, found):
    assert values(text, f"key={text}") == found


@pytest.mark.parametrize("text", ["[1", "1,,2", "{a: 1}}", "'a", "1]"])
def test_what_is_no_yaml_is_named(text):
    with pytest.raises(ValueError, match=re.escape(f"override {f'key={text}'!r}")):
        values(text, f"key={text}")


def test_a_range_that_goes_down_is_named():
    with pytest.raises(ValueError, match=r"override 'seed=9\.\.0': 9\.\.0 goes down; want 0\.\.9"):
        values("9..0", "seed=9..0")


def test_a_star_varies_a_key_of_all_policies_at_once():
    recipes = grid(QUICKSTART, ["policies.*.learning_rate=1e-4,3e-4"], Path("out"))
    rates = [[policy.learning_rate for policy in recipe.policies.values()] for recipe in recipes]
    assert rates == [[1e-4, 1e-4], [3e-4, 3e-4]]


def names(*overrides):
    return [recipe.output_dir.name for recipe in grid(QUICKSTART, overrides, Path("out"))]


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (["steps=2"], ["quickstart-0"]),
        (["seed=3..4"], ["quickstart-3", "quickstart-4"]),
        (
            ["seed=0,1", "steps=2", "algorithm.eta=0.1,1e-3"],
            ["quickstart-eta=0.1-0", "quickstart-eta=1e-3-0", "quickstart-eta=0.1-1", "quickstart-eta=1e-3-1"],
        ),
        (
            ["policies.ann.learning_rate=1e-3,1e-4", "policies.bob.learning_rate=1e-3"],
            ["quickstart-learning_rate=1e-3-0", "quickstart-learning_rate=1e-4-0"],
        ),
        (
            ["policies.ann.weights=full,frozen", "policies.bob.weights=lora,full", "seed=5"],
            [f"quickstart-ann.weights={a}-bob.weights={b}-5" for a in ("full", "frozen") for b in ("lora", "full")],
        ),
        (
            ["sampling.max_new_tokens=[4,16],8"],
            ["quickstart-max_new_tokens=4-16-681973-0", "quickstart-max_new_tokens=8-0"],
        ),
    ],
)
def test_a_run_is_named_after_what_varies_with_the_seed_last(overrides, found):
    assert names(*overrides) == found


@pytest.mark.parametrize("name", ["cory-gsm8k-qwen2.5-1.5b", "cory-gsm8k-qwen2.5-1.5b-8gpu"])
def test_a_packaged_name_with_dots_is_whole_in_the_names_of_folder_and_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = plan(name, ["seed=0..1"])
    assert said.startswith(f"runs/{name}-sweep: 2 runs")
    assert said.endswith(f"  {name}-0: new\n  {name}-1: new")


def test_any_value_gives_a_short_name_that_a_file_system_takes():
    ugly = [f"/a b/ü:{'x' * 300}{end}?*" for end in "cd"]
    found = names("policies.ann.model=" + ",".join(json.dumps(one, ensure_ascii=False) for one in ugly))
    assert len(set(found)) == 2
    assert all(re.fullmatch(r"quickstart-model=a-b-x+-[0-9a-f]{6}-0", name) and len(name) < 60 for name in found)
    many = [f"policies.{who}.{key}=1e-4,2e-4" for who in ("ann", "bob") for key in ("learning_rate", "weight_decay")]
    many += ["policies.ann.max_grad_norm=1,2", "policies.bob.max_grad_norm=1,2", "sampling.temperature=1,0.5"]
    found = names(*many)
    assert len(set(found)) == len(found) == 128
    assert max(map(len, found)) < 140


def test_a_name_that_no_run_may_have_is_told_before_anything_starts(tmp_path):
    (tmp_path / "my recipe.yaml").write_text("base: quickstart.yaml\noutput_dir: there\n")
    with pytest.raises(ValueError, match="the name 'my recipe-0' of a run cannot be"):
        grid(tmp_path / "my recipe.yaml", ["seed=0"], tmp_path)


def test_the_recipes_are_the_product_in_order():
    recipes = grid(
        QUICKSTART, ["algorithm.eta=0.1,0.3", "seed=0..1", "cast={name: exchange, every: 2},fixed"], Path("o")
    )
    found = [(r.algorithm["eta"], r.seed, r.cast) for r in recipes]
    casts = ({"name": "exchange", "every": 2}, {"name": "fixed"})
    assert found == [(eta, seed, cast) for eta in (0.1, 0.3) for seed in (0, 1) for cast in casts]
    assert all(r.output_dir.parent == Path("o") for r in recipes)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["stepz=2"], "unknown key stepz; did you mean 'steps'?"),
        (["seed=0..1", "algorithm.eta=0.1,high"], "seed=0 algorithm.eta=high: algorithm: eta: "),
        (["algorithm.eta=0.1,-1"], "algorithm.eta=-1: "),
        (["algorithm.etha=0.1,0.2"], "algorithm.etha=0.1: algorithm: unknown key etha; did you mean 'eta'?"),
        (["play=chain,chan"], "play=chan: play: unknown name 'chan'"),
        (["task.size=1,2"], "task.size=1: task: unknown key size"),
        (["sampling.temperature=1,0"], "sampling.temperature=0: sampling.temperature is 0: training needs samples"),
        (["policies.*.weights=full,frozen"], "policies.*.weights=frozen: all policies are frozen, so nobody learns"),
        (["seed=1", "seed=2"], "seed is there twice; separate its values by commas"),
        (["seed=1,2,1"], "seed=1 and seed=1 are the same run"),
        (["algorithm.eta=0.1,0.10"], "algorithm.eta=0.10 and algorithm.eta=0.1 are the same run"),
        (["output_dir=x"], "--output"),
        (["seed=0..9999999999"], "override 'seed=0..9999999999': 10,000,000,000 values; a sweep is of at most 10,000"),
        (["seed=0..999", "steps=1..11"], "11,000 combinations; a sweep is of at most 10,000"),
        (["seed"], "override 'seed': want key=value"),
    ],
)
@pytest.mark.usefixtures("nothing_starts")
def test_a_mistake_stops_everything_before_it_begins(overrides, said, tmp_path, capsys):
    assert cli.main(["sweep", str(QUICKSTART), *overrides, "--output", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_runs_do_not_go_into_a_file(tmp_path, capsys):
    (tmp_path / "out").touch()
    for more in ([], ["--dry-run"]):
        assert cli.main(["sweep", str(QUICKSTART), "--output", str(tmp_path / "out"), *more]) == 2
        assert "out is a file; choose another folder" in capsys.readouterr().err


def test_a_run_whose_folder_is_gone_has_failed_and_stops_no_other(tmp_path):
    one = SimpleNamespace(process=SimpleNamespace(returncode=1), recipe=SimpleNamespace(output_dir=tmp_path / "gone"))
    assert pool._why(one) == "exit code 1"


def recipes(count, threads=None, device="auto"):
    one = load_recipe(QUICKSTART, [f"policies.{name}.device={device}" for name in ("ann", "bob")])
    return [one.model_copy(update={"threads": threads, "seed": seed}) for seed in range(count)]


@pytest.mark.parametrize(
    ("runs", "jobs", "cores", "gpus", "found"),
    [
        (recipes(9), None, 4, [], [Slot(1)] * 4),
        (recipes(3), None, 4, [], [Slot(1)] * 3),  # as many as there are runs
        (recipes(9, threads=2), None, 5, [], [Slot(2)] * 2),
        (recipes(9, threads=8), None, 4, [], [Slot(4)]),  # more threads than cores
        (recipes(9, threads=4), 2, 4, [], [Slot(2)] * 2),  # threads are cut for more jobs
        (recipes(9), 1, 4, [], [Slot(1)]),  # as many threads as ever, so that the numbers are the same
        (recipes(9), 6, 4, [], [Slot(1)] * 6),
        (recipes(9), None, 8, ["0", "1"], [Slot(1, "0"), Slot(1, "1")]),
        (recipes(9), 3, 8, ["0", "1"], [Slot(1, "0"), Slot(1, "1"), Slot(1, "0")]),
        (recipes(1), None, 8, ["0", "1"], [Slot(1, "0")]),
        (recipes(9, device="cpu"), None, 2, ["0", "1"], [Slot(1)] * 2),
        (recipes(9, device="cuda:1"), None, 8, ["0", "1"], [Slot(1)]),
        (recipes(9, device="cuda:1"), 2, 8, ["0", "1"], [Slot(1)] * 2),
        ([], None, 4, [], [Slot(1)]),
    ],
)
def test_runs_share_cores_and_gpus(runs, jobs, cores, gpus, found):
    assert slots(runs, len(runs), jobs, cores, gpus) == found


@pytest.mark.parametrize(
    ("engine", "weights", "count"),
    [
        ("{name: vllm, url: u}", "full", 1),
        ("{name: vllm, url: u}", "lora", 2),
        ("{name: vllm, start: {devices: '1'}}", "lora", 1),
        ("{name: vllm, start: {port: 8000}}", "lora", 1),
        ("{name: vllm, start: {}}", "lora", 2),
    ],
)
def test_runs_that_would_share_a_server_train_one_after_the_other(engine, weights, count):
    """Of full weights it has one set; adapters have names of their own."""
    one = load_recipe(QUICKSTART, [f"engine={engine}", f"policies.ann.weights={weights}", "policies.bob.weights=lora"])
    assert len(slots([one] * 4, 4, None, 2, [])) == count
    assert len(slots([one] * 4, 4, None, 2, ["0", "1"])) == count
    if one.filled_servers:
        with pytest.raises(ValueError, match="jobs is 2, and several runs put full weights onto the server at u"):
            slots([one] * 4, 4, 2, 2, [])
        assert len(slots([one] * 4, 1, 2, 2, [])) == 1


def test_the_last_runs_have_the_threads_of_the_first():
    assert [slots(recipes(9, threads=2), left, 2, 2, []) for left in (9, 1)] == [[Slot(1)] * 2, [Slot(1)]]
    assert slots(recipes(9, threads=2), 9, 1, 2, []) == [Slot(2)]


def test_a_recipe_with_a_learner_is_given_no_threads(tmp_path, monkeypatch):
    recipe = load_recipe(QUICKSTART, ["learner={name: fsdp, ranks: 2}", f"output_dir={tmp_path}/run"])
    assert slots([recipe] * 3, 3, None, 8, ["0", "1"]) == [Slot(1)]  # which sees all cards
    assert Slot(2).environment(recipe) == {}
    recipe = recipe.model_copy(update={"task": {**recipe.task, "text": "1e-4"}})
    monkeypatch.setattr(pool.subprocess, "Popen", lambda *args, **how: None)
    with alone(tmp_path) as lock:
        pool.train(recipe, Slot(2), lock)
    assert (
        load_recipe(tmp_path / "run" / "recipe.yaml").task == recipe.task
    )  # a text that looks like a number stays one
    assert load_recipe(tmp_path / "run" / "recipe.yaml").learner == recipe.learner


def test_a_run_sees_the_gpu_of_its_slot_and_computes_by_its_recipe_however_many_cores_are_left(tmp_path, monkeypatch):
    """The compiled loops want one thread: where two are asked for, and one is left, they are not taken."""
    recipe, seen = load_recipe(QUICKSTART, ["threads=2", f"output_dir={tmp_path}/run"]), {}
    monkeypatch.setattr(pool.subprocess, "Popen", lambda *args, **how: seen.update(how["env"]))
    with alone(tmp_path) as lock:
        pool.train(recipe, Slot(1, "GPU-a1"), lock)
    assert seen["CUDA_VISIBLE_DEVICES"] == "GPU-a1"
    written = load_recipe(tmp_path / "run" / "recipe.yaml")
    assert (written.threads, written.policies["ann"].compute) == (1, "torch")


def test_a_run_that_is_stopped_before_it_loads_stays_its_makers(tmp_path, monkeypatch):
    """The sweep writes the recipe of a run that goes on, and the training signs it when its models are loaded."""
    recipe = load_recipe(QUICKSTART, [f"output_dir={tmp_path / 'run'}", "steps=2"])
    text = dump(recipe.record())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(text)
    signed = signature.signature(tmp_path / "run", text, signature.checksums(recipe.record()))
    (tmp_path / "run" / signature.FILE).write_text(signed)
    assert not signature.not_own(tmp_path / "run")
    data = tmp_path / "rows.csv"
    data.write_text("a\n1\n")
    record = recipe.record()
    record["task"]["data"] = str(data)
    pool._write_recipe(tmp_path / "run", record)
    assert not signature.not_own(tmp_path / "run")
    signed = signature.signature(tmp_path / "run", dump(record), signature.checksums(record))
    (tmp_path / "run" / signature.FILE).write_text(signed)
    data.write_text("a\n2\n")
    pool._write_recipe(tmp_path / "run", record | {"steps": 4})
    assert not signature.not_own(tmp_path / "run")
    assert signature.changed(tmp_path / "run", signature.checksums(record)) == [str(data)]
    (tmp_path / "run" / signature.FILE).unlink()  # somebody else's does not become this user's
    pool._write_recipe(tmp_path / "run", recipe.record() | {"steps": 6})
    assert signature.not_own(tmp_path / "run")


def test_a_slot_says_its_threads_and_its_gpu():
    assert Slot(2).environment(recipes(1, threads=4)[0]) == {"OMP_NUM_THREADS": "2"}
    assert Slot(2, "GPU-a1").environment(recipes(1)[0]) == {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "GPU-a1"}


def test_gpus_are_called_what_the_environment_calls_them():
    assert visible({}, 2) == ["0", "1"]
    assert visible({"CUDA_VISIBLE_DEVICES": "3, GPU-a1,7"}, 3) == ["3", "GPU-a1", "7"]
    assert visible({"CUDA_VISIBLE_DEVICES": "3,-1,7"}, 1) == ["3"]  # CUDA stops at the first that is none
    assert visible({"CUDA_VISIBLE_DEVICES": ""}, 0) == []


def test_no_jobs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="jobs is 0"):
        plan(QUICKSTART, jobs=0, output=tmp_path)


def written(folder, rewards, **settings):
    """A run of these rewards, two seconds a step."""
    folder.mkdir(parents=True)
    lines = [{"step": i, "reward": reward, "time/step": 2.0} for i, reward in enumerate(rewards)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "recipe.yaml").write_text(yaml.safe_dump(settings))
    return folder


def test_the_table_has_a_row_per_group(tmp_path):
    runs = [
        written(tmp_path / "a-eta=0.1-0", [9.0] * 18 + [1.0, 2.0], seed=0, algorithm={"eta": 0.1}),
        written(tmp_path / "a-eta=0.3-0", [4.0], seed=0, algorithm={"eta": 0.3}),
        written(tmp_path / "a-eta=0.1-1", [9.0] * 18 + [3.0, 4.0], seed=1, algorithm={"eta": 0.1}),
    ]
    out = io.StringIO()
    console(file=out, width=100).print(table(runs))
    rows = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    # The last tenth is two steps: finals 1.5 and 3.5, mean 2.5, deviation sqrt(2), over sqrt(2) seeds: 1
    assert "a-eta=0.1 0, 1 2.500 ± 1.000 40 s" in rows
    assert "a-eta=0.3 0 4.000 ± - 2 s" in rows


def test_the_newest_line_of_metrics_is_read_alone(tmp_path):
    assert last_metrics(tmp_path) is None
    file = tmp_path / "metrics.jsonl"
    file.write_text("")
    assert last_metrics(tmp_path) is None
    file.write_text("no json\n" + json.dumps({"step": 0, "long": "x" * 70_000}) + '\n{"step": 1, "reward": 2}\n{"st')
    assert last_metrics(tmp_path) == {"step": 1, "reward": 2}


@pytest.mark.parametrize("broken", [b"\0\0\0\0\n", b'{"step": 1, "rew\n', b"\xff\xfe\n"])
def test_a_last_line_that_a_power_cut_broke_stops_no_sweep(broken, tmp_path, monkeypatch, capsys):
    words = ["steps=1", *SMALL]
    run = grid(QUICKSTART, words, tmp_path)[0].output_dir
    monkeypatch.setattr(pool.sys, "executable", tmp_path / "killed")
    (tmp_path / "killed").write_text("#!/bin/sh\nsleep 0.4\nkill -9 $$\n")
    (tmp_path / "killed").chmod(0o700)
    with pytest.raises(ChildProcessError):  # which leaves the run's recipe
        sweep(QUICKSTART, words, output=tmp_path)
    (run / "metrics.jsonl").write_bytes(broken)
    assert last_metrics(run) is None
    assert f"{run.name}: new" in plan(QUICKSTART, words, output=tmp_path)
    monkeypatch.undo()
    assert sweep(QUICKSTART, words, output=tmp_path) == [run]
    assert [line["step"] for line in read_lines(run / "metrics.jsonl")] == [0]


def test_a_file_in_place_of_a_runs_folder_stops_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(pool.sys, "executable", tmp_path / "does")
    (tmp_path / "does").write_text("#!/bin/sh\n")
    (tmp_path / "does").chmod(0o700)
    runs = [r.model_copy(update={"output_dir": tmp_path / f"run-{r.seed}"}) for r in recipes(2)]
    (tmp_path / "run-0").touch()
    with alone(tmp_path) as lock:
        failed = pool.train_all(runs, [Slot(1)], lock, lambda running, ended: None)
    assert failed == {tmp_path / "run-0": f"output_dir: {tmp_path / 'run-0'} is a file; choose another folder"}
    assert (tmp_path / "run-1" / pool.LOG).is_file()


def test_a_folder_that_cannot_be_written_stops_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "write_text", lambda *args: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    runs = [r.model_copy(update={"output_dir": tmp_path / f"run-{r.seed}"}) for r in recipes(2)]
    with alone(tmp_path) as lock:
        failed = pool.train_all(runs, [Slot(1)], lock, lambda running, ended: None)
    assert failed == {run.output_dir: "[Errno 30] Read-only file system" for run in runs}


def test_a_run_killed_by_the_system_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(pool.sys, "executable", tmp_path / "killed")
    (tmp_path / "killed").write_text("#!/bin/sh\necho working\nkill -9 $$\n")
    (tmp_path / "killed").chmod(0o700)
    run = recipes(1)[0].model_copy(update={"output_dir": tmp_path / "run"})
    seen = []
    with alone(tmp_path) as lock:
        failed = pool.train_all([run], [Slot(1)], lock, lambda running, ended: seen.append(dict(ended)))
    assert failed == seen[-1] == {tmp_path / "run": "killed by signal 9 (Killed)"}
    assert (tmp_path / "run" / pool.LOG).read_text() == "working\n"


def test_the_next_run_is_under_way_before_somebody_looks_at_the_last(tmp_path, monkeypatch):
    """Whoever is told may take as long as a run, as the study does, which evaluates."""
    monkeypatch.setattr(pool.sys, "executable", tmp_path / "does")
    (tmp_path / "does").write_text("#!/bin/sh\nsleep 0.2\n")
    (tmp_path / "does").chmod(0o700)
    runs = [r.model_copy(update={"output_dir": tmp_path / f"run-{r.seed}"}) for r in recipes(2)]
    seen = []
    with alone(tmp_path) as lock:
        pool.train_all(runs, [Slot(1)], lock, lambda running, ended: seen.append((list(running), list(ended))))
    assert next(running for running, ended in seen if ended) == [runs[1]]


@pytest.mark.parametrize(("fails", "said"), [(False, ["train", "eval"]), (True, ["train"])])
def test_what_follows_a_training_has_its_slot_and_waits_for_it_to_end_well(fails, said, tmp_path, monkeypatch):
    monkeypatch.setattr(pool.sys, "executable", tmp_path / "does")
    (tmp_path / "does").write_text(f'#!/bin/sh\necho "$3 $OMP_NUM_THREADS"\nsleep 0.1\nexit {int(fails)}\n')
    (tmp_path / "does").chmod(0o700)
    run = recipes(1)[0].model_copy(update={"output_dir": tmp_path / "run", "threads": 3})
    seen = []

    def then(*where):
        return pool.start(["eval"], *where)

    with alone(tmp_path) as lock:
        failed = pool.run_all(
            [(run, [pool.train, then])], [Slot(3)], lock, lambda running, ended: seen.append((len(running), len(ended)))
        )
    assert (tmp_path / "run" / pool.LOG).read_text().split("\n")[:-1] == [f"{word} 3" for word in said]
    assert failed == ({run.output_dir: "train 3"} if fails else {})
    assert all(sum(counts) == 1 for counts in seen)  # it has not ended in between


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_says_what_trains_and_what_has_ended(terminal, tmp_path):
    one, two = (r.model_copy(update={"output_dir": tmp_path / f"a-{r.seed}", "steps": 9}) for r in recipes(2))
    out = io.StringIO()
    with progress(1, 4, console(file=out, width=100, force_terminal=terminal)) as watch:
        watch([one], {})
        written(one.output_dir, [1.0, 2.5])
        written(two.output_dir, [0.5])
        watch([one, two], {})
        watch([two], {one.output_dir: None})
        watch([], {one.output_dir: None, two.output_dir: "no [memory]"})
    said = out.getvalue()
    assert said.count("a-0: done  reward 2.5") == 1
    assert said.count("a-1: failed  no [memory]") == 1
    assert ("a-1: step 1/9  reward 0.5" in said) != terminal
    assert (re.search(r"a-0 .*2/9", said) is not None) == terminal
    assert (re.search(r"runs .*3/4", said) is not None) == terminal


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Two seeds of two steps, both at once."""
    output = tmp_path_factory.mktemp("swept")
    return sweep(QUICKSTART, ["seed=0..1", "steps=2", *SMALL], output=output, jobs=2)


@pytest.fixture
def nothing_starts(monkeypatch):
    def start(*args, **kwargs):
        raise AssertionError("a process was started")

    monkeypatch.setattr(pool.subprocess, "Popen", start)


def test_a_sweep_trains_what_train_trains(swept, tmp_path):
    assert [run.name for run in swept] == ["quickstart-0", "quickstart-1"]
    alone = tmp_path / "alone"
    assert cli.main(["train", str(QUICKSTART), "seed=1", "steps=2", *SMALL, f"output_dir={alone}"]) == 0
    lines = [[without_times(line) for line in read_lines(run / "metrics.jsonl")] for run in (swept[1], alone)]
    assert len(lines[0]) == 2
    assert lines[0] == lines[1]
    (group,) = grouped(find([swept[0].parent]))
    assert (group.name, [run.seed for run in group.runs]) == ("quickstart", [0, 1])
    assert "step 2/2" in (swept[0] / pool.LOG).read_text()


@pytest.mark.usefixtures("nothing_starts")
def test_what_is_done_is_not_done_again(swept, capsys):
    words = ["sweep", str(QUICKSTART), "seed=0..1", "steps=2", *SMALL, "--output", str(swept[0].parent)]
    assert cli.main([*words, "--dry-run"]) == 0
    assert "quickstart-1: done" in capsys.readouterr().out
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert "2 runs, 2 of them done; nothing to do" in said
    assert f"coevolve report {swept[0].parent} -o {swept[0].parent}/report.html" in said


@pytest.mark.usefixtures("nothing_starts")
def test_another_recipe_is_refused_before_anything_starts(swept):
    with pytest.raises(
        ValueError, match=r"quickstart-0 belongs to another recipe: algorithm\.eta is 0\.3 there and 0\.5"
    ):
        sweep(QUICKSTART, ["seed=0..1,5", "steps=2", "algorithm.eta=0.5", *SMALL], output=swept[0].parent)
    assert not (swept[0].parent / "quickstart-5").exists()


def test_what_is_half_done_goes_on(swept, capsys):
    before = [(run / "metrics.jsonl").read_text() for run in swept]
    words = ["seed=1", "steps=3", *SMALL]
    assert "quickstart-1: goes on at step 2 of 3" in plan(QUICKSTART, words, output=swept[0].parent)
    assert sweep(QUICKSTART, words, output=swept[0].parent) == [swept[1]]
    after = (swept[1] / "metrics.jsonl").read_text()
    assert after.startswith(before[1])
    assert after.count("\n") == 3
    assert (swept[0] / "metrics.jsonl").read_text() == before[0]


def test_another_order_of_the_roles_is_another_run(tmp_path):
    roles = "roles={pioneer: ann, observer: bob},{observer: bob, pioneer: ann}"
    recipes = grid(QUICKSTART, [roles], tmp_path)
    assert [list(one.roles) for one in recipes] == [["pioneer", "observer"], ["observer", "pioneer"]]


@pytest.mark.usefixtures("nothing_starts")
def test_a_run_whose_checkpoints_were_deleted_keeps_its_metrics(swept, tmp_path):
    """One that is done stays so; another one would begin anew, over them."""
    shutil.copytree(swept[0], tmp_path / swept[0].name)
    for checkpoint in (tmp_path / swept[0].name).glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    recipe, before = tmp_path / swept[0].name / "recipe.yaml", (swept[0] / "metrics.jsonl").read_bytes()
    recipe.write_text(re.sub("save_every: .*", "save_every: 1", recipe.read_text()))
    words = ["seed=0", *SMALL, "save_every=1"]
    assert "quickstart-0: done" in plan(QUICKSTART, ["steps=2", *words], output=tmp_path)
    assert sweep(QUICKSTART, ["steps=2", *words], output=tmp_path) == [tmp_path / swept[0].name]
    said = r"quickstart-0 has metrics of 2 steps, and no checkpoint to go on from; bring one back, or move the folder"
    with pytest.raises(ValueError, match=said):
        sweep(QUICKSTART, ["steps=3", *words], output=tmp_path)
    with pytest.raises(ValueError, match=said):
        RunDir(recipe.parent).check(3, resume=True)  # which trainings ask first
    recipe.write_text(re.sub("^steps: .*", "steps: 1", recipe.read_text(), flags=re.M))
    with pytest.raises(ValueError, match="quickstart-0 has metrics of 2 steps, more than the 1 asked for"):
        sweep(QUICKSTART, ["steps=1", *words], output=tmp_path)
    with pytest.raises(ValueError, match="quickstart-0 has no checkpoint any more, only the metrics of 2 steps; bring"):
        checkpoint_of(RunDir(tmp_path / swept[0].name), None)
    assert (tmp_path / swept[0].name / "metrics.jsonl").read_bytes() == before


def test_a_run_before_its_first_checkpoint_begins_anew_whatever_it_saves_by_now(swept, tmp_path, monkeypatch):
    run = tmp_path / swept[0].name
    shutil.copytree(swept[0], run)
    for checkpoint in run.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    (run / ".saved").unlink()
    (run / "metrics.jsonl").write_text((swept[0] / "metrics.jsonl").read_text() * 2)  # of four steps, by twenty
    monkeypatch.setattr(pool.sys, "executable", tmp_path / "does")
    (tmp_path / "does").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "does").chmod(0o700)
    with pytest.raises(ChildProcessError):
        sweep(QUICKSTART, ["seed=0", "steps=9", "save_every=1", *SMALL], output=tmp_path)
    RunDir(run).check(9, resume=True)
    assert (run / "metrics.jsonl").read_text() == ""


def test_a_run_that_fails_stops_no_other(tmp_path, capsys):
    models = "policies.ann.model=./no/model,coevolve-tiny"
    words = ["sweep", str(QUICKSTART), models, "steps=1", *SMALL, "--output", str(tmp_path), "--jobs", "1"]
    assert cli.main(words) == 1
    said = capsys.readouterr()
    assert re.search(rf"failed: {tmp_path}/quickstart-model=\S+/train.log: error: .*no/model", said.out)
    assert "quickstart-model=coevolve-tiny" in said.out.split("final reward")[1]
    assert said.err == "error: 1 of 2 runs failed; the same command tries them again\n"
    assert len(read_lines(tmp_path / "quickstart-model=coevolve-tiny-0" / "metrics.jsonl")) == 1


PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from coevolve import cli
sys.exit(cli.main())
"""


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_no_training_outlives_its_sweep(how, code, tmp_path):
    words = ["sweep", str(QUICKSTART), "seed=0..1", "steps=9999", *SMALL, "--output", str(tmp_path), "--jobs", "1"]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "quickstart-0" / "metrics.jsonl"
    while not (metrics.exists() and read_lines(metrics)):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    with pytest.raises(ValueError, match=rf"{tmp_path} is in use by process {process.pid} on .*"):
        sweep(QUICKSTART, ["seed=0..1", "steps=9999", *SMALL], output=tmp_path)
    os.kill(process.pid, how)
    said = process.communicate()[1]
    assert process.returncode == code
    with alone(tmp_path, wait=True):  # waits for every process of the sweep to have ended
        log = (tmp_path / "quickstart-0" / pool.LOG).read_text()
    assert re.search(r"stopped at step \d+( \(.*, see save_every\))?; continue with --resume\n$", log)
    assert not (tmp_path / "quickstart-1").exists()
    if how == signal.SIGINT:
        assert said == "stopped with 0 of 2 runs done; the same command goes on\n"


def test_a_range_with_a_dash_is_told():
    with pytest.raises(ValueError, match=r"seed is '0-3'; want .*; a range is 0\.\.3$"):
        grid(QUICKSTART, ["seed=0-3"], Path("out"))
