"""The gate before every update: does the learner find the tokens as probable as their sampler did?

If not, what was sampled is another model than what learns (a publish that was forgotten or half arrived, another
tokenizer or template on a server, kernels that compute something else), and its gradients would be of nobody's policy.
Rows that an algorithm added are not looked at: nobody sampled them so. Where ``version_B`` is None the rows do not come
from an engine, and there is nothing to compare. Letters: B rows, T action tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from coevolve.types import Batch

BOUNDS = {"float32": 1e-4, "bfloat16": 0.05}
"""By dtype of the computation: nats per token by which the log-probabilities may differ in the mean, times the
temperature where that is below 1, which divides the logits and so their rounding. Rounding alone was 1e-6 to 1e-5 and
2e-4 to 0.018 wherever it was measured."""


def check_versions(where: str, version: int, batch: Batch, before: int | None = None) -> None:
    """Raises ValueError if a row was sampled with another version of the weights. where: the policy and the step.
    before: the version before, where that may have sampled, too."""
    if batch.version_B is None:
        return
    sampled = batch.version_B[~batch.extra_B]
    if len(others := sampled[(sampled != version) & (sampled != (version if before is None else before))]):
        raise ValueError(
            f"{where}: version {version} of the weights would learn from {len(others)} turns of version "
            f"{int(others[0])}; no weight was changed; the engine has to sample what was published last"
        )


def sampled_first(mini_batches: Iterable[Tensor], extra_B: Tensor) -> list[Tensor]:
    """The mini-batches of the first epoch, the first of them with a row that was sampled before those that have none.

    The gate is passed before the first optimiser step, and rows that an algorithm added have nothing to be compared
    with. All others keep their order.
    """
    found = list(mini_batches)
    first = next((number for number, rows_B in enumerate(found) if not extra_B[rows_B].all()), 0)
    return [found[first], *found[:first], *found[first + 1 :]]


class Gap:
    """How far the learner's log-probabilities are from the sampler's, added up over the micro-batches of a step.

    version: of the weights that learn; what an older one sampled is further apart, and is not looked at. None: all are.
    """

    def __init__(self, version: int | None = None) -> None:
        self.version = version
        self.sums = torch.zeros(4, dtype=torch.float64)

    def add(self, batch: Batch, logp_BT: Tensor) -> None:
        """Of a micro-batch, on the learner's device."""
        sampled_BT = batch.mask_BT & ~batch.extra_B[:, None]
        if self.version is not None and batch.version_B is not None:
            sampled_BT &= (batch.version_B == self.version)[:, None]
        apart_BT = (logp_BT - batch.logp_BT).abs() * batch.temperature_B.clamp(max=1.0)[:, None]
        columns = (apart_BT, logp_BT, batch.logp_BT, torch.ones_like(logp_BT))
        self.sums += torch.stack([x[sampled_BT].double().sum() for x in columns]).cpu()

    def check(self, where: str, dtype: str, batch: Batch) -> None:
        """Before the first optimiser step on this batch: raises ValueError if they are further apart than rounding."""
        if batch.version_B is None or not self.sums[3]:
            return
        apart, ours, theirs = (self.sums[:3] / self.sums[3]).tolist()
        if not apart <= BOUNDS[dtype]:
            tempered = (batch.temperature_B[~batch.extra_B] != 1).any()
            hint = "; at temperatures other than 1 a vLLM of your own needs --logprobs-mode processed_logprobs"
            raise ValueError(
                f"{where}: its turns were not sampled by the weights that learn, version {int(batch.version_B.max())}: "
                f"log-probabilities are {theirs:.4f} by the sampler and {ours:.4f} by the learner, nats a token, "
                f"{apart:.2g} apart in the mean and {BOUNDS[dtype]:g} at most in {dtype}; no weight was changed; the "
                "engine samples other weights, or with another tokenizer or other numbers than the learner"
                f"{hint * bool(tempered)}"
            )
