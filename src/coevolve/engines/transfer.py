"""Full weights sent to a vLLM server without the disk, by vLLM's own weight transfer.

The process that has the weights sends them, which may be a rank of a learner: it calls the server's routes, and hands
over the tensors by NCCL (the server is on other GPUs) or by CUDA IPC (it is on the same GPU, where NCCL refuses a
second process). Each publish opens a connection and closes it.
"""

from __future__ import annotations

import base64
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from coevolve.faults import ShortageError, one_line
from coevolve.interfaces import Published
from coevolve.models.policy import DTYPES
from coevolve.runtime.requests import FailedError, asked

Way = Literal["nccl", "ipc"]

INIT, START, UPDATE = "/init_weight_transfer_engine", "/start_weight_update", "/update_weights"
FINISH, END, SIZE = "/finish_weight_update", "/shutdown_weight_transfer_engine", "/get_world_size"
ROUTES = (INIT, START, UPDATE, FINISH, END, SIZE)

PIECE = 1 << 30
"""Bytes of weights that are copied at a time for a server on the same GPU."""
_PAUSE = 1e-4
"""Seconds between two looks whether a tensor has arrived."""


class Nccl:
    """A NCCL communicator with the server's workers, in which this process is rank 0.

    By NVIDIA's binding (nccl4py), as vLLM is in another environment. Both need the same version of NCCL, hence of
    PyTorch.
    """

    device = "cuda"
    """The type of device whose tensors it sends."""

    def __init__(self) -> None:
        try:
            from nccl.core import get_unique_id
        except ImportError as error:
            raise ValueError(
                "engine.transfer is nccl, which needs the package nccl4py; pip install 'coevolve[nccl]', or say "
                "transfer: disk"
            ) from error
        with _told():
            self._id: Any = get_unique_id()
        self._joined: Any = None
        self.place: bytes = bytes(self._id)
        """The 128 bytes by which the workers find it."""

    def open(self, world: int, device: torch.device) -> None:
        """Join, and return once all ``world`` processes have. vLLM's workers then add up one number, in which every
        rank has to take part."""
        from nccl.core import SUM, Communicator

        with _told(), torch.cuda.device(device):
            self._joined = Communicator.init(world, 0, self._id)
            self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call] # of its own: one that hangs holds up nothing else
            one = torch.zeros(1, device=device)
            self._stream.wait_stream(torch.cuda.current_stream())
            self._joined.allreduce(one, one, SUM, stream=self._stream.cuda_stream)
            self._stream.synchronize()

    def broadcast(self, x: Tensor) -> Callable[[], bool]:
        """Begin to send a tensor to every worker; return a function that says whether it has arrived."""
        with _told(), torch.cuda.device(x.device):
            self._stream.wait_stream(torch.cuda.current_stream())
            self._joined.broadcast(x, x, 0, stream=self._stream.cuda_stream)
            event: torch.cuda.Event = self._stream.record_event()
            return event.query

    def close(self) -> None:
        """Leave; whatever is under way ends. vLLM's workers abort theirs, too."""
        if self._joined is not None:
            try:
                self._joined.abort()
            except Exception as error:  # noqa: BLE001 (what was sent has arrived, or another error is raised)
                logging.getLogger(__name__).warning("a NCCL communicator was not closed (%s)", one_line(error))


@contextmanager
def _told() -> Iterator[None]:
    """Raise ShortageError for whatever goes wrong in NCCL, whose binding's errors have no class in common."""
    try:
        yield
    except Exception as error:
        raise ShortageError(
            f"NCCL fails ({one_line(error)}); a server on the GPU of the learner takes transfer: ipc, and both need "
            "the same version of PyTorch's NCCL"
        ) from error


def check_transfer(way: Way, team: Sequence[Published]) -> None:
    """Raise ValueError for full weights of this team that cannot be sent."""
    for new in team:
        if new.spec.weights == "full" and new.send is None:
            raise ValueError(
                f"policy {new.name!r}: engine.transfer is {way}, and its learner cannot send weights (Published.send "
                "is None); say transfer: disk"
            )


