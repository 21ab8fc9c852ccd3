"""Ranks on the machines of a Ray cluster: one placement group for all ranks of a policy, an actor for each.

Ray places, starts and ends them, and says who died; what they are asked, and what they tell each other, is as in
``ranks``. It needs the package ray (``coevolve[cluster]``), with coevolve on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any
from weakref import WeakSet

from coevolve.faults import ShortageError, handlers_kept, one_line
from coevolve.runtime.ranks import Rank, Ranks

ANY = "ray"
"""The cluster of RAY_ADDRESS, or that runs here, or else one of this machine alone."""


class PlacedRank(Rank):
    """A rank in an actor."""

    def host(self) -> str:
        """Of its machine."""
        import ray

        return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


class Placed(Ranks):
    """Ranks that Ray placed, each with one core and, on GPUs, one card of its own. address: of the cluster."""

    own_card = True

    def __init__(self, name: str, count: int, device: str, seconds: float, address: str) -> None:
        super().__init__(name, count, device, seconds)
        self.ray = connected(address)
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self.need = need = {"CPU": 1.0} | ({"GPU": 1.0} if device == "cuda" else {})
        _check_room(name, count, need, self.ray.cluster_resources())
        self.group = placement_group([need] * count, strategy="PACK")
        _placed.add(self)
        self.actors: list[Any] = []
        self.asked: dict[Any, int] = {}
        if not self.group.wait(seconds):
            self.close()
            raise ShortageError(f"policy {name!r}: {count} ranks found no room on the cluster within {seconds:g} s")
        for number in range(count):
            where = PlacementGroupSchedulingStrategy(self.group, number)
            kind = self.ray.remote(num_cpus=1, num_gpus=need.get("GPU", 0), max_restarts=0, scheduling_strategy=where)
            self.actors.append(kind(PlacedRank).remote(number, count))

    def send(self, asked: bytes) -> None:
        """To every rank, put into Ray's memory once."""
        given = self.ray.put(asked)
        self.asked = {actor.do.remote(given): rank for rank, actor in enumerate(self.actors)}

    def done(self, waiting: Collection[int], seconds: float) -> Collection[int]:
        """By what Ray says is ready, which includes the end of an actor."""
        refs = [ref for ref, rank in self.asked.items() if rank in waiting]
        ready, _ = self.ray.wait(refs, num_returns=1, timeout=seconds)
        return [self.asked[ref] for ref in ready]

    def answer(self, rank: int) -> bytes:
        """Of one that is done."""
        [ref] = [ref for ref, number in self.asked.items() if number == rank]
        try:
            found: bytes = self.ray.get(ref)
            return found
        except self.ray.exceptions.RayError as error:
            raise EOFError(one_line(error)[:300]) from error

    def end(self) -> None:
        """Kill the actors, and give their places back."""
        from ray.util.placement_group import remove_placement_group

        if self.ray.is_initialized():
            for actor in self.actors:
                self.ray.kill(actor)
            remove_placement_group(self.group)


_placed = WeakSet[Placed]()
"""By this process."""


def connected(address: str) -> Any:
    """The module ray, connected to a cluster. Raises ValueError where it is not installed, or no cluster is there."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ValueError("a cluster needs the package ray; pip install 'coevolve[cluster]'") from error
    if not ray.is_initialized():
        try:
            with handlers_kept():
                ray.init(address=None if address == ANY else address, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            said = one_line(error)[:300]
            raise ValueError(f"no Ray cluster can be reached at {address!r} ({said})") from error
    return ray


def has_cards(address: str) -> bool:
    """Whether any machine of the cluster has a GPU."""
    return bool(connected(address).cluster_resources().get("GPU", 0))


def nodes(address: str) -> list[str]:
    """A line for each machine of the cluster: its address, and what it has."""
    lines = []
    for node in connected(address).nodes():
        has: Mapping[str, float] = node.get("Resources", {})
        memory = f"{has.get('memory', 0) / 2**30:.0f} GiB"
        kinds = [key.removeprefix("accelerator_type:") for key in has if key.startswith("accelerator_type:")]
        cards = f"{has.get('GPU', 0):g} GPUs" + (f" ({', '.join(kinds)})" if kinds else "")
        alive = "" if node["Alive"] else ", gone"
        lines.append(f"{node['NodeManagerAddress']}: {has.get('CPU', 0):g} cores, {cards}, {memory}{alive}")
    return lines


def _check_room(name: str, count: int, need: Mapping[str, float], has: Mapping[str, float]) -> None:
    """Raises ShortageError for more than the cluster has beside what this process has placed, which keeps it; what
    others use may become free."""
    ours = [one for one in _placed if not one.ended]
    for what, one in need.items():
        holders = [other for other in ours if other.need.get(what)]
        taken = sum(other.count * other.need[what] for other in holders)
        if count * one > has.get(what, 0) - taken:
            there = f"{has.get(what, 0):g}"
            if taken:
                there += f", {taken:g} of them for {', '.join(sorted(other.name for other in holders))}"
            raise ShortageError(
                f"policy {name!r}: {count} ranks need {count * one:g} {what}, the cluster has {there}; "
                "want fewer ranks, or more machines (`coevolve doctor --cluster` lists them)"
            )
