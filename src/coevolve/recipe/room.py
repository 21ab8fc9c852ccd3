"""How many tokens fit into the memory that is free on a device: of a micro-batch (``micro_tokens``), and in a KV cache
(``max_tokens``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from coevolve.learners import cost
from coevolve.models.load import device_of
from coevolve.models.spec import PolicySpec
from coevolve.runtime.free_memory import free_memory
from coevolve.types import PolicyName

GIB = 1 << 30
SHARE = 0.9
"""The part of the free memory that sizes may take, since the formulas are not exact."""


@dataclass(frozen=True)
class Size:
    """A number of tokens that is to fit into a device's memory: of a policy's micro-batch or KV cache. tokens: the
    recipe's. fixed: bytes that are needed there without any token. per_token: bytes of each."""

    policy: PolicyName
    tokens: int
    fixed: int
    per_token: int

    @property
    def bytes(self) -> int:
        return self.fixed + self.per_token * self.tokens

    def most(self, free: int) -> int:
        """Return the most tokens for which this part of so many free bytes is enough; 0 or less if there are none."""
        return (int(SHARE * free) - self.fixed) // self.per_token


@dataclass(frozen=True)
class Fit:
    """What is free on a device, and the sizes that are to fit there. here: whether it is of this machine. free: None if
    it is not, or does not say. needed: the most bytes that the recipe's own sizes need."""

    device: str
    here: bool
    free: int | None
    learning: Sequence[Size]
    sampling: Sequence[Size]
    needed: int

    @classmethod
    def on(cls, device: str, learning: Iterable[Size], sampling: Iterable[Size], needed: int) -> Fit:
        """Return this for a device as the recipe names it, with what is free there now."""
        here = is_here(device)
        free = free_memory(device_named(device)) if here else None
        return cls(device, here, free, [*learning], [one for one in sampling if one.per_token], needed)

    def lines(self) -> list[str]:
        """Return a line on the memory that is free, and on the sizes that fit into it, if the device is of this machine
        and policies learn there. Of several policies that one is named that needs most."""
        if not self.here or not self.learning:
            return []
        if self.free is None:
            return [f"  device {self.device}: how much memory is free there is not known"]
        learner = max(self.learning, key=lambda one: one.bytes)
        fits = [(f"micro_tokens of {learner.policy}", learner)]
        if self.sampling:
            fits.append(("max_tokens", max(self.sampling, key=lambda one: one.bytes)))
        most = [_at_most(key, one.tokens, one.most(self.free)) for key, one in fits]
        enough = "" if self.needed <= self.free else "too little for all that the recipe asks for; "
        return [f"  device {self.device} has {self.free / GIB:.2f} GiB free now: {enough}{' and '.join(most)}"]


@dataclass(frozen=True)
class Work:
    """What learning or sampling a policy needs of a device beside what is always held there. tokens: how many the
    recipe has, in a micro-batch or in the KV cache. per_token, fixed: bytes of each token, and of the rest, in each
    process. once: bytes that only one process has. parts: the same bytes by what they are for."""

    policy: PolicyName
    tokens: int
    per_token: int
    fixed: int
    once: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return self.once + self.fixed + self.per_token * self.tokens

    def size(self, held: int, processes: int = 1) -> Size:
        """Return this as a size that is to be chosen. held: bytes of the device that other things have. processes: how
        many of them work at the same time."""
        fixed = held + self.once + processes * self.fixed
        return Size(self.policy, self.tokens, fixed, processes * self.per_token)


def learning_work(name: PolicyName, spec: PolicySpec, parts: Mapping[str, int], once: int = 0) -> Work:
    """Return what an update of a policy needs of its device. parts: its bytes by what they are for, with the
    ``activations`` of the recipe's micro-batch. once: how many of them only one process has."""
    activations = parts["activations"]
    fixed = sum(parts.values()) - activations - once
    return Work(name, spec.micro_tokens, activations // spec.micro_tokens, fixed, once, parts)


def sampling_work(name: PolicyName, spec: PolicySpec, shape: cost.Shape, positions: int) -> Work:
    """Return what sampling a policy needs of a device: the KV cache of this many positions, and trained weights in
    bfloat16."""
    narrow = spec.dtype == "bfloat16"
    rounded = 2 * shape.parameters if positions and narrow and spec.weights == "full" else 0
    cached = 2 * (2 if narrow else 4) * shape.layers * shape.kv
    return Work(name, positions, cached if positions else 0, rounded)


def _at_most(key: str, size: int, most: int) -> str:
    if most <= 0:
        return f"no {key} fit (the recipe has {size:,})"
    return f"{key} up to {most:,} fit (the recipe has {size:,})"


def device_named(name: str) -> torch.device:
    """Return the device that a recipe names, whether or not this machine has it: a plan may be of another one."""
    return device_of(name) if is_here(name) else torch.device(name)


def place_of(name: str) -> str:
    """Return one name for all names of a device: cuda:0 for cuda, and what auto is here."""
    device = device_named(name)
    return f"cuda:{device.index or 0}" if device.type == "cuda" else device.type


def is_here(name: str) -> bool:
    """Return whether this machine has the device of this name."""
    try:
        device_of(name)
    except ValueError:
        return False
    return True
