"""Full weights sent to a vLLM server without the disk, by vLLM's own weight transfer.

The process that has the weights sends them, which may be a rank of a learner: it calls the server's routes, and hands
over the tensors by NCCL (the server is on other GPUs) or by CUDA IPC (it is on the same GPU, where NCCL refuses a
second process). Each publish opens a connection and closes it.
"""

from __future__ import annotations

import base64
import logging
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from coevolve.engines.arrival import kept
from coevolve.faults import ShortageError, one_line
from coevolve.interfaces import Published
from coevolve.models.policy import DTYPES
from coevolve.runtime.beside import Beside
from coevolve.runtime.requests import FailedError, asked

Way = Literal["nccl", "ipc"]

INIT, START, UPDATE = "/init_weight_transfer_engine", "/start_weight_update", "/update_weights"
FINISH, END, SIZE = "/finish_weight_update", "/shutdown_weight_transfer_engine", "/get_world_size"
ROUTES = (INIT, START, UPDATE, FINISH, END, SIZE)

PIECE = 1 << 30
"""Bytes of weights that are copied at a time for a server on the same GPU."""
_PAUSE = 0.05
"""Seconds between two looks whether something has failed meanwhile."""
_LEAVES = 5.0
"""Seconds within which a communicator is closed."""


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
                f"engine.transfer is nccl, which needs the package nccl4py ({one_line(error)}); pip install "
                "'coevolve[nccl]', or say transfer: disk"
            ) from error
        with _nccl_errors():
            self._id: Any = get_unique_id()
        self._joined: Any = None
        self._closed = False
        self.place: bytes = bytes(self._id)
        """The 128 bytes by which the workers find it."""

    def open(self, world: int, device: torch.device) -> None:
        """Join, and return once all ``world`` processes have. vLLM's workers then add up one number, in which every
        rank has to take part."""
        from nccl.core import SUM, Communicator

        with _nccl_errors(), torch.cuda.device(device):
            self._joined = Communicator.init(world, 0, self._id)
            # A stream of its own: one that hangs holds up nothing else.
            self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            one = torch.zeros(1, device=device)
            self._stream.wait_stream(torch.cuda.current_stream())
            self._joined.allreduce(one, one, SUM, stream=self._stream.cuda_stream)
            self._stream.synchronize()
            if self._closed:  # nobody has waited for it
                self._joined.abort()

    def broadcast(self, x: Tensor) -> None:
        """Send a tensor to every worker, and return once it has arrived."""
        with _nccl_errors(), torch.cuda.device(x.device):
            self._stream.wait_stream(torch.cuda.current_stream())
            self._joined.broadcast(x, x, 0, stream=self._stream.cuda_stream)
            self._stream.synchronize()

    def close(self) -> None:
        """Leave; whatever is under way ends. vLLM's workers abort theirs, too."""
        self._closed = True
        if self._joined is not None:
            with _nccl_errors():
                self._joined.abort()


@contextmanager
def _nccl_errors() -> Iterator[None]:
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

    def __call__(self, weights: Mapping[str, Tensor], whole: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Send these weights, and return some of them (``arrival.kept``). Raises OSError if the server fails or is
        late, ValueError if it refuses, and for weights that are on no GPU."""
        device = next(iter(weights.values())).device
        if device.type != self.group.device:
            raise ValueError(
                f"{self.whose}: engine.transfer is {self.way}, which sends from GPU to GPU, and these weights are on "
                f"the device {device.type}; say transfer: disk"
            )
        try:
            return (self._by_nccl if self.way == "nccl" else self._by_ipc)(weights, whole, device)
        except (FailedError, ShortageError) as error:
            raise ShortageError(f"{self.whose} failed: {error}") from error
        except ValueError as error:
            raise ValueError(f"{self.whose}: {error}") from error

    def _by_nccl(
        self, weights: Mapping[str, Tensor], whole: Callable[[Tensor], Tensor], device: torch.device
    ) -> dict[str, Tensor]:
        group, told = self.group(), dict[str, Tensor]()
        try:
            world = 1 + int(self._ask(SIZE).json()["world_size"])
            place = base64.b64encode(group.place).decode()
            init = {"nccl_unique_id_b64": place, "rank_offset": 1, "world_size": world}
            joining = Beside(lambda: group.open(world, device))
            asking = Beside(lambda: self._ask(INIT, {"init_info": init}))
            self._wait("it did not join", joining, asking)
            self._ask(START)
            taking = Beside(lambda: self._ask(UPDATE, {"update_info": self._about(weights.items())}))
            for name, x in weights.items():
                sent = whole(x).detach().to(DTYPES[self.dtype]).contiguous()
                self._wait("it did not take all weights", Beside(partial(group.broadcast, sent)), unless=taking)
                told |= kept([(name, sent)])
            self._wait("it did not take all weights", taking)
            self._ask(FINISH)
            self._ask(END)
        finally:
            _closed(group)
        return told

    def _by_ipc(
        self, weights: Mapping[str, Tensor], whole: Callable[[Tensor], Tensor], device: torch.device
    ) -> dict[str, Tensor]:
        told = dict[str, Tensor]()
        self._ask(INIT, {"init_info": {"packed": False}})
        self._ask(START)
        for piece in _pieces(weights):
            # Copies, which stay until the server has its own; those of the weights themselves could never be freed.
            sent = [whole(x).detach().to(DTYPES[self.dtype], copy=True).contiguous() for _, x in piece]
            self._ask(UPDATE, {"update_info": {**self._about(piece), "ipc_handles_pickled": _handles(sent)}})
            told |= kept((name, x) for (name, _), x in zip(piece, sent, strict=True))
            del sent
        self._ask(FINISH)
        self._ask(END)
        if device.type == "cuda":
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        return told

    def _about(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, Any]:
        names, shapes = zip(*((name, list(x.shape)) for name, x in weights), strict=True)
        return {"names": names, "dtype_names": [self.dtype] * len(names), "shapes": shapes}

    def _ask(self, route: str, body: Any = None) -> Any:
        return asked(self.url, route, None if route == SIZE else body or {}, self.seconds)

    def _wait(self, late: str, *works: Beside[Any], unless: Beside[Any] | None = None) -> None:
        """Wait until all of these have ended. Raises their error, that of ``unless``, or, after the deadline,
        ShortageError in the words of ``late``."""
        end = time.monotonic() + self.seconds
        while not all(one.ended.wait(_PAUSE) for one in works):
            if unless is not None and unless.failed is not None:
                raise unless.failed
            if failed := next((one.failed for one in works if one.failed is not None), None):
                raise failed
            if time.monotonic() > end:
                raise ShortageError(f"{late} within {self.seconds:g} s")
        if failed := next((one.failed for one in works if one.failed is not None), None):
            raise failed


def _closed(group: Nccl) -> None:
    """Leave the group, and warn if that fails or takes too long: what was sent has arrived, or another error is
    raised."""
    closing = Beside(group.close)
    if not closing.ended.wait(_LEAVES) or closing.failed is not None:
        said = f" ({one_line(closing.failed)})" * (closing.failed is not None)
        logging.getLogger(__name__).warning("a NCCL communicator was not closed%s", said)


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
