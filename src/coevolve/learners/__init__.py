"""The learners that a recipe's ``learner`` may name, besides one in a file of the user's own.

Without ``learner`` in a recipe, ``learners.build`` makes the learner of each policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coevolve.interfaces import Learner
from coevolve.models.spec import PolicySpec, RecipePolicy
from coevolve.settings import Count, Positive
from coevolve.types import PolicyName

TORCHRUN = "torchrun"
"""The ``cluster`` setting for ranks that torchrun has already started."""


def fsdp(
    name: PolicyName,
    spec: PolicySpec,
    reference: bool,
    critic: bool,
    steps: int,
    seed: int,
    *,
    ranks: Count,
    cluster: str | None = None,
    deadline: Positive = 1800.0,
) -> Learner:
    """Return a learner that runs on several processes, each on its own GPU where there are GPUs: full weights are
    sharded over the processes, and for an adapter only the gradients are added up (``learners.sharded``). A frozen
    policy stays in this process.

    ranks: processes per policy. cluster: "ray" or the address of a Ray cluster to place the processes on; "torchrun" if
    torchrun has started them; None for processes on this machine. deadline: seconds that one request to the ranks may
    take.
    """
    how = {"reference": reference, "critic": critic, "steps": steps, "seed": seed}
    if isinstance(spec, RecipePolicy) and spec.elsewhere:
        from coevolve.learners.elsewhere import FrozenElsewhere

        return FrozenElsewhere(name, spec)
    if not spec.trainable:
        from coevolve.learners.build import build_policies

        return build_policies({name: spec}, **how)[name]  # type: ignore[arg-type]
    if spec.device.partition(":")[0] not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {spec.device}, for which there are no ranks; say cuda, cpu, or learner: null")
    if spec.weights == "full" and spec.compute == "cpu":
        raise ValueError("compute is cpu, whose loops read whole weights, and these are sharded; say compute: auto")
    if spec.weights == "full" and spec.optimizer != "adamw":
        raise ValueError(
            f"optimizer is {spec.optimizer}, whose moments cannot be sharded with the weights; say optimizer: adamw"
        )
    from coevolve.learners.sharded import ShardedLearner, starter

    return ShardedLearner(name, spec, starter(spec.device, ranks, cluster, cluster == TORCHRUN, deadline), **how)


LEARNERS: Mapping[str, Callable[..., Learner]] = {"fsdp": fsdp}


def by_torchrun(learner: Mapping[str, Any] | None) -> bool:
    """Return whether a recipe's learner has its ranks in processes that torchrun started."""
    return learner is not None and learner["name"] == "fsdp" and learner.get("cluster") == TORCHRUN
