"""What each file of compiled loops buys: a whole step with it switched off, over a step with all of them.

    python benchmarks/loops.py --rounds 2           # three cases, two dtypes, about 15 minutes
    python benchmarks/loops.py --off tiles,between

One process per file and pass, with one thread and no workers, in turn; medians over all rounds of all passes. A file
is switched off by putting PyTorch's operators in its place, where a step uses it:

    tiles      products of bfloat16 by vectors instead of AMX's tiles (on processors that have them)
    between    norms, rotations and gates of updates and prompts
    attention  the walk over a prefix tree in updates and prompts
    product    a rollout's products
    wide       an update's products of bfloat16 in float32 (on processors where that is faster)
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
from peers_work import Case, save_model
from torch import Tensor
from torch.nn import functional

AT_128 = {"agents": 1, "problems": 16, "members": 8, "size": "10M"}
CASES = {"quick": Case(), "fixed": Case(ragged=False, **AT_128), "ragged": Case(ragged=True, **AT_128)}
DTYPES = ("float32", "bfloat16")


def no_tiles() -> None:
    """Before anything is compiled, which happens at the first call."""
    from coevolve.compute.cpu.loops import product

    product.TILES = False


def no_between() -> None:
    from coevolve.compute.cpu import decoder, training

    def added(x: Tensor, y: Tensor, norm: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        both = x.float() + y
        return both, functional.rms_norm(both, both.shape[-1:], norm.weight.float(), norm.variance_epsilon).to(dtype)

    def gated(both: Tensor, activation: Any) -> Tensor:
        gate, up = both.float().chunk(2, -1)
        product: Tensor = activation(gate) * up
        return product.to(both.dtype)

    def heads(x_NAD: Tensor, counts: list[int], cos_ND: Tensor, sin_ND: Tensor) -> tuple[Tensor, ...]:
        both, v = x_NAD.tensor_split((counts[0] + counts[1],), 1)
        low, high = both.float().chunk(2, -1)
        turned = both.float() * cos_ND[:, None] + torch.cat((-high, low), -1) * sin_ND[:, None]
        q, k = turned.tensor_split((counts[0],), 1)
        return q, k.to(x_NAD.dtype).float(), v.float()

    for module in (decoder, training):
        module._added, module._gated = added, gated
    training._Heads.apply = heads


def no_attention() -> None:
    from coevolve.compute.attention import PathAttention
    from coevolve.compute.cpu import attention, backend

    def by_paths(tree: Any) -> PathAttention:
        return PathAttention(tree, torch.device("cpu"))

    backend.TreeAttention = attention.TreeAttention = by_paths  # type: ignore[attr-defined,misc]


def no_product() -> None:
    from coevolve.compute.cpu import products

    def kept(self: Any, layers: Any, dtype: torch.dtype, out: torch.dtype | None = None) -> None:
        self.dtype, self.out = dtype, out or dtype  # nothing is laid out in panels: that is part of what is off
        self.weight, self.bias = products.joined_weights(layers, dtype)

    products.Panels.__init__ = kept
    products.Panels.__call__ = lambda self, x: products.times(x.to(self.dtype), self.weight, self.bias).to(self.out)


def no_wide() -> None:
    from coevolve.runtime import processor

    processor._least_rows = lambda kept: math.inf  # type: ignore[assignment]


OFF: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "tiles": no_tiles,
    "between": no_between,
    "attention": no_attention,
    "product": no_product,
    "wide": no_wide,
}


def seconds(off: str, rounds: int) -> dict[str, list[float]]:
    """In this process: a step's, of every case and dtype, after one to warm up."""
    OFF[off]()
    import peers_ours

    torch.set_num_threads(1)
    build = peers_ours.build_policies
    peers_ours.build_policies = lambda specs, **how: build(specs, **{**how, "workers": False})
    found = {}
    for label, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            save_model(case, Path(folder))
            for dtype in DTYPES:
                ours = peers_ours.Ours(case, folder, dtype=dtype, compute="cpu")
                found[f"{label} {dtype}"] = [ours.step(round).seconds for round in range(rounds + 1)][1:]
    return found


def passes(names: list[str], count: int, rounds: int) -> dict[str, dict[str, float]]:
    """The medians of every contender, each pass of which is a process of its own."""
    made: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in names}
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(count):
            for name in names:
                command = [sys.executable, __file__, "--rounds", str(rounds), "--alone", name]
                kept = {**os.environ, "NUMBA_CACHE_DIR": f"{cache}/{name}"} if name == "tiles" else dict(os.environ)
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=kept)
                for key, some in json.loads(done.stdout.splitlines()[-1]).items():
                    made[name][key] += some
    return {name: {key: statistics.median(some) for key, some in by.items()} for name, by in made.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="timed steps of a process")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--off", default=",".join(list(OFF)[1:]), help="which, with commas between")
    parser.add_argument("--alone", choices=list(OFF), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.alone:
        print(json.dumps(seconds(asked.alone, asked.rounds)))
        return
    found = passes(["nothing", *asked.off.split(",")], asked.passes, asked.rounds)
    keys = [f"{label} {dtype}" for label in CASES for dtype in DTYPES]
    print(f"| off | {' | '.join(keys)} |\n| --- |{' --- |' * len(keys)}")
    whole = found.pop("nothing")
    print(f"| nothing, s | {' | '.join(f'{whole[key]:.2f}' for key in keys)} |")
    for name, by in found.items():
        print(f"| {name}, times | {' | '.join(f'{by[key] / whole[key]:.2f}' for key in keys)} |")


if __name__ == "__main__":
    main()
