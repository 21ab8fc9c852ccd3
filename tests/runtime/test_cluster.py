"""Ranks that Ray places: on two machines (here two of Ray's nodes), with a rank, then a machine, that is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from handlers_kept import handlers_kept
from policy_cases import make_batch, make_targets, weighted_loss
from safetensors.torch import load_file

from coevolve import cli
from coevolve.faults import RanksLostError, ShortageError
from coevolve.learners import fsdp
from coevolve.learners.build import build_policies
from coevolve.models.spec import PolicySpec
from coevolve.runtime.child import free_port
from coevolve.runtime.ranks import Ranks, packed
from coevolve.types import Batch, Objective

pytest.importorskip("ray", reason="placing ranks needs the package ray (coevolve[cluster])")

from coevolve.runtime import cluster

pytestmark = pytest.mark.slow


class Share:
    """A thing of two ranks, without a model."""

    def __init__(self, number: int, count: int) -> None:
        self.number, self.count = number, count

    def facts(self) -> list[int]:
        return self.total(1)

    def total(self, x: int) -> list[int]:
        """Of all ranks' numbers, times x; and the process."""
        mine = torch.tensor(float(x * (self.number + 1)))
        torch.distributed.all_reduce(mine)
        return [int(mine), os.getpid()]

    def die(self, who: int) -> None:
        if self.number == who:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.distributed.barrier()

    def sleep(self, who: int) -> None:
        """This rank, or all if there is no such rank."""
        time.sleep(60 * (who in (self.number, 3)))


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Any]:
    """A cluster of a head with two cores and another machine with two."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join((str(Path(__file__).parent), str(Path(__file__).parents[1]))))
        with handlers_kept():
            made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20})
            made.add_node(num_cpus=2, object_store_memory=80 << 20)
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def ranks(two_nodes: Any) -> Iterator[Callable[..., Ranks]]:
    started: list[Ranks] = []

    def start(name: str, count: int = 2, seconds: float = 60.0) -> Ranks:
        started.append(cluster.RayRanks(name, count, "cpu", seconds, two_nodes.address))
        started[-1].start(Share)
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_a_cluster_lists_its_machines(two_nodes: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--cluster", two_nodes.address]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert sorted(line.split(": ")[1].split(",")[0] for line in lines) == ["1 cores", "2 cores"]


@pytest.mark.parametrize("client", ["", "ray://"])
def test_an_address_at_which_nothing_listens_is_told_at_once(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray alone tries for more than ten minutes."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **_: pytest.fail("asked Ray"))
    address, began = f"{client}127.0.0.1:{free_port()}", time.monotonic()
    told = rf"^no Ray cluster can be reached at '{address}' \(.*refused.*\); want the address that `ray start --head`"
    with pytest.raises(ValueError, match=told):
        cluster.connected(address, 60)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ValueError, match=told):
        cluster.connected(cluster.ANY, 60)
    assert time.monotonic() - began < 5


def test_an_address_at_which_something_else_listens_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray alone tried for eight minutes, and was stopped."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **_: time.sleep(30))
    with socket.create_server(("127.0.0.1", 0)) as other:
        address, began = f"127.0.0.1:{other.getsockname()[1]}", time.monotonic()
        words = rf"^policy 'a': Ray did not connect to '{address}', where something else may listen, within 0.5 s"
        with pytest.raises(ShortageError, match=words):
            cluster.RayRanks("a", 1, "cpu", 0.5, address)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("address", "there", "mode", "named"),
    [
        ("ray://a:1", "", None, True),
        ("ray://a:1", "", "token", False),
        ("ray", "", None, False),
        ("auto", "", None, False),
        ("ray", "a:1", None, True),
    ],
)
def test_a_cluster_that_may_want_a_token_is_told(
    address: str, there: str, mode: str | None, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray takes none by itself for an address that it is told, and says "timeout". there: RAY_ADDRESS."""

    def refused(**_: Any) -> None:
        raise ConnectionError("timeout")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", refused)
    monkeypatch.setattr(cluster, "_check_listens", lambda address: None)
    for name, value in {"RAY_ADDRESS": there, "RAY_AUTH_MODE": mode}.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=r"\(timeout\)") as error:
        cluster.connected(address, 60)
    assert (
        "; if `ray start` said that token authentication is enabled, set RAY_AUTH_MODE" in str(error.value)
    ) == named


