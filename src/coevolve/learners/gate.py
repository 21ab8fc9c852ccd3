"""The gate before every update: does the learner find the tokens as probable as their sampler did?

If not, what was sampled is another model than what learns (a publish that was forgotten or half arrived, another
tokenizer or template on a server, kernels that compute something else), and its gradients would be of nobody's policy.
Letters: B rows, T action tokens.
"""

from __future__ import annotations

from torch import Tensor

from coevolve.types import Batch

BOUNDS = {"float32": 1e-4, "bfloat16": 0.05}
"""By dtype of the computation: nats per token by which the log-probabilities may differ in the mean. Rounding alone
was 1e-6 to 1e-5 and 2e-4 to 0.018 wherever it was measured."""


def check_sampled(where: str, dtype: str, version: int, batch: Batch, logp_BT: Tensor) -> None:
    """Raises ValueError unless the rows were sampled with the learner's own version of the weights, and with weights
    that give these log-probabilities. where: the policy and the step, for the message.

    Rows that an algorithm added are not looked at: nobody sampled them so. Where ``version_B`` is None the rows do not
    come from an engine, and there is nothing to compare.
    """
    if batch.version_B is None or bool(batch.extra_B.all()):
        return
    sampled_BT = batch.mask_BT & ~batch.extra_B[:, None]
    versions = batch.version_B[~batch.extra_B]
    ours, theirs = (float(x_BT[sampled_BT].mean()) for x_BT in (logp_BT, batch.logp_BT))
    found = float((logp_BT - batch.logp_BT)[sampled_BT].abs().mean())
    numbers = f"log-probabilities are {theirs:.4f} by the sampler and {ours:.4f} by the learner, nats a token"
    if bool((versions != version).any()):
        raise ValueError(
            f"{where}: version {version} of the weights would learn from turns of version {int(versions.min())} "
            f"({numbers}); the engine has to sample what was published last"
        )
    if not found <= BOUNDS[dtype]:
        raise ValueError(
            f"{where}: its turns were not sampled by the weights that learn, version {version}: {numbers}, "
            f"{found:.2g} apart in the mean and {BOUNDS[dtype]:g} at most in {dtype}; no weight was changed; the "
            "engine samples other weights, or with another tokenizer or other numbers than the learner"
        )
