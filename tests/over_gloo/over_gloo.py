"""A plugin of vLLM for tests: what its weight transfer would send by NCCL comes by gloo, for processors without a GPU.

All else of the transfer is vLLM's own: its routes, its workers, its reload of weights layer by layer.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo, TCPStore

WAIT = timedelta(seconds=60)


def joined(place: bytes, rank: int, world: int) -> Group:
    """The group of the processes that have this place, "host:port" filled up with zeros; rank 0 opens it."""
    host, _, port = place.rstrip(b"\0").decode().partition(":")
    store = TCPStore(host, int(port), world, is_master=rank == 0, timeout=WAIT, wait_for_workers=False)
    return Group(ProcessGroupGloo(store, rank, world, WAIT))


class Group:
    """A communicator as vLLM's engine of NCCL uses one."""

    def __init__(self, gloo: Any) -> None:
        self.gloo = gloo

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> None:
        self.gloo.broadcast(tensor, src).wait()

    def destroy(self) -> None:
        self.gloo = None


def register() -> None:
    """Called by vLLM in each of its processes."""
    from vllm.distributed.weight_transfer import nccl_engine

    def join(init: Any, parallel: Any) -> Group:
        return joined(init.nccl_unique_id_bytes, init.rank_offset + parallel.rank, init.world_size)

    nccl_engine.worker_init_process_group = join
    torch.cuda.current_stream = lambda: None
    torch.accelerator.synchronize = lambda: None
