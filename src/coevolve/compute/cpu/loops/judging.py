"""What logits say of actions. Letters: N action tokens, V vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np

from coevolve.compute.cpu.loops.loop import exp, loop, most


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
