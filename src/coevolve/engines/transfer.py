"""Full weights sent to a vLLM server without the disk, by vLLM's own weight transfer.

The process that has the weights sends them, which may be a rank of a learner: it calls the server's routes, and hands
over the tensors by NCCL (the server is on other GPUs) or by CUDA IPC (it is on the same GPU, where NCCL refuses a
second process). Each publish opens a connection of its own, so that neither side depends on the other's past.
"""

from __future__ import annotations

import asyncio
import base64
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from httpx2 import AsyncClient
from torch import Tensor
from torch.cuda import nccl
from torch.multiprocessing.reductions import reduce_tensor

from coevolve.faults import ShortageError
from coevolve.interfaces import Published
from coevolve.models.load import device_of
from coevolve.models.policy import DTYPES
from coevolve.runtime.requests import FailedError, requests, run, sent

Way = Literal["nccl", "ipc"]

INIT, START, UPDATE = "/init_weight_transfer_engine", "/start_weight_update", "/update_weights"
FINISH, END, SIZE = "/finish_weight_update", "/shutdown_weight_transfer_engine", "/get_world_size"
ROUTES = (INIT, START, UPDATE, FINISH, END, SIZE)


class Nccl:
    """A NCCL communicator with the server's workers, in which this process is rank 0.

    PyTorch's own binding of the library, as vLLM is in another environment; both need the same version of NCCL, hence
    of PyTorch.
    """

    device = "cuda"
    """The type of device whose tensors it sends."""

    def __init__(self) -> None:
        self.place: bytes = nccl.unique_id()  # type: ignore[no-untyped-call]
        """The 128 bytes by which the workers find it."""

    def open(self, world: int, device: torch.device) -> None:
        """Join, and return once all ``world`` processes have. vLLM's workers then add up one number, in which every
        rank has to take part."""
        with torch.cuda.device(device):
            self.joined: Any = nccl.init_rank(world, self.place, 0)  # type: ignore[no-untyped-call]
            nccl.all_reduce([torch.zeros(1, device=device)], comms=[self.joined])  # type: ignore[no-untyped-call]
            torch.cuda.synchronize(device)

    def broadcast(self, x: Tensor) -> None:
        """Send a tensor to every worker."""
        with torch.cuda.device(x.device):
            nccl.broadcast([x], comms=[self.joined])
            torch.cuda.synchronize(x.device)


def check_transfer(way: Way, team: Sequence[Published], group: type[Nccl]) -> None:
    """Raise ValueError for full weights of this team that cannot be sent in this way."""
    for new in team:
        if new.spec.weights != "full":
            continue
        device, needed = device_of(new.spec.device).type, "cuda" if way == "ipc" else group.device
        if device != needed:
            raise ValueError(
                f"policy {new.name!r}: engine.transfer is {way}, which sends from GPU to GPU, and its weights are on "
                f"the device {device}; say transfer: disk"
            )
        if new.send is None:
            raise ValueError(
                f"policy {new.name!r}: its learner cannot send weights (Published.send is None); say transfer: disk"
            )


@dataclass(frozen=True)
class Transfer:
    """Sends full weights to the server at ``url``; can be sent to another process itself (``interfaces.Send``).

    dtype: of the server's computation. seconds: the deadline of one publish. whose: the policy, its version and the
    server, for errors. group: the connection, for NCCL.
    """

    url: str
    way: Way
    dtype: str
    seconds: float
    whose: str
    group: type[Nccl]

    def __call__(self, weights: Mapping[str, Tensor], whole: Callable[[Tensor], Tensor]) -> None:
        """Send these weights. Raises OSError if the server fails or is late, ValueError if it refuses."""
        try:
            run(self._send(weights, lambda x: whole(x).detach().to(DTYPES[self.dtype]).contiguous()))
        except FailedError as error:
            raise ShortageError(f"{self.whose} failed: {error}") from error
        except ValueError as error:
            raise ValueError(f"{self.whose}: {error}") from error

    async def _send(self, weights: Mapping[str, Tensor], ready: Callable[[Tensor], Tensor]) -> None:
        about = {
            "names": list(weights),
            "dtype_names": [self.dtype] * len(weights),
            "shapes": [list(x.shape) for x in weights.values()],
        }
        async with requests(self.url, self.seconds, lambda: f"{self.whose} did not take all weights") as client:
            send = self._by_nccl if self.way == "nccl" else self._by_ipc
            await send(client, about, list(weights.values()), ready)
            await sent(client, FINISH, {})
            await sent(client, END, {})

    async def _by_nccl(
        self, client: AsyncClient, about: dict[str, Any], weights: list[Tensor], ready: Callable[[Tensor], Tensor]
    ) -> None:
        group, device = self.group(), weights[0].device
        world = 1 + int((await sent(client, SIZE)).json()["world_size"])
        place = base64.b64encode(group.place).decode()
        init = {"nccl_unique_id_b64": place, "rank_offset": 1, "world_size": world}
        await _both(sent(client, INIT, {"init_info": init}), lambda: group.open(world, device))
        await sent(client, START, {})

        def broadcast() -> None:
            for x in weights:
                group.broadcast(ready(x))

        await _both(sent(client, UPDATE, {"update_info": about}), broadcast)

    async def _by_ipc(
        self, client: AsyncClient, about: dict[str, Any], weights: list[Tensor], ready: Callable[[Tensor], Tensor]
    ) -> None:
        await sent(client, INIT, {"init_info": {"packed": False}})
        await sent(client, START, {})
        kept = [ready(x) for x in weights]  # until the server has copied them
        await sent(client, UPDATE, {"update_info": about | {"ipc_handles_pickled": _handles(kept)}})


def _handles(tensors: Sequence[Tensor]) -> str:
    """Return the handles by which a process on the same GPU opens these tensors, as vLLM takes them."""
    card = str(torch.cuda.get_device_properties(tensors[0].device).uuid)
    handles = [{card: reduce_tensor(x)[1]} for x in tensors]  # type: ignore[no-untyped-call]
    return base64.b64encode(pickle.dumps(handles)).decode()


async def _both(request: Any, work: Callable[[], None]) -> None:
    """Wait for a request and for work in a thread, which only end together; raise the first error of the two.

    If one fails, the other is left alone: the thread may hang in a library that takes no interrupt."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    failed: list[BaseException] = []

    def here() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (raised by who waits)
            failed.append(error)
        with suppress(RuntimeError):  # nobody waits any longer
            loop.call_soon_threadsafe(done.set)

    async def worked() -> None:
        await done.wait()
        if failed:
            raise failed[0]

    threading.Thread(target=here, daemon=True).start()
    await asyncio.gather(request, worked())
