"""Callbacks hear every event in TRL's order, may end a training, and are named when they fail."""

import inspect
import json

import pytest
from toy import RECIPE, toy
from transformers import TrainerCallback

from coevolve import cli
from coevolve.recipe.build import build
from coevolve.recipe.read import load_recipe
from coevolve.runs.callbacks import EVENTS

BEGIN, *_, END = EVENTS
STEP = ["on_step_begin", "on_step_end", "on_log"]
SAVE = ["on_evaluate", "on_save"]

MINE = """
class Mine:
    def __init__(self, loud: bool = False):
        self.loud = loud

    def on_log(self, args, state, control, logs, **kwargs):
        if state.global_step == 2:
            raise RuntimeError("no room" if self.loud else "hush")
"""


class Everything(TrainerCallback):
    """Hears it all."""

    def __init__(self):
        self.heard = []

    def __getattribute__(self, name):
        if name not in EVENTS:
            return super().__getattribute__(name)
        return lambda args, state, control, **more: self.heard.append((name, args, state.global_step, more))


class Stop:
    """Ends after the first step, having asked for nothing else."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = True


class SaveOnce:
    """Wants a checkpoint after the first step."""

    def on_log(self, args, state, control, **kwargs):
        if state.global_step == 1:
            control.should_save = True


def test_every_event_is_told_in_trls_order(micro_model, tmp_path):
    here, there = Everything(), Everything()
    trainer = toy(micro_model, steps=3, callbacks=[here])
    run = trainer.run(tmp_path / "run", save_every=2, samples=1, listeners=[], callbacks=[there])
    names = [name for name, *_ in here.heard]
    assert names == [BEGIN, "on_evaluate", *STEP, *STEP, *SAVE, *STEP, *SAVE, END]
    assert names == [name for name, *_ in there.heard]
    assert [step for name, _, step, _ in here.heard if name == "on_log"] == [1, 2, 3]
    _, args, _, first = here.heard[0]
    assert (args.output_dir, args.max_steps, args.save_steps, first["trainer"]) == (str(run), 3, 2, trainer)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [more["logs"]["reward"] for name, *_, more in here.heard if name == "on_log"] == [x["reward"] for x in lines]
    folders = [more["checkpoint"] for name, *_, more in here.heard if name == "on_save"]
    assert folders == [run / "checkpoint-2", run / "checkpoint-3"]
    for name, _, step, more in here.heard:
        if name == "on_evaluate":
            [sample] = more["samples"]
            rewards = [turn["reward"] for turn in sample["turns"]]
            assert more["metrics"]["eval_reward"] == sum(rewards) / len(rewards)
            assert step in (0, 2, 3)


def test_one_may_end_the_training_which_goes_on_from_there(micro_model, tmp_path):
    run = toy(micro_model, steps=3, callbacks=[Stop()]).run(tmp_path / "run", listeners=[])
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 1
    rest = Everything()
    toy(micro_model, steps=3, callbacks=[rest]).run(run, resume=True, listeners=[])
    whole = toy(micro_model, steps=3).run(tmp_path / "whole", listeners=[])
    rewards = [[json.loads(x)["reward"] for x in (f / "metrics.jsonl").read_text().splitlines()] for f in (run, whole)]
    assert rewards[0] == rewards[1]
    assert [step for name, _, step, _ in rest.heard if name == "on_step_begin"] == [1, 2]


def test_one_may_ask_for_a_checkpoint(micro_model, tmp_path):
    heard = Everything()
    toy(micro_model, steps=3, callbacks=[SaveOnce(), heard]).run(tmp_path / "run", listeners=[], keep_last=9)
    assert [more["checkpoint"].name for name, *_, more in heard.heard if name == "on_save"] == [
        "checkpoint-1",
        "checkpoint-3",
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Stop, "callbacks: Stop is a class; make one of it: Stop()"),
        (print, "has no event; want some of on_train_begin"),
    ],
)
def test_what_is_no_callback(micro_model, wrong, said):
    with pytest.raises(ValueError) as caught:
        toy(micro_model, callbacks=[wrong])
    assert said in str(caught.value)
    with pytest.raises(ValueError, match=r"^callbacks: want a list of them, found <(class|built-in)"):
        toy(micro_model, callbacks=wrong)


@pytest.fixture
def recipe(micro_model, tmp_path):
    """The toy's recipe, beside a callback."""
    (tmp_path / "mine.py").write_text(MINE)
    file = tmp_path / "toy.yaml"
    from toy import __file__ as toy_file

    text = RECIPE.format(toy=toy_file, model=micro_model, out=tmp_path / "run")
    file.write_text(f"{text}callbacks: [{{name: mine.py:Mine, loud: true}}]\n")
    return file


