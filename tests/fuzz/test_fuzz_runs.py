"""Any run directory, checkpoint and team is read, or refused in one line with the name of the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from fuzzing import changed, command, dumped, files, refused, torn, trials, untouched
from hypothesis import given
from hypothesis import strategies as st

from coevolve.report import runs
from coevolve.runs import checkpoint, shapes
from coevolve.runs.folder import read_lines
from coevolve.teams.team import described

LINES = ["metrics.jsonl", "episodes.jsonl", "samples.jsonl"]
OBJECTS = [
    "environment.json",
    "eval.json",
    "diagnostics.json",
    "checkpoint-2/trainer.json",
    "checkpoint-2/manifest.json",
]


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "run", tmp_path / "run"))


@pytest.fixture
def team(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "team", tmp_path / "team"))


def written(content: bytes, data: st.DataObject, *, lines: bool) -> bytes:
    """A file of JSON, changed: as bytes, or as what stands in it."""
    how = data.draw(st.sampled_from(["torn", "changed", "changed", "nonsense"]))
    if how == "nonsense":
        return data.draw(files)
    if how == "torn":
        return data.draw(torn(content))
    if not lines:
        return json.dumps(data.draw(changed(json.loads(content)))).encode()
    records = [json.loads(line) for line in content.splitlines()]
    place = data.draw(st.integers(0, len(records) - 1))
    records[place] = data.draw(changed(records[place]))
    return "".join(json.dumps(record) + "\n" for record in records).encode()


@trials(180)
@given(st.data())
def test_lines(run: Path, data: st.DataObject) -> None:
    file = run / data.draw(st.sampled_from(LINES))
    before = file.read_bytes()
    file.write_bytes(written(before, data, lines=True))
    said = refused("lines of a run", lambda: read_lines(file))
    assert said is None or str(file) in said
    file.write_bytes(before)


@trials(180)
@given(st.data())
def test_objects(run: Path, data: st.DataObject) -> None:
    file = run / data.draw(st.sampled_from(OBJECTS))
    before = file.read_bytes()
    file.write_bytes(written(before, data, lines=False))
    said = refused("objects of a run", lambda: shapes.read(file))
    assert said is None or str(file) in said
    file.write_bytes(before)


@trials(120)
@given(st.data())
def test_checkpoints_verified(run: Path, data: st.DataObject) -> None:
    folder = run / "checkpoint-2"
    with spoilt(folder, data) as file:
        said = refused("checkpoints", lambda: checkpoint.verify(folder))
        assert said is None or str(folder) in said or str(file) in said


@trials(60)
@given(st.data())
def test_what_a_run_says_it_is(run: Path, data: st.DataObject) -> None:
    file = run / "recipe.yaml"
    before = file.read_bytes()
    tree = yaml.safe_load(before)
    file.write_bytes(data.draw(st.one_of(torn(before), changed(tree).map(lambda t: dumped(t, ascii_only=True)))))
    refused("recipes of a run", lambda: runs.grouped(runs.find([run])))
    file.write_bytes(before)


@trials(120)
@given(st.data())
def test_what_a_team_says_it_is(team: Path, data: st.DataObject) -> None:
    file = team / "team.yaml"
    before = file.read_bytes()
    tree = yaml.safe_load(before)
    file.write_bytes(data.draw(st.one_of(torn(before), changed(tree).map(lambda t: dumped(t, ascii_only=True)))))
    said = refused("team.yaml", lambda: described(team))
    assert said is None or str(file) in said
    file.write_bytes(before)


COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "report.md": lambda run: ["report", str(run), "-o", "out/report.md"],
    "report.png": lambda run: ["report", str(run), "-o", "out/curves.png"],
    "report.html": lambda run: ["report", str(run), "-o", "out/report.html"],
    "export": lambda run: ["export", str(run), "out/team"],
    "eval": lambda run: ["eval", str(run), "--problems", "1"],
    "resume": lambda run: ["train", str(run / "recipe.yaml"), f"output_dir={run}", "--resume"],
}


@trials(40)
@given(st.data())
def test_commands_on_a_spoilt_run(made: Path, tmp_path: Path, data: st.DataObject) -> None:
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.rmtree("out", ignore_errors=True)
    shutil.copytree(made / "run", run)
    which = data.draw(st.sampled_from(sorted(COMMANDS)))
    file = run / data.draw(st.sampled_from([*LINES, *OBJECTS, "recipe.yaml"]))
    if file.suffix == ".yaml":
        file.write_bytes(data.draw(torn(file.read_bytes())))
    else:
        file.write_bytes(written(file.read_bytes(), data, lines=file.suffix == ".jsonl"))
    with untouched(tmp_path, but=["here/out", "run/" if which == "resume" else "run/eval.json"]):
        command("commands on runs", COMMANDS[which](run))


@trials(15)
@given(st.data())
def test_commands_on_a_spoilt_checkpoint(made: Path, tmp_path: Path, data: st.DataObject) -> None:
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.rmtree("out", ignore_errors=True)
    shutil.copytree(made / "run", run)
    which = data.draw(st.sampled_from(["export", "eval"]))
    with spoilt(run / "checkpoint-2", data), untouched(tmp_path, but=["here/out", "run/eval.json"]):
        said = command("commands on checkpoints", COMMANDS[which](run))
    assert said is None or "checkpoint-2" in said


@trials(15)
@given(st.data())
def test_chat_with_a_spoilt_team(made: Path, tmp_path: Path, data: st.DataObject) -> None:
    team = tmp_path / "team"
    shutil.rmtree(team, ignore_errors=True)
    shutil.copytree(made / "team", team)
    with spoilt(team, data), untouched(tmp_path):
        command("chats", ["chat", str(team)])


class spoilt:  # noqa: N801
    """One file of a folder changed or gone, for a while."""

    def __init__(self, folder: Path, data: st.DataObject) -> None:
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        self.file = data.draw(st.sampled_from(found))
        self.before = self.file.read_bytes()
        self.after = data.draw(st.one_of(st.none(), torn(self.before)))

    def __enter__(self) -> Path:
        if self.after is None:
            self.file.unlink()
        else:
            self.file.write_bytes(self.after)
        return self.file

    def __exit__(self, *_: object) -> None:
        self.file.write_bytes(self.before)
