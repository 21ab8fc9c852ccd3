"""Tensors in memory that several processes share, and pickling of objects without their tensors."""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import pickle
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import torch
from torch import Tensor, nn

_ALIGNED = 64
"""Tensors begin at multiples of this number of bytes, as PyTorch's own do."""


class SharedMemory:
    """Tensors in one block of memory that several processes share. Unpickled in another process, it is an ``Opened``,
    which gives the tensors.

    Tensors on the meta device get a place in the memory, but stay on the meta device. places: where each of them is.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors, self.places = tensors, list[Place]()
        end = 0
        for tensor in tensors:
            self.places.append(Place(end, tensor.dtype, tuple(tensor.shape), isinstance(tensor, nn.Parameter)))
            end += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        self.size = max(end, 1)
        self.file = _file()
        os.ftruncate(self.file.fileno(), self.size)
        self.views = _views(self.file.fileno(), self.size, self.places)
        self.gather()

    @torch.no_grad()
    def gather(self) -> None:
        """Move tensors whose data is elsewhere back into the shared memory."""
        for tensor, view in zip(self.tensors, self.views, strict=True):
            if not tensor.is_meta and tensor.data_ptr() != view.data_ptr():
                view.copy_(tensor)
                tensor.data = view

    def __reduce__(self) -> Any:
        return Opened, (reduction.DupFd(self.file.fileno()), self.size)


@dataclass(frozen=True)
class Place:
    """A tensor's place in the memory: its first byte, dtype and shape, and whether it is a parameter."""

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    parameter: bool


def _file() -> Any:
    """Open a file without a name, in memory if the system supports it (memfd): unlike /dev/shm, no size limit of its
    own."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("coevolve"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _views(file: int, size: int, places: Sequence[Place]) -> list[Tensor]:
    """Return the tensors, each made from the memory itself: views of one tensor share one version counter in PyTorch,
    which would take a written gradient for a changed weight."""
    memory = mmap.mmap(file, size)
    views = []
    for place in places:
        count = torch.Size(place.shape).numel()
        if count == 0:
            views.append(torch.empty(place.shape, dtype=place.dtype))
        else:
            line = torch.frombuffer(memory, dtype=place.dtype, count=count, offset=place.start)
            views.append(line.view(place.shape))
    return views


@dataclass(frozen=True)
class Opened:
    """A ``SharedMemory`` as another process has it. It is pickled without the places, which may be many."""

    handle: Any
    size: int

    def tensors(self, places: Sequence[Place]) -> list[Tensor]:
        """Return the tensors at these places; only once."""
        file = self.handle.detach()
        views = _views(file, self.size, places)
        os.close(file)
        return [
            nn.Parameter(view, requires_grad=False) if place.parameter else view
            for view, place in zip(views, places, strict=True)
        ]


class Pickler(pickle.Pickler):
    """A pickler that writes only a number in place of each tensor."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: dict[int, Tensor] = {}
        self.numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) not in (Tensor, nn.Parameter):
            return None
        self.tensors.setdefault(id(obj), obj)
        return self.numbers.setdefault(id(obj), len(self.numbers))


class Unpickler(pickle.Unpickler):
    def __init__(self, policies: bytes, tensors: Sequence[Tensor]) -> None:
        super().__init__(io.BytesIO(policies))
        self.tensors = tensors

    def persistent_load(self, pid: int) -> Tensor:
        return self.tensors[pid]


def trim() -> None:
    """Return freed memory to the system, if the C library has ``malloc_trim``.

    Without it, glibc keeps the gaps between used blocks: some tens of KiB more at every step of a language model.
    """
    trimmed = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trimmed is not None:
        trimmed(0)
