"""Runs of a team on ranks: the numbers of a run without, whatever dies in between."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import toy
from handlers_kept import handlers_kept
from toy import without_times

from coevolve import cli
from coevolve.learners.sharded import ShardedLearner
from coevolve.runs.folder import read_lines
from coevolve.runtime.child import free_port, listens
from coevolve.types import Metrics

pytestmark = pytest.mark.slow

RANKS = "learner={name: fsdp, ranks: 2, deadline: 120}"
SAME = ["workers=false", "policies.ann.compute=torch", "policies.bob.compute=torch"]


@pytest.fixture(scope="module")
def undisturbed(micro_model: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The lines of a run in one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert cli.main(["train", recipe(micro_model, folder), *SAME]) == 0
    return lines(folder)


def recipe(model: str, folder: Path) -> str:
    file = folder / "toy.yaml"
    file.write_text(toy.RECIPE.format(toy=Path(toy.__file__), model=model, out=folder / "run"))
    return str(file)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [without_times(line) for line in read_lines(folder / "run" / "metrics.jsonl")]


def check(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """Every number is the same but norms of gradients, whose parts add up in another order."""
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.keys() == b.keys()
        for key, value in b.items():
            assert a[key] == (pytest.approx(value, rel=1e-6) if key.endswith("grad_norm") else value), key


def kill_second(ranks: Any) -> None:
    """Kill the second of the ranks on this machine."""
    os.kill(ranks.processes[1].pid, signal.SIGKILL)


def kill_before(step: int, patch: pytest.MonkeyPatch, kill: Callable[[Any], None] = kill_second) -> None:
    """Some of bob's ranks are killed when he is to learn from this step, the first time."""
    update, left = ShardedLearner.update, [step]

    def killing(self: ShardedLearner, *given: Any) -> Metrics:
        if self.name == "bob" and given[-1] in left:
            left.clear()
            kill(self.ranks)
        return update(self, *given)

    patch.setattr(ShardedLearner, "update", killing)


def test_all_go_on_from_the_last_checkpoint(
    undisturbed: list[dict[str, Any]], micro_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    kill_before(3, monkeypatch)
    assert cli.main(["train", recipe(micro_model, tmp_path), *SAME, RANKS]) == 0
    said = capfd.readouterr().out
    assert "step 3: policy 'bob': rank 1 of 2 of policy 'bob' died" in said
    assert f"all policies go on from {tmp_path / 'run' / 'checkpoint-2'}" in said
    check(lines(tmp_path), undisturbed)


def test_without_a_checkpoint_the_run_ends_and_is_begun_again(
    undisturbed: list[dict[str, Any]], micro_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    kill_before(1, monkeypatch)
    asked = ["train", recipe(micro_model, tmp_path), *SAME, RANKS]
    assert cli.main(asked) == 1
    [told] = [line for line in capfd.readouterr().err.splitlines() if "died" in line]
    assert "step 1: policy 'bob': rank 1 of 2 of policy 'bob' died" in told
    assert told.endswith("continue with --resume")
    assert cli.main([*asked, "--resume"]) == 0
    check(lines(tmp_path), undisturbed)


@pytest.fixture
def ray_machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray cluster of three machines with two cores each, and a head with none; all are this one."""
    ray = pytest.importorskip("ray", reason="placing ranks needs the package ray (coevolve[cluster])")
    from ray.cluster_utils import Cluster

    from coevolve.runtime.cluster import connected

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    assert not ray.is_initialized()  # a connection to another cluster would be kept
    small = {"object_store_memory": 80 << 20}
    with handlers_kept():
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
        connected(made.address, 60)  # to the head, while there is no other
        for _ in range(3):
            made.add_node(num_cpus=2, **small)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.parametrize("lost", ["a rank", "a machine"])
def test_a_team_on_a_ray_cluster_repeats_what_was_lost(
    lost: str, undisturbed: list[dict[str, Any]], micro_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], ray_machines: Any,
) -> None:  # fmt: skip
    """One command trains both policies, on two machines of three."""

    def kill(ranks: Any) -> None:
        if lost == "a rank":
            ranks.ray.kill(ranks.actors[1])
            return
        [its] = set(ranks.ray.util.placement_group_table(ranks.group)["bundles_to_node_id"].values())
        [node] = [node for node in ray_machines.worker_nodes if node.node_id == its]
        ray_machines.remove_node(node, allow_graceful=False)

    kill_before(3, monkeypatch, kill)
    where = f"learner={{name: fsdp, ranks: 2, deadline: 120, cluster: '{ray_machines.address}'}}"
    assert cli.main(["train", recipe(micro_model, tmp_path), *SAME, where]) == 0
    said = capfd.readouterr().out
    which = "rank 1" if lost == "a rank" else "ranks? [01].*"
    assert re.search(rf"step 3: policy 'bob': {which} of 2 of policy 'bob' died", said), said
    assert f"all policies go on from {tmp_path / 'run' / 'checkpoint-2'}" in said
    check(lines(tmp_path), undisturbed)


@pytest.fixture
def ray_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address for Ray's client of a cluster of this machine, as ``ray start --head`` makes one."""
    pytest.importorskip("ray", reason="placing ranks needs the package ray (coevolve[cluster])")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else there is a token where Ray has once made one
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    ports = {name: free_port() for name in ("port", "ray-client-server-port")}
    small = ["--num-cpus=4", f"--object-store-memory={80 << 20}", "--include-dashboard=false"]
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:  # short, for socket names
        asked = [*small, f"--temp-dir={folder}", *(f"--{name}={port}" for name, port in ports.items())]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *asked]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as started:
            try:
                wait_for(ports["ray-client-server-port"], 60)
                yield f"ray://127.0.0.1:{ports['ray-client-server-port']}"
            finally:
                started.terminate()  # which ends what it has started


def wait_for(port: int, seconds: float) -> None:
    """Wait until somebody listens at a port of this machine."""
    end = time.monotonic() + seconds
    while not listens(port, "127.0.0.1"):
        assert time.monotonic() < end, f"nobody listens at {port} after {seconds} s"
        time.sleep(0.2)


def test_a_team_on_a_ray_cluster_that_is_reached_by_its_client(
    undisturbed: list[dict[str, Any]], micro_model: str, tmp_path: Path, ray_client: str
) -> None:
    """By the one word ``cluster=ray://...``, for a recipe with ranks."""
    asked = ["train", recipe(micro_model, tmp_path), *SAME, RANKS, f"cluster={ray_client}"]
    for _ in range(4):  # Ray forks a server for each client beside threads of gRPC, and a few hang: nothing was begun
        command = [sys.executable, "-m", "coevolve.cli", *asked]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        if "no Ray cluster can be reached at" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    check(lines(tmp_path), undisturbed)


def torchrun(processes: int, *asked: str, machines: int = 1) -> list[subprocess.CompletedProcess[str]]:
    """``coevolve train`` in so many processes of each machine's torchrun; machines are all this one."""
    where = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())] if machines > 1 else []
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), *where]

    def one(machine: int) -> subprocess.CompletedProcess[str]:
        which = ["--nnodes", str(machines), "--node-rank", str(machine)]
        command = [*launcher, *which, "-m", "coevolve.cli", "train", *asked]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment, check=False)

    with ThreadPoolExecutor(machines) as side_by_side:
        return list(side_by_side.map(one, range(machines)))


