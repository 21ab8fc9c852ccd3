"""What the CPU computes in loops that numba compiles (extra ``fast``): a rollout's layer, and attention over a tree.

Every product of a rollout's few rows has emptied the processor's caches, and starting one of PyTorch's operators takes
longer then than its work. Arrays are float32, what products make also bfloat16 (``vectors``), or int64.
"""

from coevolve.compute.cpu.loops.attention import attend, walk, walk_gradient
from coevolve.compute.cpu.loops.layer import layer
from coevolve.compute.cpu.loops.product import WIDTH, laid, product

__all__ = ["WIDTH", "attend", "laid", "layer", "product", "walk", "walk_gradient"]
