"""Programs that mean harm: none passes a failing test, outlives its limit, touches the machine, stops what follows."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import time
from pathlib import Path

import pytest
from attacks import ATTACKS

from coevolve.rewards.sandbox import Program, Sandbox
from coevolve.rewards.sandbox.isolation import offered

TIMEOUT = 1.0
_numbers = itertools.count()


@pytest.fixture(scope="module", params=["bubblewrap", "plain"])
def box(request):
    offer = offered(request.param)
    if not (offer.landlock and offer.seccomp):
        pytest.skip(f"how these end is written down for Landlock and libseccomp; here: {offer}")
    try:
        made = Sandbox(isolation=request.param, timeout=TIMEOUT, memory_mb=256, workers=1)
    except ValueError as error:
        if request.param == "plain":
            raise
        pytest.skip(str(error))
    with made:
        assert honest(made)
        yield made, len(processes(made))


@pytest.fixture(scope="module")
def canary():
    """A file in a folder, both everybody's to write: only the sandbox stands before them."""
    with tempfile.TemporaryDirectory(prefix="canary-") as folder:
        os.chmod(folder, 0o777)
        file = Path(folder, "canary")
        file.write_text("sings")
        os.chmod(file, 0o666)
        yield file


def honest(box):
    """Whether a new honest program, right in one test and wrong in another, is judged so."""
    program = Program(
        f"# {next(_numbers)}\nimport math\nimport os\n"
        "def f(x):\n    return [x * 2, math.floor(math.pi), len(str(x)), os.listdir('.')]",
        "assert f(21) == [42, 3, 2, []]\nassert f(21) == 43",
        "f",
    )
    return [verdict.kind for verdict in box.run([program])[0]] == ["passed", "failed"]


def processes(box):
    """Of this box alone: its servers, and all that comes from them. An orphan of a case is its server's child."""
    parents = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(place.name)] = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
    found = {server.pid for worker in box._started for server, _ in worker._servers} & parents.keys()
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def waited(count, wanted):
    """What ``count`` gives in the end: killed processes have some seconds to die."""
    until = time.monotonic() + 10
    while (found := count()) > wanted and time.monotonic() < until:
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_fails(box, canary, name):
    box, servers = box
    attack = ATTACKS[name]
    code = attack.code.replace("{canary!r}", repr(str(canary))).replace("{folder!r}", repr(str(canary.parent)))
    before = canary.stat()
    (verdict,) = box.run([Program(code.replace("{{", "{").replace("}}", "}"), attack.tests, "candidate")])[0]
    assert verdict.kind in attack.kinds.split("|"), verdict
    assert canary.read_text() == "sings"
    assert (canary.stat().st_mode, canary.stat().st_mtime) == (before.st_mode, before.st_mtime)
    assert os.listdir(canary.parent) == ["canary"]
    assert honest(box)
    assert waited(lambda: len(processes(box)), servers) == servers


def test_a_batch_of_malice_ends_and_leaves_nothing(canary):
    attacks = {name: attack for name, attack in ATTACKS.items() if "passed" not in attack.kinds}
    programs = [
        Program(attack.code.replace("{canary!r}", "''"), attack.tests, "candidate") for attack in attacks.values()
    ]
    with Sandbox(timeout=0.5, memory_mb=256, workers=2) as box:
        found = box.run(programs)
        assert honest(box)
        last = processes(box)
        assert last
    assert [name for name, verdicts in zip(attacks, found, strict=True) if verdicts[0].kind == "passed"] == []
    assert waited(lambda: sum(Path(f"/proc/{pid}").exists() for pid in last), 0) == 0
