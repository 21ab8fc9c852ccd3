"""What this machine can do at best, measured; and how long a step's necessary work would take at that rate.

The rollout's limit: every prompt read once, then token by token all rows that have not ended, in one batch per agent
and turn; each token step takes as long as its arithmetic at the best matrix product's rate, or as reading the weights
and the keys and values (a prompt's once per group) at the memory's, whichever is longer. The update's: 6 operations per
parameter and token, a group's prompt once, the output layer at responses only. Attention's own arithmetic counts in
the rollout and not in the update, and caches faster than memory do not count: neither makes the limit easier to reach,
except for decoding a few rows of a model that fits into a cache, which can exceed it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from peers_work import NOTE, Case, config, lengths
from torch import Tensor

BYTES = {"float32": 4, "bfloat16": 2}
_PRODUCTS = ((2048, 2048, 2048), (1024, 4096, 1024), (4096, 1024, 1024))
"""Rows, inputs, outputs of the products whose best rate counts."""

_READ = 1 << 27
"""Numbers of float32 in the memory that is read: 512 MiB, more than any cache."""


@dataclass(frozen=True)
class Machine:
    """flops: best matrix product by dtype, operations per second. bandwidth: bytes read from memory per second."""

    threads: int
    flops: dict[str, float]
    bandwidth: float

    def best(self, other: Machine) -> Machine:
        """Of two measurements the faster one: another process may have slowed one of them down."""
        flops = {dtype: max(rate, other.flops[dtype]) for dtype, rate in self.flops.items()}
        return Machine(self.threads, flops, max(self.bandwidth, other.bandwidth))

    def __str__(self) -> str:
        rates = ", ".join(f"{dtype} {rate / 1e9:.0f} GFLOP/s" for dtype, rate in self.flops.items())
        return f"{self.threads} threads: {rates}, memory {self.bandwidth / 1e9:.0f} GB/s"


def measure(threads: int) -> Machine:
    """The limits with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    flops = {dtype: max(_rate(*shape, getattr(torch, dtype)) for shape in _PRODUCTS) for dtype in BYTES}
    memory = torch.ones(_READ)
    bandwidth = 4 * _READ / _seconds(memory.sum)
    torch.set_num_threads(before)
    return Machine(threads, flops, bandwidth)


def _rate(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> float:
    """Operations per second of one product, by PyTorch's default or by oneDNN, whichever is faster."""
    x, w = torch.randn(rows, inputs, dtype=dtype), torch.randn(outputs, inputs, dtype=dtype)
    ways: list[Callable[[], Tensor]] = [lambda: x @ w.t()]
    try:
        torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")
        ways.append(lambda: torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], ""))
    except (AttributeError, RuntimeError, NotImplementedError):
        pass  # this PyTorch has no such operator, or not for this processor
    return 2 * rows * inputs * outputs / min(_seconds(way) for way in ways)


@torch.inference_mode()
def _seconds(way: Callable[[], Tensor], tries: int = 6) -> float:
    way()
    found = []
    for _ in range(tries):
        start = time.perf_counter()
        way()
        found.append(time.perf_counter() - start)
    return min(found)


@dataclass(frozen=True)
class Shape:
    """Parameters below and of the output layer; numbers per position in the cache; width of all attention heads."""

    body: int
    head: int
    cache: int
    attention: int

    @staticmethod
    def of(case: Case) -> Shape:
        from transformers import AutoModel

        made = config(case)
        with torch.device("meta"):
            whole = sum(p.numel() for p in AutoModel.from_config(made).parameters())
        width = made.hidden_size // made.num_attention_heads
        head = made.vocab_size * made.hidden_size
        layers = made.num_hidden_layers
        return Shape(
            body=whole - head,
            head=head,
            cache=2 * layers * made.num_key_value_heads * width,
            attention=layers * made.num_attention_heads * width,
        )


Group = tuple[int, list[int]]
"""Responses that share a prompt: its tokens, and theirs."""


def sweeps(case: Case, round: int) -> list[list[Group]]:
    """Everything that one agent says in one turn, for every agent and turn of a step."""
    if case.turns > 1 and case.play != "tree":
        raise ValueError("no limit for turns of rounds: what their prompts repeat need not be read again")
    found = []
    for by_problem in lengths(case, round).tolist():
        found.append([(case.prompt, nodes[0]) for nodes in by_problem])
        if case.play == "tree":
            # The second prompt: the first, one response without its end, the note.
            found.append(
                [
                    (case.prompt + said - 1 + NOTE, node)
                    for nodes in by_problem
                    for said, node in zip(nodes[0], nodes[1:], strict=True)
                ]
            )
    return found


def rollout(machine: Machine, shape: Shape, groups: Sequence[Group], dtype: str) -> float:
    """Seconds to read these prompts and say these responses, in one batch."""
    peak, size = machine.flops[dtype], BYTES[dtype]
    weights = size * (shape.body + shape.head)

    def takes(flops: float, numbers: float) -> float:
        return max(flops / peak, (weights + size * shape.cache * numbers) / machine.bandwidth)

    prompts = sum(prompt for prompt, _ in groups)
    total = takes(2 * (shape.body * prompts + shape.head * len(groups)), 0)
    for t in range(1, max(length for _, said in groups for length in said)):  # token 0 comes from the prompt
        alive = [(prompt, sum(length > t for length in said)) for prompt, said in groups]
        rows = sum(n for _, n in alive)
        seen = sum(n * (prompt + t) for prompt, n in alive)
        kept = sum(prompt + n * t for prompt, n in alive if n)
        total += takes(2 * rows * (shape.body + shape.head) + 4 * shape.attention * seen, kept)
    return total


def update(machine: Machine, shape: Shape, groups: Sequence[Group], dtype: str) -> float:
    """Seconds to learn from these responses: forward and backward."""
    inputs = sum(prompt + sum(length - 1 for length in said) for prompt, said in groups)
    actions = sum(sum(said) for _, said in groups)
    return 6 * (shape.body * inputs + shape.head * actions) / machine.flops[dtype]


def limits(machine: Machine, case: Case, round: int) -> dict[str, dict[str, float]]:
    """dtype -> seconds of a whole step at the limit: its rollout, its update."""
    shape, said = Shape.of(case), sweeps(case, round)
    return {
        dtype: {
            "rollout": sum(rollout(machine, shape, groups, dtype) for groups in said),
            "update": sum(update(machine, shape, groups, dtype) for groups in said),
        }
        for dtype in machine.flops
    }
