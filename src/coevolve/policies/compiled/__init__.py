"""What the CPU computes in loops that numba compiles (the extra ``fast``).

Of a rollout's few rows, because every product has emptied the processor's caches and starting one of PyTorch's
operators takes longer then than its work; of an update's many, because each loop is one pass over memory. Arrays are
float32, what products make also bfloat16 (``kinds``), or int64.
"""

from coevolve.policies.compiled.attention import attend
from coevolve.policies.compiled.between import added, added_gradient, gate_gradient, gated, heads, heads_gradient
from coevolve.policies.compiled.drawing import draw
from coevolve.policies.compiled.judging import judge
from coevolve.policies.compiled.layer import layer
from coevolve.policies.compiled.product import WIDTH, laid, product
from coevolve.policies.compiled.walk import walk, walk_gradient

__all__ = [
    "WIDTH",
    "added",
    "added_gradient",
    "attend",
    "draw",
    "gate_gradient",
    "gated",
    "heads",
    "heads_gradient",
    "judge",
    "laid",
    "layer",
    "product",
    "walk",
    "walk_gradient",
]