@pytest.mark.parametrize("machines", [1, 2])
def test_ranks_of_torchrun_learn_what_one_process_does(
    machines: int, undisturbed: list[dict[str, Any]], micro_model: str, tmp_path: Path
) -> None:
    """Two of each policy, on two machines one policy each; the first process trains, too."""
    ranks = "learner={name: fsdp, ranks: 2, deadline: 240, cluster: torchrun}"
    done = torchrun(4 // machines, recipe(micro_model, tmp_path), *SAME, ranks, machines=machines)
    assert [one.returncode for one in done] == [0] * machines, done[0].stderr[-3000:]
    assert [one.stdout.count("compute:") for one in done] == [1, 0][:machines]  # the others are silent
    check(lines(tmp_path), undisturbed)
    if machines == 1:  # evaluated without torchrun
        assert cli.main(["eval", str(tmp_path / "run"), "--problems", "2"]) == 0


def process_of(recipe: str, rank: int) -> int:
    """The process of torchrun's that is this rank."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            here = recipe.encode() in (entry / "cmdline").read_bytes()
            if here and f"RANK={rank}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                return int(entry.name)
    raise AssertionError(f"there is no rank {rank}")


def test_a_rank_that_is_lost_on_another_machine_ends_the_run(micro_model: str, tmp_path: Path) -> None:
    """In one line, as only torchrun can start it again."""
    file = recipe(micro_model, tmp_path)
    ranks = "learner={name: fsdp, ranks: 2, deadline: 240, cluster: torchrun}"
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(torchrun, 2, file, *SAME, "steps=100000", ranks, machines=2)
        while not (tmp_path / "run" / "metrics.jsonl").exists() or len(lines(tmp_path)) < 3:
            assert not running.done(), running.result()[0].stderr[-3000:]
            time.sleep(0.1)
        os.kill(process_of(file, 3), signal.SIGKILL)
        first, second = running.result()
    assert first.returncode != 0 != second.returncode
    [told] = [line for line in first.stderr.splitlines() if line.startswith("error: ")]
    # torchrun ends the other rank of that machine, too, and either may be missed first
    assert re.search(r"rank [01] of 2 of policy 'bob' died \(torchrun tells which failed first, and", told)
    assert "could not write" not in told
    assert "; its other ranks were ended; start torchrun again; " in told and told.endswith("; continue with --resume")
    assert "checkpoint" not in first.stdout  # nothing was tried from inside


def test_too_few_processes_of_torchrun_are_told(micro_model: str, tmp_path: Path) -> None:
    ranks = "learner={name: fsdp, ranks: 2, deadline: 240, cluster: torchrun}"
    [done] = torchrun(2, recipe(micro_model, tmp_path), *SAME, ranks)
    assert done.returncode != 0
    assert "policy 'bob': 2 ranks, and 0 of torchrun's processes are free" in done.stderr


def test_torchrun_and_the_recipe_have_to_agree(
    micro_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ["train", recipe(micro_model, tmp_path), *SAME]
    assert cli.main([*asked, "learner={name: fsdp, ranks: 2, cluster: torchrun}"]) == 2
    assert "learner.cluster is torchrun, which did not start this; `torchrun --nproc" in capfd.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "here")
    assert cli.main(asked) == 2
    assert "torchrun started this several times over, and the recipe does not ask for it" in capfd.readouterr().err