def test_a_recipe_names_them_and_the_one_that_fails_is_told(recipe, tmp_path, capsys):
    assert cli.main(["train", str(recipe)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: the callback Mine, on_log, after step 2: raised RuntimeError: no room (")
    assert said.endswith("mine.py, line 8)")
    run = tmp_path / "run"
    assert (run / "checkpoint-2").is_dir()  # it was due then
    assert [json.loads(x)["step"] for x in (run / "samples.jsonl").read_text().splitlines()] == [0, 2]
    assert cli.main(["train", str(recipe), "--resume", "callbacks=[]"]) == 0  # it is no part of what a step computes
    assert [json.loads(x)["step"] for x in (run / "samples.jsonl").read_text().splitlines()] == [0, 2, 4]
    assert cli.main(["eval", str(run), "--problems", "1"]) == 0


def test_a_changed_file_of_ones_own_is_told_when_a_run_goes_on(recipe, tmp_path, capsys):
    words = ["train", str(recipe), "--resume"]
    assert cli.main(["train", str(recipe)]) == 2  # no room
    (tmp_path / "mine.py").write_text(MINE.replace("== 2", "== 9"))
    changed = f"goes on with other files: {tmp_path / 'mine.py'} changed since its last start"
    capsys.readouterr()
    assert cli.main([*words, "steps=3"]) == 0
    [line] = [line for line in capsys.readouterr().err.splitlines() if "other files" in line]
    assert line.startswith(f"warning: {tmp_path / 'run'} {changed}")
    assert cli.main([*words, "steps=4"]) == 0  # the same as the last time
    assert "other files" not in capsys.readouterr().err


WANDERER = """
import os

class Wanderer:
    def on_step_begin(self, args, state, control, **kwargs):
        os.chdir(os.path.dirname(__file__) + "/elsewhere")
"""


def test_a_run_stays_in_its_folder_wherever_its_code_goes(recipe, tmp_path, monkeypatch, capsys):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "wanderer.py").write_text(WANDERER)
    monkeypatch.chdir(tmp_path)
    words = ["train", recipe.name, "callbacks=[wanderer.py:Wanderer]", "output_dir=runs/here"]
    assert cli.main(words) == 0
    assert "elsewhere" not in capsys.readouterr().out
    assert not list((tmp_path / "elsewhere").iterdir())
    run = tmp_path / "runs" / "here"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 4
    assert (run / "checkpoint-4").is_dir()
    assert (run / "reward-kl.png").is_file()
    assert "output_dir: runs/here" in (run / "recipe.yaml").read_text()


def test_a_run_is_played_without_them(recipe, tmp_path):
    run = tmp_path / "run"
    read = load_recipe(recipe)
    build(read.model_copy(update={"callbacks": []})).run(run, listeners=[], recipe=read.record())
    (tmp_path / "mine.py").write_text("raise SystemExit")
    assert cli.main(["eval", str(run), "--problems", "1", "--trust-code"]) == 0


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("callbacks=[nowhere.py:Mine]", "callbacks: no file "),
        ("callbacks=[Mine]", "callbacks: unknown name 'Mine'; known: file.py:Name"),
        ("callbacks=[{name: mine.py:Mine, lowd: 1}]", "callbacks: unknown key lowd; did you mean 'loud'?"),
        ("callbacks=mine.py:Mine", "callbacks"),
        ("report_to=[wandb, [1]]", "report_to"),
    ],
)
def test_a_mistake_is_one_line(recipe, override, said, capsys, monkeypatch):
    monkeypatch.chdir(recipe.parent)
    assert cli.main(["train", str(recipe), override]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


class Never:
    """Ends before the first step."""

    def on_train_begin(self, args, state, control, **kwargs):
        control.should_training_stop = True


def test_a_training_without_a_step_says_so(tmp_path, capsys):
    (tmp_path / "never.py").write_text(inspect.getsource(Never))
    call = ["train", "quickstart", f"output_dir={tmp_path / 'run'}", f"callbacks=[{tmp_path / 'never.py'}:Never]"]
    assert cli.main(call) == 0
    assert "no step was trained" in capsys.readouterr().out
