"""Files and folders that are there whole, or not there."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from coevolve.runs import durable, lock


def test_a_file_is_replaced_at_once_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    durable.write_text(file, "old")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        durable.write_text(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]  # nothing beside it


def test_a_folder_that_cannot_be_deleted_is_gone_by_name_first(tmp_path, monkeypatch):
    folder = tmp_path / "checkpoint-1"
    (folder / "agents").mkdir(parents=True)

    def interrupted(path, *args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path, ignore_errors=False: None if ignore_errors else interrupted(path))
        with pytest.raises(KeyboardInterrupt):
            durable.remove(folder)
    assert not folder.exists()
    assert [one.name for one in tmp_path.iterdir()] == [".checkpoint-1.removed"]
    lock.sweep_up(tmp_path)
    assert not list(tmp_path.iterdir())
    durable.remove(folder)  # that is not there


def test_what_is_published_is_synced_before_it_has_its_name(tmp_path, monkeypatch):
    beside, target, order = tmp_path / ".new", tmp_path / "model", []
    (beside / "agents").mkdir(parents=True)
    (beside / "agents" / "a").write_text("a")
    sync, replace = durable.sync, os.replace
    monkeypatch.setattr(durable, "sync", lambda path: (order.append(path.name), sync(path)))
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append("rename"), replace(*paths)))
    durable.publish(beside, target)
    assert order == ["a", "agents", ".new", "rename", tmp_path.name]
    assert (target / "agents" / "a").read_text() == "a"


def test_folders_are_made_with_their_names_on_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(durable, "sync", synced.append)
    durable.make_folder(tmp_path / "runs" / "mine")
    assert (tmp_path / "runs" / "mine").is_dir()
    assert set(synced) == {tmp_path, tmp_path / "runs"}


@pytest.mark.parametrize("where", ["/proc/mine", "/dev/null/mine", "a" * 300])
def test_a_folder_that_cannot_be_is_a_mistake_of_the_user(where, tmp_path):
    with pytest.raises(ValueError, match=rf"^the folder .*{where} cannot be made \(\w.*\); choose another one$"):
        durable.make_folder(tmp_path / where)


def test_a_full_disk_is_none(tmp_path, monkeypatch):
    def full(self, **how):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(OSError, match="No space left"):
        durable.make_folder(tmp_path / "runs")


def test_of_a_link_the_link_is_removed(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a").write_text("a")
    link = tmp_path / "checkpoint-1"
    link.symlink_to(tmp_path / "kept")
    durable.remove(link)
    (tmp_path / ".checkpoint-2.removed").symlink_to(tmp_path / "kept")
    lock.sweep_up(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "a").read_text() == "a"
