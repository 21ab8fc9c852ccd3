"""Every level with and without each of its layers, as root and as a normal user: an attack is held, or the level names
what it uses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from coevolve.rewards.sandbox import isolation

NOBODY = 65534
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the layers are Linux's")


@pytest.fixture(scope="module")
def packages():
    """The sandbox alone in a folder that every user may read."""
    with tempfile.TemporaryDirectory(prefix="packages-") as place:
        sandbox = Path(isolation.__file__).parent
        there = Path(place, "coevolve", "rewards", "sandbox")
        shutil.copytree(sandbox, there, ignore=shutil.ignore_patterns("__pycache__"))
        for folder in (there.parent, there.parent.parent):
            (folder / "__init__.py").touch()
        if (spec := find_spec("pyseccomp")) is not None:
            shutil.copy(spec.origin, place)
        for name in ("matrix.py", "doors.py"):
            shutil.copy(Path(__file__).with_name(name), place)
        for path in (Path(place), *Path(place).rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield place


def python_for_all():
    """An interpreter that another user may start."""
    for path in (isolation.interpreter(), "/usr/bin/python3", "/usr/local/bin/python3"):
        file = Path(path).resolve()
        if file.exists() and all(part.stat().st_mode & 1 for part in (file, *file.parents)):
            old = subprocess.run(
                [file, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False
            ).returncode
            if not old:
                return str(file)
    pytest.skip("no Python of 3.11 or later that another user may start")


@pytest.mark.parametrize("user", ["this one", "nobody"])
def test_what_comes_through_is_named(packages, user):
    another = user == "nobody"
    if another and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    python = python_for_all() if another else isolation.interpreter()
    who = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if another else {}
    line = [python, "-B", f"{packages}/matrix.py", packages]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd="/", timeout=300, **who)
    assert done.returncode == 0, done.stderr
    found = [json.loads(one) for one in done.stdout.splitlines()]
    tried = [one for one in found if "problem" not in one]
    assert any(one["isolation"].startswith("plain") for one in tried)
    assert {one["isolation"].partition(";")[0]: (one["untold"], one["honest"]) for one in tried} == {
        one["isolation"].partition(";")[0]: ([], "passed") for one in tried
    }
    assert [name for one in tried for name in one["lost"]] == []  # all were really tried
    assert [one["problem"] for one in found if "problem" in one and "bwrap" not in one["problem"]] == []
    if isolation.offered("plain").seccomp and isolation.offered("plain").landlock:
        strongest = next(one for one in tried if one["isolation"].startswith("plain"))
        assert strongest["through"] == ["attack_asks_for_a_size", "attack_asks_for_the_machines_name"]
        weakest = tried[-1]["through"]  # the attacks are attacks
        assert len(weakest) > 25 and {"attack_reads_a_file", "attack_a_process", "attack_a_datagram"} < {*weakest}
