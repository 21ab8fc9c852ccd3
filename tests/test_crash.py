"""A kill or a power cut at a file operation: the run goes on as if nothing had been (``benchmarks/kill.py``: all)."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from crash import POSSIBLE, Disk, crashes, lay_out

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

pytestmark = pytest.mark.skipif(not POSSIBLE, reason="needs ptrace on Linux, x86-64")


def replaced(folder, sync):
    """Replace a file as ``durable`` does, with or without its syncs."""

    def work():
        (folder / "new").write_bytes(b"new")
        if sync:
            number = os.open(folder / "new", os.O_RDONLY)
            os.fsync(number)
        os.rename(folder / "new", folder / "file")
        number = os.open(folder, os.O_RDONLY)
        os.fsync(number)
        (folder / "later").touch()

    return work


def test_what_is_not_synced_is_lost(tmp_path):
    """The model of the disk itself: a rename without a sync before leaves an empty file, one with a sync never does."""
    found = {}
    for sync in (False, True):
        folder = tmp_path / str(sync)
        folder.mkdir()
        (folder / "file").write_bytes(b"old")
        found[sync] = {state.get("file") for _, state in crashes(replaced(folder, sync), folder)}
    assert found[True] == {b"old", b"new"}
    assert {b"old", b"new", b""} <= found[False]


def test_what_was_synced_outlives_what_is_appended(tmp_path):
    """A half of what was appended may be lost, never a line from before the sync."""
    file = tmp_path / "lines"
    file.write_bytes(b"1\n2\n")
    disk = Disk(tmp_path)
    file.write_bytes(b"1\n2\n3\n")
    disk.look()
    left = {state["lines"] for seed in range(20) for _, state in disk.states(seed)}
    assert left == {b"1\n2\n", b"1\n2\n3", b"1\n2\n3\n"}


def test_names_that_are_not_synced_are_lost(tmp_path):
    disk = Disk(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"a")
    disk.look()
    states = dict(disk.states(0))
    assert states["kill"] == {"folder": None, "folder/a": b"a"}
    assert states["all lost"] == {}
    for path in (tmp_path / "folder" / "a", tmp_path / "folder"):
        disk.sync(path)
    assert dict(disk.states(0))["all lost"] == {}
    disk.sync(tmp_path)
    assert dict(disk.states(0))["all lost"] == states["kill"]
    lay_out(states["kill"], tmp_path / "there")
    assert (tmp_path / "there" / "folder" / "a").read_bytes() == b"a"


def test_a_training_goes_on_from_whatever_is_left(tmp_path, monkeypatch):
    import kill

    torch.set_num_threads(1)
    settings = kill.recipes(kill.micro(tmp_path / "model"))["chain"]
    tried = list(kill.operations(settings, tmp_path, every=97))
    assert len(tried) > 5
    assert [one for one in tried if one[1]] == []


def test_a_removal_in_place_would_be_found(tmp_path, monkeypatch):
    import shutil

    import kill

    monkeypatch.setattr("coevolve.runs.durable.remove", shutil.rmtree)
    settings = kill.recipes(kill.micro(tmp_path / "model"))["chain"]
    work = tmp_path / "work"
    work.mkdir()
    states = crashes(lambda: kill.train(kill.build(settings, 2), work / "run"), work)
    assert any(half(state) for _, state in states)


def half(state):
    """Whether a checkpoint lacks its manifest."""
    names = {path.split("/")[1] for path in state if path.startswith("run/checkpoint-")}
    return any(f"run/{name}/manifest.json" not in state for name in names)


def test_a_soak_reads_its_looks(tmp_path, capsys):
    """Of memory that grows 2 KiB a step from the middle on, whatever it did before, and of a last line that is half."""
    from soak import show

    looks = [(step, 90_000 + 2 * max(step, 50), 4) for step in range(0, 101, 2)]
    lines = [json.dumps({"step": s, "rss_kib": rss, "files": n, "threads": 2, "disk_kib": 8}) for s, rss, n in looks]
    (tmp_path / "soak.jsonl").write_text("\n".join([*lines, '{"step": 1']))
    (tmp_path / "run").mkdir()
    metrics = [json.dumps({"step": i, "reward": 0.0, "time/step": seconds}) for i, seconds in enumerate((0.5, 0.7))]
    (tmp_path / "run" / "metrics.jsonl").write_text("\n".join([*metrics, ""]))
    show(tmp_path)
    said = capsys.readouterr().out
    assert "rss over steps 50 to 98: 2.05e+03 a step" in said and "files over steps 50 to 98: " in said
    assert said.splitlines()[-1] == "2 steps of 0.600 s (median)"
