"""What the CPU computes in loops that numba compiles (the extra ``fast``).

Of a rollout's few rows, because every product has emptied the processor's caches and starting one of PyTorch's
operators takes longer then than its work; of an update's many, because each loop is one pass over memory. Arrays are
float32, what products make also bfloat16 (``vectors``), or int64.
"""

from coevolve.compute.cpu.loops.attention import attend, walk, walk_gradient
from coevolve.compute.cpu.loops.between import added, added_gradient, gate_gradient, gated, heads, heads_gradient
from coevolve.compute.cpu.loops.product import WIDTH, laid, product

__all__ = [
    "WIDTH",
    "added",
    "added_gradient",
    "attend",
    "gate_gradient",
    "gated",
    "heads",
    "heads_gradient",
    "laid",
    "product",
    "walk",
    "walk_gradient",
]
