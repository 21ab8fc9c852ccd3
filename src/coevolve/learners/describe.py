"""What policy, reference and critic say about the tokens of one micro-batch, without gradient.

Letters: N the action tokens of all rows in one line, W hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coevolve.compute import forward
from coevolve.compute.lm_head import outlet
from coevolve.compute.logprobs import log_softmax, pieces
from coevolve.maths import kl
from coevolve.models.spec import DTYPES
from coevolve.models.weights import head
from coevolve.types import Batch

if TYPE_CHECKING:
    from coevolve.learners.local import LocalPolicy


@torch.no_grad()
def describe(policy: LocalPolicy, micro: Batch) -> dict[str, Tensor]:
    """Per action token, [N] each: kl_BT and logp_ref_BT with a reference; value_BT with a critic.

    Of the vocabulary only one piece of logits exists at a time.
    """
    action_N, temperature_N = forward.actions(micro, policy.device)
    with policy.active() as causal:
        hidden_NW = forward.hidden_states(causal, micro, policy.device)
        layer = head(causal)
    found = {} if policy.value_head is None else {"value_BT": policy.value(hidden_NW)}
    if policy.reference is None:
        return found
    with policy.reference.active() as causal, policy.computing():
        ref_NW, ref_layer = forward.hidden_states(causal, micro, policy.device), head(causal)
    dtype = DTYPES[policy.spec.dtype]
    logits = outlet(layer, dtype)
    ref_logits = logits if ref_layer is layer else outlet(ref_layer, dtype)  # which may have copied the weights
    parts = []
    for p in pieces(len(action_N), layer.weight.shape[0]):
        with policy.active():  # the two may be one model with and without its adapter
            logp_NV = log_softmax(logits, hidden_NW[p], temperature_N[p])
        with policy.reference.active():
            ref_NV = log_softmax(ref_logits, ref_NW[p], temperature_N[p])
        parts.append((kl.full(logp_NV, ref_NV), ref_NV.gather(-1, action_N[p, None])[:, 0]))
    kl_N, logp_ref_N = (torch.cat(made) for made in zip(*parts, strict=True))
    return found | {"kl_BT": kl_N, "logp_ref_BT": logp_ref_N}
