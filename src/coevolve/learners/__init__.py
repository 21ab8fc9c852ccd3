"""How policies learn: what a recipe's ``learner`` may name besides a file's. Ours are made by ``learners.build``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coevolve.interfaces import Learner
from coevolve.models.spec import PolicySpec, RecipePolicy
from coevolve.settings import Count, Positive
from coevolve.types import PolicyName

TORCHRUN = "torchrun"
"""The ``cluster`` whose ranks are there already."""


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
    """On several processes, each on a card of its own where there are cards: full weights are sharded over them, of an
    adapter only the gradients are shared (``learners.sharded``). A frozen policy stays in this process.

    ranks: processes of each policy. cluster: "ray", or the address of a Ray cluster whose machines they are placed on;
    "torchrun", which has started them; those of this machine if None. deadline: seconds that anything asked of them may
    take.
    """
    how = {"reference": reference, "critic": critic, "steps": steps, "seed": seed}
    if isinstance(spec, RecipePolicy) and spec.elsewhere:
        from coevolve.learners.elsewhere import FrozenElsewhere

        return FrozenElsewhere(name, spec)
    if spec.weights == "frozen":
        from coevolve.learners.build import build_policies

        return build_policies({name: spec}, **how)[name]  # type: ignore[arg-type]
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
    """Whether a recipe's learner has its ranks in processes that torchrun started."""
    return learner is not None and learner["name"] == "fsdp" and learner.get("cluster") == TORCHRUN
