"""Loops for the CPU that numba compiles (the extra ``fast``).

A rollout's step has few rows, and every product has emptied the processor's caches, so that starting one of PyTorch's
operators takes longer than its work. An update has many rows, and each loop is a single pass over memory. Arrays are
float32 or int64; outputs of products may also be bfloat16 (``vectors``).
"""
