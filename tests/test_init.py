"""What ``coevolve init`` writes trains as it is, and nothing of the user's is lost."""

import json
from pathlib import Path

import pytest

from coevolve import cli

STARTS = {
    "task": {"my_task.py", "my_task.yaml"},
    "reward": {"my_reward.py", "my_reward.yaml", "my_rows.jsonl"},
    "play": {"my_play.py", "my_play.yaml"},
    "algorithm": {"my_algorithm.py", "my_algorithm.yaml"},
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", STARTS)
def test_a_start_trains_as_it_is(kind, capsys):
    assert cli.main(["init", kind]) == 0
    assert {file.name for file in Path().iterdir()} == STARTS[kind]
    *_, last = capsys.readouterr().out.splitlines()
    words = last.removeprefix("train it: coevolve ").split()
    assert words == ["train", f"my_{kind}.yaml"]
    assert cli.main([*words, "steps=2", "batch_size=2", "workers=false"]) == 0
    run = Path(f"runs/my_{kind}-0")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    assert any(line["reward"] != 0 for line in lines)
    about = json.loads((run / "environment.json").read_text())
    assert about  # it is a run like any other
    used = (run / "recipe.yaml").read_text()
    assert f"my_{kind}.py:" in used


def test_without_a_word_it_is_a_task():
    assert cli.main(["init"]) == 0
    assert {file.name for file in Path().iterdir()} == STARTS["task"]


@pytest.mark.parametrize("mine", sorted(STARTS["reward"]))
def test_nothing_is_overwritten(mine, capsys):
    Path(mine).write_text("mine")
    assert cli.main(["init", "reward"]) == 2
    assert f"{mine} is there already, and nothing is overwritten" in capsys.readouterr().err
    assert [file.read_text() for file in Path().iterdir()] == ["mine"]


def test_settings_of_the_starts_are_the_recipes(capsys):
    assert cli.main(["init", "task"]) == 0
    wrong = "task={name: my_task.py:MyTask, heldout: 3}"
    assert cli.main(["train", "my_task.yaml", wrong]) == 2
    assert "unknown key heldout; did you mean 'held_out'?" in capsys.readouterr().err


def test_examples_are_those_of_the_guide_and_train(capsys):
    assert cli.main(["init", "examples"]) == 0
    there = Path(__file__).parents[1] / "examples"
    assert {file.name for file in Path("examples").iterdir()} == {
        file.name for file in there.iterdir() if file.is_file()
    }
    *_, last = capsys.readouterr().out.splitlines()
    words = last.removeprefix("train one of them: coevolve ").split()
    assert cli.main([*words, "steps=2", "workers=false"]) == 0
    assert cli.main(["init", "examples"]) == 2
    assert "is there already, and nothing is overwritten" in capsys.readouterr().err
