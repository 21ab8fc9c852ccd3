"""The trainer's side of a weight transfer by gloo in place of NCCL."""

from __future__ import annotations

from typing import Any

import torch

from coevolve.engines.transfer import Nccl
from coevolve.runtime.child import free_port
from over_gloo import joined

_LEFT: list[Any] = []


class Gloo(Nccl):
    device = "cpu"

    def __init__(self) -> None:
        self.place = f"127.0.0.1:{free_port()}".encode().ljust(128, b"\0")
        self.group: Any = None

    def open(self, world: int, device: torch.device) -> None:
        self.group = joined(self.place, 0, world).gloo

    def broadcast(self, x: torch.Tensor) -> None:
        self.group.broadcast(x, 0).wait()

    def close(self) -> None:
        """The group is kept: its end would wait for what nobody receives."""
        _LEFT.append(self.group)
