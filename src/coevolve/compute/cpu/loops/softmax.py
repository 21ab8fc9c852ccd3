"""A token from every row's logits, and what logits say of actions.

Letters: B rows, N action tokens, V vocabulary, C blocks of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coevolve.compute.cpu.loops.loop import exp, loop, loop_with_arrays, most
from coevolve.compute.cpu.loops.vectors import SIZE, every, load, sum_of, total
from coevolve.compute.draw import BLOCK


@loop_with_arrays
def draw(logits_BV: Any, temperature: Any, uniform_B: Any, token_B: Any, logp_B: Any) -> None:
    """Of every row the first token whose cumulative mass exceeds uniform times the total, and its log-probability."""
    tokens = logits_BV.shape[1]
    mass_V, block_C = np.empty(tokens, np.float32), np.empty(-(-tokens // BLOCK), np.float64)
    for b in range(len(logits_BV)):
        row_V = logits_BV[b]
        top = most(row_V, tokens)
        for v in range(tokens):
            x = (row_V[v] - top) / temperature
            mass_V[v] = np.float32(0) if x < -87 else exp(x)
        mass = _sums(mass_V, block_C)
        token_B[b] = _first(mass_V, block_C, uniform_B[b] * mass)
        logp_B[b] = (row_V[token_B[b]] - top) / temperature - np.float32(np.log(mass))


@loop
def _sums(mass_V: Any, block_C: Any) -> Any:
    """The mass of every block, and their sum: float32 would lose the tail of a large vocabulary."""
    sum = np.float64(0)
    for c in range(len(block_C)):
        begin, end = c * BLOCK, min(c * BLOCK + BLOCK, len(mass_V))
        whole, block, many = end - (end - begin) % SIZE, np.float32(0), every(np.float32(0))
        for v in range(begin, whole, SIZE):
            many = sum_of(many, load(mass_V, (v,)))
        for v in range(whole, end):
            block += mass_V[v]
        block_C[c] = block + total(many)
        sum += block_C[c]
    return sum


@loop
def _first(mass_V: Any, block_C: Any, target: Any) -> Any:
    """The first token whose cumulative mass exceeds the target; the last of its block that has mass, if rounding leaves
    none; anything if the masses are not finite."""
    before, last = np.float64(0), 0
    for c in range(len(block_C)):
        if before + block_C[c] > target or c == len(block_C) - 1:
            inside = before
            for v in range(c * BLOCK, min(c * BLOCK + BLOCK, len(mass_V))):
                inside += mass_V[v]
                if mass_V[v] > 0:
                    last = v
                    if inside > target:
                        return v
            if before + block_C[c] > target:
                return last
        before += block_C[c]
    return last


@loop
def judge(
    logits_NV: Any, temperature_N: Any, action_N: Any, p_NV: Any, logp_N: Any, entropy_N: Any
) -> None:  # fmt: skip
    """softmax(logits / temperature), the actions' log-probabilities, and the entropies: each row once from memory."""
    tokens = logits_NV.shape[1]
    for n in range(len(logits_NV)):
        logits_V, p_V, rate = logits_NV[n], p_NV[n], np.float32(1) / temperature_N[n]
        top, total, inner = most(logits_V, tokens), np.float32(0), np.float32(0)
        for v in range(tokens):
            x = max(rate * (logits_V[v] - top), np.float32(-87))  # as exp does: beyond, it is nothing
            p_V[v] = exp(x)
            total += p_V[v]
            inner += p_V[v] * x
        for v in range(tokens):
            p_V[v] /= total
        lse = np.log(total)
        logp_N[n] = rate * (logits_V[action_N[n]] - top) - lse
        entropy_N[n] = lse - inner / total
