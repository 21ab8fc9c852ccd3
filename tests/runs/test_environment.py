"""What a run says of its starts: each of them, and where the numbers of a run are of two machines."""

import json
import os
import platform
import subprocess
import warnings

import pytest

from coevolve.runs import environment
from coevolve.runs.environment import FILE, add_start, lasting, starts


def start(step=0, torch="2.9", processor="old", **more):
    return {"step": step, "processor": processor, "device": "cpu", "versions": {"torch": torch}, **more}


def test_every_start_is_kept_with_its_step(tmp_path):
    made = [start(seed=3), start(4), start(8)]
    for number, one in enumerate(made):
        add_start(tmp_path, one, fresh=number == 0)
    assert starts(tmp_path) == made
    assert json.loads((tmp_path / FILE).read_text())["seed"] == 3  # the first one's stand outermost, as ever
    add_start(tmp_path, start(seed=4), fresh=True)  # nothing was left of the others
    assert starts(tmp_path) == [start(seed=4)]


@pytest.mark.parametrize(
    ("here", "said"),
    [
        ({"processor": "new"}, "processor was old and is new"),
        ({"torch": "2.10"}, "torch was 2.9 and is 2.10"),
        ({"torch": "2.10", "device": "an H200"}, "torch was 2.9 and is 2.10, device was cpu and is an H200"),
    ],
)
def test_who_goes_on_where_numbers_round_otherwise_is_warned(tmp_path, here, said):
    add_start(tmp_path, start(), fresh=True)
    with pytest.warns(UserWarning, match=f"from step 4 on numbers round otherwise: {said}; {FILE} keeps both$"):
        add_start(tmp_path, start(4, **here), fresh=False)
    assert starts(tmp_path) == [start(), start(4, **here)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        add_start(tmp_path, start(6, **here), fresh=False)  # as the last one, of which was told


def test_a_start_that_left_nothing_is_nobodys_past(tmp_path):
    """One that was killed before its first checkpoint: the next one goes on from the same step."""
    for number, one in enumerate((start(), start(4))):
        add_start(tmp_path, one, fresh=number == 0)
    with pytest.warns(UserWarning, match="processor was old and is new"):
        add_start(tmp_path, start(8, processor="new"), fresh=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        add_start(tmp_path, start(8), fresh=False)
    assert lasting(starts(tmp_path)) == [start(), start(4), start(8)]
    assert lasting([start(), start(4, processor="new"), start(2)]) == [start(), start(2)]  # a checkpoint was damaged
    assert starts(tmp_path / "elsewhere") == []


def test_a_start_that_is_none_is_named(tmp_path):
    (tmp_path / FILE).write_text(json.dumps({"step": 0, "resumed": [{"step": 0, "versions": 3}]}))
    with pytest.raises(ValueError, match=rf"{FILE}: resumed\.0\.versions"):
        starts(tmp_path)


def test_a_checkout_says_which_of_its_files_have_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert (environment.environment()["git_commit"], environment.environment()["git_changes"]) == (
        "not a git checkout", []
    )  # fmt: skip
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for name in ("kept.py", "changed.py"):
        (tmp_path / name).write_text("1\n")
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "one"]):
        subprocess.run(["git", *words], check=True)
    (tmp_path / "changed.py").write_text("2\n")
    (tmp_path / "new.py").write_text("3\n")
    found = environment.environment()
    assert (len(found["git_commit"]), found["git_changes"]) == (40, ["changed.py"])


def test_a_processor_has_a_name(tmp_path, monkeypatch):
    told = tmp_path / "cpuinfo"
    told.write_text("cpu family\t: 6\nmodel\t\t: 207\nmodel name\t: A Processor\n")
    monkeypatch.setattr(environment, "_CPUINFO", told)
    assert environment.processor() == "A Processor, family 6, model 207"
    told.write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n")
    assert environment.processor().endswith(", implementer 0x41, part 0xd0c, variant 0x3")  # an ARM of Amazon's
    monkeypatch.setattr(environment, "_CPUINFO", tmp_path / "none")
    assert environment.processor()


def test_a_mac_tells_its_processor_itself(tmp_path, monkeypatch):
    told = tmp_path / "sysctl"
    told.write_text('#!/bin/sh\n[ "$*" = "-n machdep.cpu.brand_string" ] && echo "Apple M2 Pro"\n')
    told.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(environment, "_CPUINFO", tmp_path / "none")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert environment.processor() != "Apple M2 Pro"
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert environment.processor() == "Apple M2 Pro"
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert environment.processor() != "Apple M2 Pro"
