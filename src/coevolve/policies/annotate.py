"""What policy, reference and critic say about the tokens of one micro-batch, without gradient.

Letters: N the action tokens of all rows in one line, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coevolve.maths import kl
from coevolve.policies import forward
from coevolve.policies.spec import DTYPES
from coevolve.policies.weights import head
from coevolve.types import Batch

if TYPE_CHECKING:
    from coevolve.policies.policy import LocalPolicy


@torch.no_grad()
def describe(policy: LocalPolicy, micro: Batch) -> dict[str, Tensor]:
    """Per action token, [N] each: entropy_BT; kl_BT and logp_ref_BT with a reference; value_BT with a critic;
    logp_BT anew where the computation is not float32.

    Of the vocabulary only one piece of logits exists at a time.
    """
    action_N, temperature_N = forward.actions(micro, policy.device)
    with policy.active() as causal:
        hidden_ND = forward.hidden_states(causal, micro, policy.device)
        vocabulary = head(causal).weight.shape[0]
    if policy.reference is not None:
        with policy.reference.active() as causal, policy.computing():
            ref_ND = forward.hidden_states(causal, micro, policy.device)
    parts: dict[str, list[Tensor]] = {}
    for p in forward.pieces(len(action_N), vocabulary):
        with policy.active() as causal:
            logp_NV = forward.log_softmax(head(causal), hidden_ND[p], temperature_N[p])
        if DTYPES[policy.spec.dtype] != torch.float32:
            # Decoding rounds differently; the ratio must start at 1, so these become the old log-probabilities.
            parts.setdefault("logp_BT", []).append(logp_NV.gather(-1, action_N[p, None])[:, 0])
        parts.setdefault("entropy_BT", []).append(kl.entropy(logp_NV))
        if policy.reference is not None:
            with policy.reference.active() as causal, policy.computing():
                ref_NV = forward.log_softmax(head(causal), ref_ND[p], temperature_N[p])
            parts.setdefault("kl_BT", []).append(kl.full(logp_NV, ref_NV))
            parts.setdefault("logp_ref_BT", []).append(ref_NV.gather(-1, action_N[p, None])[:, 0])
    value = {} if policy.value_head is None else {"value_BT": policy.value(hidden_ND)}
    return value | {name: torch.cat(pieces) for name, pieces in parts.items()}
