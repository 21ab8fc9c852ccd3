"""The gate before every update: a check that the learner gives the sampled tokens the sampler's log-probabilities.

If they differ, the model that sampled is not the model that is trained (a publish that was forgotten or is incomplete,
another tokenizer or template on a server, kernels that compute something else), and the gradients would be wrong.
Rows that an algorithm added are left out, since they were not sampled. Where ``version_B`` is None the rows do not come
from an engine, and there is nothing to compare. Letters: B rows, T action tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from coevolve.types import Batch, PolicyName

BOUNDS = {"float32": 1e-4, "bfloat16": 0.05}
"""The largest allowed mean difference of the log-probabilities, in nats per token, by dtype of the computation. The
difference is multiplied by the temperature where that is below 1, because it divides the logits and so scales up their
rounding. Measured rounding alone was 1e-6 to 1e-5 (float32) and 2e-4 to 0.018 (bfloat16)."""


def check_versions(where: str, version: int, batch: Batch, before: int | None = None) -> None:
    """Raise ValueError if a row was sampled with another version of the weights. where: policy and step, for the
    message. before: the version before, where rows of that are allowed, too."""
    if batch.version_B is None:
        return
    sampled = batch.version_B[~batch.extra_B]
    if len(others := sampled[(sampled != version) & (sampled != (version if before is None else before))]):
        raise ValueError(
            f"{where}: version {version} of the weights would learn from {len(others)} turns of version "
            f"{int(others[0])}; no weight was changed; the engine has to sample what was published last"
        )


def check_lengths(name: PolicyName, context: int, batch: Batch) -> None:
    """Raise ValueError for a row longer than the model's context. Only a row that an algorithm added can be, since it
    was not sampled; its last token is not fed."""
    if (most := int(batch.length_B.max()) - 1) > context:
        raise ValueError(
            f"policy {name!r} would read {most} tokens, and its model has {context} positions; use a model with more, "
            "or an algorithm that makes it read less"
        )


def sampled_first(mini_batches: Iterable[Tensor], extra_B: Tensor) -> list[Tensor]:
    """Return the first epoch's mini-batches with the first one that has a sampled row moved to the front.

    The gate is checked before the first optimiser step, and rows that an algorithm added have no log-probabilities to
    compare with. The other mini-batches keep their order.
    """
    found = list(mini_batches)
    first = next((number for number, rows_B in enumerate(found) if not extra_B[rows_B].all()), 0)
    return [found[first], *found[:first], *found[first + 1 :]]


class Gap:
    """Differences between the learner's and the sampler's log-probabilities, summed over the micro-batches of a step.

    version: the version of the weights that are trained; rows of an older version differ more, and are left out. None:
    all rows are used.
    """

    def __init__(self, version: int | None = None) -> None:
        self.version = version
        self.sums = torch.zeros(4, dtype=torch.float64)

    def add(self, batch: Batch, logp_BT: Tensor) -> None:
        """Add the differences of a micro-batch, on the learner's device."""
        sampled_BT = batch.mask_BT & ~batch.extra_B[:, None]
        if self.version is not None and batch.version_B is not None:
            sampled_BT &= (batch.version_B == self.version)[:, None]
        apart_BT = (logp_BT - batch.logp_BT).abs() * batch.temperature_B.clamp(max=1.0)[:, None]
        columns = (apart_BT, logp_BT, batch.logp_BT, torch.ones_like(logp_BT))
        self.sums += torch.stack([x[sampled_BT].double().sum() for x in columns]).cpu()

    def check(self, where: str, dtype: str, batch: Batch) -> None:
        """Raise ValueError if the mean difference is larger than rounding; called before the first optimiser step."""
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