@dataclass(frozen=True)
class Transfer:
    """Sends full weights to the server at ``url``; can be sent to another process itself (``interfaces.Send``).

    dtype: of the server's computation. seconds: the deadline of each request, of which one lasts until all tensors have
    arrived. whose: the policy, its version and the server, for errors. group: the connection, for NCCL.
    """

    url: str
    way: Way
    dtype: str
    seconds: float
    whose: str
    group: type[Nccl]

    def __call__(self, weights: Mapping[str, Tensor], whole: Callable[[Tensor], Tensor]) -> None:
        """Send these weights. Raises OSError if the server fails or is late, ValueError if it refuses, and for weights
        that are on no GPU."""
        device = next(iter(weights.values())).device
        if device.type != self.group.device:
            raise ValueError(
                f"{self.whose}: engine.transfer is {self.way}, which sends from GPU to GPU, and these weights are on "
                f"the device {device.type}; say transfer: disk"
            )
        try:
            (self._by_nccl if self.way == "nccl" else self._by_ipc)(weights, whole, device)
        except (FailedError, ShortageError) as error:
            raise ShortageError(f"{self.whose} failed: {error}") from error
        except ValueError as error:
            raise ValueError(f"{self.whose}: {error}") from error

    def _by_nccl(self, weights: Mapping[str, Tensor], whole: Callable[[Tensor], Tensor], device: torch.device) -> None:
        group = self.group()
        try:
            world = 1 + int(self._ask(SIZE).json()["world_size"])
            place = base64.b64encode(group.place).decode()
            init = {"nccl_unique_id_b64": place, "rank_offset": 1, "world_size": world}
            joining = _Beside(lambda: group.open(world, device))
            asking = _Beside(lambda: self._ask(INIT, {"init_info": init}))
            self._wait(lambda: joining.done and asking.done, joining, asking)
            self._ask(START)
            taking = _Beside(lambda: self._ask(UPDATE, {"update_info": self._about(weights.items())}))
            for x in weights.values():
                sent = whole(x).detach().to(DTYPES[self.dtype]).contiguous()
                self._wait(group.broadcast(sent), taking)
            self._wait(lambda: taking.done, taking)
            self._ask(FINISH)
            self._ask(END)
        finally:
            group.close()

    def _by_ipc(self, weights: Mapping[str, Tensor], whole: Callable[[Tensor], Tensor], device: torch.device) -> None:
        self._ask(INIT, {"init_info": {"packed": False}})
        self._ask(START)
        for piece in _pieces(weights):
            # Copies, which stay until the server has its own: a handle keeps its storage from ever being freed.
            kept = [whole(x).detach().to(DTYPES[self.dtype], copy=True).contiguous() for _, x in piece]
            self._ask(UPDATE, {"update_info": {**self._about(piece), "ipc_handles_pickled": _handles(kept)}})
            del kept
            if device.type == "cuda":
                torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
                torch.cuda.empty_cache()
        self._ask(FINISH)
        self._ask(END)

    def _about(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, Any]:
        names, shapes = zip(*((name, list(x.shape)) for name, x in weights), strict=True)
        return {"names": names, "dtype_names": [self.dtype] * len(names), "shapes": shapes}

    def _ask(self, route: str, body: Any = None) -> Any:
        return asked(self.url, route, None if route == SIZE else body or {}, self.seconds)

    def _wait(self, arrived: Callable[[], bool], *beside: _Beside) -> None:
        """Wait until ``arrived``. Raises the error of what runs beside, and ShortageError after the deadline."""
        end = time.monotonic() + self.seconds
        while not arrived():
            for one in beside:
                if one.failed is not None:
                    raise one.failed
            if time.monotonic() > end:
                raise ShortageError(f"it did not take all weights within {self.seconds:g} s")
            time.sleep(_PAUSE)


class _Beside:
    """Work in a thread that nobody waits for: it may hang in a library that takes no interrupt."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.done, self._work = False, work
        self.failed: Exception | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._work()
            self.done = True
        except Exception as error:  # noqa: BLE001 (raised by who waits)
            self.failed = error


def _pieces(weights: Mapping[str, Tensor]) -> Iterator[list[tuple[str, Tensor]]]:
    """Yield the weights in lists of at most ``PIECE`` bytes in float32, or of one tensor."""
    piece, size = list[tuple[str, Tensor]](), 0
    for name, x in weights.items():
        if piece and size + 4 * x.numel() > PIECE:
            yield piece
            piece, size = [], 0
        piece.append((name, x))
        size += 4 * x.numel()
    yield piece


def _handles(tensors: Sequence[Tensor]) -> str:
    """Return the handles by which a process on the same GPU opens these tensors, as vLLM takes them."""
    card = str(torch.cuda.get_device_properties(tensors[0].device).uuid)
    handles = [{card: reduce_tensor(x)[1]} for x in tensors]  # type: ignore[no-untyped-call]
    return base64.b64encode(pickle.dumps(handles)).decode()
