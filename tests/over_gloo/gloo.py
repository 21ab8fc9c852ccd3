"""The trainer's side of a weight transfer by gloo in place of NCCL."""

from __future__ import annotations

import torch

from coevolve.engines.transfer import Nccl
from coevolve.runtime.child import free_port
from over_gloo import joined


class Gloo(Nccl):
    device = "cpu"

    def __init__(self) -> None:
        self.place = f"127.0.0.1:{free_port()}".encode().ljust(128, b"\0")

    def open(self, world: int, device: torch.device) -> None:
        self.joined = joined(self.place, 0, world)

    def broadcast(self, x: torch.Tensor) -> None:
        self.joined.broadcast(x, 0)