def test_a_cluster_that_is_started_here_stays_up() -> None:
    """Linux ends its processes together with the thread that started them."""
    code = (
        "import time; from coevolve.runtime.cluster import RayRanks\n"
        "ranks = RayRanks('ann', 1, 'cpu', 90.0, 'local'); time.sleep(3)\n"
        "print(ranks.ask('of the test', 'host')); ranks.close()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0 and "." in done.stdout, done.stderr
    assert "SIGTERM" not in done.stderr  # Ray's warning of where it connects


@pytest.mark.parametrize("address", ["auto", "local", "", "10.0.0.1", "ray://somewhere", "redis://10.0.0.1:1"])
def test_an_address_without_host_and_port_is_left_to_ray(address: str) -> None:
    cluster._check_listens(address)


def test_what_ends_a_process_stays_what_it_was(two_nodes: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert cluster.connected(two_nodes.address, 60).is_initialized()
    assert signal.getsignal(signal.SIGTERM) is before is signal.SIG_DFL


def test_more_ranks_than_the_cluster_has_room_for_are_refused_at_once(ranks: Callable[..., Ranks]) -> None:
    told = "policy 'ann': 9 ranks need 9 CPU, the cluster has 3; want fewer ranks, or more machines"
    with pytest.raises(ShortageError, match=told):
        ranks("ann", count=9)


def test_ranks_beside_those_of_another_policy_are_refused_at_once(ranks: Callable[..., Ranks]) -> None:
    """Which keeps what it has for as long as the run is: nothing is worth waiting for."""
    ann = ranks("ann")
    told = "policy 'bob': 2 ranks need 2 CPU, the cluster has 3, 2 of them for ann; want fewer ranks, or more machines"
    with pytest.raises(ShortageError, match=told):
        ranks("bob", seconds=2.0)
    ann.close()
    ranks("bob").close()


def test_a_rank_that_dies_is_told_and_its_place_is_free_again(ranks: Callable[..., Ranks]) -> None:
    ann = ranks("ann")
    assert [answer[0] for answer in ann.ask("of step 1", "total", 5)] == [15, 15]
    with pytest.raises(
        RanksLostError, match=r"rank 1 of 2 of policy 'ann' died \(.*; die of step 2\); its other ranks"
    ):
        ann.ask("of step 2", "die", 1)
    bob = ranks("bob")
    bob.seconds = 5.0
    with pytest.raises(
        RanksLostError, match=r"rank 0 of 2 of policy 'bob' did not answer within 5 s \(sleep of step 3"
    ):
        bob.ask("of step 3", "sleep", 0)


def test_an_answer_that_is_not_here_in_time_is_told(ranks: Callable[..., Ranks]) -> None:
    ann = ranks("ann")
    ann.send(packed((0,), "sleep", "here"))
    with pytest.raises(TimeoutError):
        ann.answer(0, 0.1)


def even(batch: Batch) -> torch.Tensor:
    return batch.mask_BT / batch.mask_BT.sum()


def test_a_policy_learns_there_what_it_learns_here(two_nodes: Any, micro_model: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {"reference": False, "critic": False, "steps": 5, "seed": 0}
    spec = PolicySpec(micro_model, device="cpu", compute="torch", learning_rate=1e-2, micro_tokens=40)
    here = build_policies({"ann": spec}, **how)["ann"]
    there = fsdp("ann", spec, **how, ranks=2, cluster=two_nodes.address, deadline=100.0)
    batch = next(found for rows in range(2, 20) if len(here.micro_batches(found := make_batch(rows, seed=1))) == 2)
    for learner, name in ((here, "here"), (there, "there")):
        learner.update(batch, make_targets(batch, 1), Objective(weighted_loss, even), 0)
        learner.save(tmp_path / name)
    there.close()
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("here", "there"))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_a_machine_that_is_lost_is_told(ranks: Callable[..., Ranks], two_nodes: Any) -> None:
    ann = ranks("ann", count=3, seconds=40.0)
    [other] = two_nodes.worker_nodes
    two_nodes.remove_node(other, allow_graceful=False)
    with pytest.raises(RanksLostError, match="of 3 of policy 'ann' died"):
        ann.ask("of step 4", "sleep", 3)
    told = "policy 'ann': 3 ranks (need 3 CPU, the cluster has 1|found no room on the cluster within 2 s)"
    with pytest.raises(ShortageError, match=told):  # Ray may not have counted yet
        ranks("ann", count=3, seconds=2.0)
