"""What policy, reference and critic say about the tokens of one micro-batch, without gradient.

Letters: N the action tokens of all rows in one line, W hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coevolve.compute import forward
from coevolve.compute.logprobs import log_softmax, pieces
from coevolve.maths import kl
from coevolve.models.policy import Policy
from coevolve.models.weights import Weights, head
from coevolve.types import Batch


@torch.no_grad()
def describe(
    policy: Policy, reference: Weights | None, value: Callable[[Tensor], Tensor] | None, micro: Batch
) -> dict[str, Tensor]:
    """Per action token, [N] each: kl_BT and logp_ref_BT with a reference; value_BT with a critic (``value``).

    Of the vocabulary only one piece of logits exists at a time.
    """
    action_N, temperature_N = forward.actions(micro, policy.device)
    with policy.active() as causal:
        hidden_NW = policy.backend.hidden(micro)
        layer = head(causal)
    found = {} if value is None else {"value_BT": value(hidden_NW)}
    if reference is None:
        return found
    with reference.active() as causal, policy.computing():
        ref_NW, ref_layer = reference.base.backend.hidden(micro), head(causal)
    logits = policy.backend.lm_head(policy.dtype)
    same = ref_layer is layer  # and so one copy of the weights, if there is one
    ref_logits = logits if same else reference.base.backend.lm_head(policy.dtype)
    parts = []
    for p in pieces(len(action_N), layer.weight.shape[0]):
        with policy.active():  # the two may be one model with and without its adapter
            logp_NV = log_softmax(logits, hidden_NW[p], temperature_N[p])
        with reference.active():
            ref_NV = log_softmax(ref_logits, ref_NW[p], temperature_N[p])
        parts.append((kl.full(logp_NV, ref_NV), ref_NV.gather(-1, action_N[p, None])[:, 0]))
    kl_N, logp_ref_N = (torch.cat(made) for made in zip(*parts, strict=True))
    return found | {"kl_BT": kl_N, "logp_ref_BT": logp_ref_N}
