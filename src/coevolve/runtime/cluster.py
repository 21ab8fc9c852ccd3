"""Ranks on the machines of a Ray cluster: one placement group for all ranks of a policy, an actor for each.

Ray places, starts and ends the ranks, and reports dead ones; their calls and their communication are those of
``ranks``. Needs the package ray (``coevolve[cluster]``), and coevolve on every machine.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Collection, Mapping
from typing import Any
from weakref import WeakSet

from coevolve.faults import ShortageError, one_line
from coevolve.runtime.beside import Beside
from coevolve.runtime.ranks import Rank, Ranks

ANY = "ray"
"""The address that means: the cluster of RAY_ADDRESS, else one running on this machine, else a new one of it alone."""
_LISTENS = 10.0
"""Seconds within which a cluster that is reachable lets this process connect."""
_TOLD = 300
"""The most characters of an error of Ray's in a message."""
_LISTED = 60.0
"""Seconds within which it lets this process connect to list its machines."""


class PlacedRank(Rank):
    """A rank in a Ray actor."""

    def host(self) -> str:
        """Return the IP address of the actor's machine."""
        import ray

        return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


class RayRanks(Ranks):
    """Ranks that Ray placed, each with one core and, on GPUs, one GPU of its own. address: that of the cluster."""

    own_card = True

    def __init__(self, name: str, count: int, device: str, seconds: float, address: str) -> None:
        super().__init__(name, count, device, seconds)
        self.ray = connected(address, seconds, f"policy {name!r}: ")
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
        """Send a call to every rank, stored once in Ray's object store."""
        given = self.ray.put(asked)
        self.asked = {actor.do.remote(given): rank for rank, actor in enumerate(self.actors)}

    def done(self, waiting: Collection[int], seconds: float) -> Collection[int]:
        """Return one rank that Ray reports as ready, which includes a dead actor; none after ``seconds``."""
        refs = [ref for ref, rank in self.asked.items() if rank in waiting]
        ready, _ = self.ray.wait(refs, num_returns=1, timeout=seconds)
        return [self.asked[ref] for ref in ready]

    def answer(self, rank: int, seconds: float) -> bytes:
        """Return the answer of a rank that is done, which may be on another machine. Raises EOFError if its actor
        died, TimeoutError after ``seconds``."""
        [ref] = [ref for ref, number in self.asked.items() if number == rank]
        try:
            found: bytes = self.ray.get(ref, timeout=seconds)
            return found
        except self.ray.exceptions.GetTimeoutError as error:
            raise TimeoutError from error
        except self.ray.exceptions.RayError as error:
            raise EOFError(one_line(error)[:_TOLD]) from error

    def end(self) -> None:
        """Kill the actors, and remove their placement group."""
        from ray.util.placement_group import remove_placement_group

        if self.ray.is_initialized():
            for actor in self.actors:
                self.ray.kill(actor)
            remove_placement_group(self.group)


_placed = WeakSet[RayRanks]()
"""The ``RayRanks`` ranks of this process."""


def connected(address: str, seconds: float, whose: str = "") -> Any:
    """Return the module ray, connected to a cluster. Raises ValueError if ray is not installed, or no cluster can be
    reached, ShortageError if that is not known after ``seconds``. whose: the beginning of that message."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray sends no usage statistics
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ValueError("a cluster needs the package ray; pip install 'coevolve[cluster]'") from error
    if not ray.is_initialized():
        logging.getLogger("ray._private.worker").addFilter(_worth_saying)
        where = None if address == ANY else address
        _check_listens(os.environ.get("RAY_ADDRESS", "") if address == ANY else address)
        try:
            # In a thread, as Ray may try for many minutes where another program listens.
            joining = Beside(lambda: ray.init(address=where, log_to_driver=False), stays=True)
            joining.found(seconds, f"{whose}Ray did not connect to {address!r}, where something else may listen,")
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            said = one_line(error)
            said = said if len(said) <= _TOLD else f"... {said[-_TOLD:]}"  # a traceback of Ray's ends with the reason
            raise ValueError(f"no Ray cluster can be reached at {address!r} ({said}){_token(where)}") from error
    return ray


def _token(address: str | None) -> str:
    """Return what to do if a cluster wants a token: Ray takes that of this machine only for a cluster that it has
    found without an address."""
    named = address not in (None, "auto") or os.environ.get("RAY_ADDRESS")
    if not named or "RAY_AUTH_MODE" in os.environ:
        return ""
    return (
        "; if `ray start` said that token authentication is enabled, set RAY_AUTH_MODE=token here, too, and have the "
        "cluster's ~/.ray/auth_token"
    )


def _worth_saying(record: logging.LogRecord) -> bool:
    """Return False for the warning that Ray, connecting in a thread, leaves signals to us, as it should."""
    return not record.getMessage().startswith("SIGTERM handler is not set")


def _check_listens(address: str) -> None:
    """Raise ValueError if nothing listens at the host and port of a cluster: ``ray.init`` would try for more than ten
    minutes. Other addresses are left to Ray."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()) or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _LISTENS).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"no Ray cluster can be reached at {address!r} ({one_line(error)}); want the address that `ray start "
            "--head` printed"
        ) from error


def has_cards(address: str, seconds: float) -> bool:
    """Return whether any machine of the cluster has a GPU. seconds: see ``connected``."""
    return bool(connected(address, seconds).cluster_resources().get("GPU", 0))


def nodes(address: str) -> list[str]:
    """Return a line for each machine of the cluster: its address, cores, GPUs and memory."""
    lines = []
    for node in connected(address, _LISTED).nodes():
        has: Mapping[str, float] = node.get("Resources", {})
        memory = f"{has.get('memory', 0) / 2**30:.0f} GiB"
        kinds = [key.removeprefix("accelerator_type:") for key in has if key.startswith("accelerator_type:")]
        cards = f"{has.get('GPU', 0):g} GPUs" + (f" ({', '.join(kinds)})" if kinds else "")
        alive = "" if node["Alive"] else ", gone"
        lines.append(f"{node['NodeManagerAddress']}: {has.get('CPU', 0):g} cores, {cards}, {memory}{alive}")
    return lines


def _check_room(name: str, count: int, need: Mapping[str, float], has: Mapping[str, float]) -> None:
    """Raise ShortageError if the ranks need more than the cluster has beyond what this process's other ranks hold.
    Resources that other jobs use are not counted, as they may become free."""
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
