"""What can be answered without torch is: it takes seconds to import, and who mistyped a recipe waits for them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coevolve import cli
from coevolve.held_out import ADVISED, DIAGNOSED, EVALUATED

RECIPES = Path(__file__).parents[1] / "recipes"
QUICKSTART = str(RECIPES / "quickstart.yaml")
SLOW = {"torch", "transformers"}

PROGRAM = f"""
import contextlib, io, json, sys
from coevolve import cli

for words in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = cli.main(words)
        except SystemExit as stop:  # argparse's
            code = stop.code
    print(json.dumps([code, said.getvalue(), sorted({SLOW} & sys.modules.keys())]))
"""

MISTAKES = {
    "a recipe that is not there": (["train", "nowhere.yaml"], "no file nowhere.yaml"),
    "a key that is none": (["train", QUICKSTART, "stepz=2"], "unknown key stepz; did you mean 'steps'?"),
    "a number out of range": (["train", QUICKSTART, "steps=0"], "steps is 0; want at least 1"),
    "a text for a number": (["train", QUICKSTART, "batch_size=many"], "batch_size: "),
    "sampling": (["train", QUICKSTART, "sampling.top_p=1.5"], "top_p is 1.5; want at most 1"),
    "a policy's weights": (["train", QUICKSTART, "policies.ann.weights=ful"], "did you mean 'full'?"),
    "a policy's dtype": (["train", QUICKSTART, "policies.ann.dtype=float17"], "want one of float32, bfloat16"),
    "a policy's device": (["train", QUICKSTART, "policies.ann.device=gpu"], "device 'gpu' is unknown"),
    "a policy's model": (["train", QUICKSTART, "policies.ann.model=./no/model"], "model './no/model': no such folder"),
    "a policy's backend": (["train", QUICKSTART, "policies.ann.compute=cpu", "threads=2"], "which wants one"),
    "a role's policy": (["train", QUICKSTART, "roles.observer=bab"], "did you mean 'bob'?"),
    "the name of a task": (["train", QUICKSTART, "task=sentimental"], "task: unknown name 'sentimental'"),
    "a key of a task": (["train", QUICKSTART, "task.size=2"], "task: unknown key size"),
    "a value of a task": (["train", QUICKSTART, "task.query_tokens=[8, 2]"], "want 1 <= low <= high"),
    "the name of a play": (["train", QUICKSTART, "play=chane"], "did you mean 'chain'?"),
    "a value of a cast": (["train", QUICKSTART, "cast.every=0"], "every is 0; want at least 1"),
    "the name of an algorithm": (["train", QUICKSTART, "algorithm=corry"], "did you mean 'cory'?"),
    "a key of an algorithm": (["train", QUICKSTART, "algorithm.etaa=1"], "algorithm: unknown key etaa"),
    "a value of an algorithm": (["train", QUICKSTART, "algorithm.eta=-1"], "eta is -1; want at least 0"),
    "two values of an algorithm": (["train", QUICKSTART, "algorithm={name: grpo, clip: null, epochs: 2}"], "set clip"),
    "a credit": (["train", QUICKSTART, "algorithm.credit=own_rewrd"], "did you mean 'own_reward'?"),
    "a tracker": (["train", QUICKSTART, "report_to=wandbb"], "report_to: unknown 'wandbb'"),
    "before a plan": (["train", QUICKSTART, "--dry-run", "algorithm.eta=-1"], "eta is -1; want at least 0"),
    "a tracker, before a plan": (["train", QUICKSTART, "--dry-run", "report_to=wandbb"], "report_to: unknown 'wandbb'"),
    "a tracker of a sweep": (["sweep", QUICKSTART, "report_to=[wandbb]"], "report_to: unknown 'wandbb'"),
    "of a sweep": (["sweep", QUICKSTART, "algorithm.eta=0.1,-1"], "algorithm.eta=-1: algorithm: eta is -1"),
    "of pre-training": (["pretrain", QUICKSTART], "kind is None; a pre-training recipe has"),
    "a recipe of the package by a path": (["train", "recipes/quickstart.yaml"], "comes with the package; write quicks"),
    "a key in TRL's word": (["train", QUICKSTART, "num_generations=4"], "TRL's num_generations is members; known"),
    "a lower key in TRL's word": (
        ["train", QUICKSTART, "sampling.max_completion_length=4"],
        "is sampling.max_new_tokens; known",
    ),
    "a policy's key in verl's word": (["train", QUICKSTART, "policies.ann.lr=1e-3"], "verl's lr is learning_rate of a"),
    "a key in verl's word": (["train", QUICKSTART, "lr=1e-3"], "verl's lr is learning_rate of a policy; known"),
    "an algorithm's key in verl's word": (["train", QUICKSTART, "algorithm.kl_coef=1"], "verl's kl_coef is eta of ppo"),
    "verl's weight in the loss": (["train", QUICKSTART, "algorithm.kl_loss_coef=1"], "verl's kl_loss_coef is beta of"),
    "verl's members": (["train", QUICKSTART, "n=4"], "verl's n is members; known"),
    "verl's members of a rollout": (["train", QUICKSTART, "sampling.n=4"], "sampling.n; verl's n is members; known"),
    "a play's n that it has not": (["train", QUICKSTART, "play.n=4"], "play: unknown key n; known: transfer"),
    "verl's epochs": (["train", QUICKSTART, "total_epochs=3"], "verl's total_epochs is steps (an epoch is"),
    "a file without the name in it": (["train", QUICKSTART, "task=task.py"], "write task.py:Name, with the name of"),
    "a report of nothing": (["report", "nowhere"], "nowhere is no run directory"),
}


@pytest.fixture(scope="module")
def ask():
    """Runs commands in a fresh process, one behind the other: the exit code of each, what it said, what it imported."""

    def one(commands, folder):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], input=json.dumps(commands), capture_output=True, text=True, cwd=folder
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return one


@pytest.fixture(scope="module")
def told(ask, tmp_path_factory):
    """mistake -> what came of it."""
    folder = tmp_path_factory.mktemp("mistakes")
    found = dict(zip(MISTAKES, ask([words for words, _ in MISTAKES.values()], folder), strict=True))
    assert list(folder.iterdir()) == []
    return found


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_without_torch(told, mistake):
    code, said, imported = told[mistake]
    assert code == 2
    assert MISTAKES[mistake][1] in said
    assert said.count("\n") == 1
    assert imported == []


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["report", "--help"]])
def test_help_needs_no_torch(ask, words, tmp_path):
    [(code, said, imported)] = ask([words], tmp_path)
    assert (code, imported) == (0, [])
    assert said.startswith("usage: ")


@pytest.mark.parametrize(("command", "count"), [("eval", EVALUATED), ("diagnose", DIAGNOSED), ("advise", ADVISED)])
def test_help_says_how_many_problems_are_played(ask, command, count, tmp_path):
    [(code, said, imported)] = ask([[command, "--help"]], tmp_path)
    assert (code, imported) == (0, [])
    assert f"how many held-out problems; default: {count}, or all if the task has fewer" in " ".join(said.split())


def test_a_report_needs_no_torch(ask, tmp_path):
    run = tmp_path / "run"
    assert cli.main(["train", str(RECIPES / "posg-chicken-joint.yaml"), "steps=2", f"output_dir={run}"]) == 0
    found = ask([["report", str(run), "-o", f"out{form}"] for form in (".html", ".md", ".png")], tmp_path)
    for code, said, imported in found:
        assert (code, imported) == (0, []), said
    assert {"out.html", "out.md", "out.png"} <= {file.name for file in tmp_path.iterdir()}


def test_a_plan_without_mistakes_does_need_them(ask, tmp_path):
    """What the other tests look for is there to be found."""
    [(code, said, imported)] = ask([["train", QUICKSTART, "--dry-run"]], tmp_path)
    assert code == 0, said
    assert set(imported) == SLOW
