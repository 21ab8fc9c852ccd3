"""What a training rule gives back, checked: targets that fit their batches, and a state that a checkpoint can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from coevolve.types import Batch, Lesson, PolicyName, State, Targets


def checked(made: Any, lesson: Lesson) -> tuple[dict[PolicyName, Targets], State]:
    """What an advantage made of a lesson: targets and the next state. Raises ValueError for anything else."""
    if not isinstance(made, tuple) or len(made) != 2:
        raise ValueError(f"want the targets and the next state, found {type(made).__name__}")
    return checked_targets(made[0], lesson), plain_state(made[1])


def checked_targets(found: Any, lesson: Lesson) -> dict[PolicyName, Targets]:
    """The targets of every policy that is to learn, in the order of the batches.

    Raises ValueError that names the policy and the tensor for a policy that has no batch, a tensor of another shape, or
    an advantage that is not finite.
    """
    if not isinstance(found, Mapping) or not all(isinstance(aims, Targets) for aims in found.values()):
        raise ValueError(f"want a mapping from policies to Targets, found {type(found).__name__}")
    if unknown := [name for name in found if name not in lesson.batches]:
        raise ValueError(f"targets for {unknown[0]!r}, which does not learn; there are {', '.join(lesson.batches)}")
    for name, aims in found.items():
        _check_tensors(name, aims, lesson.batches[name])
    return {name: found[name] for name in lesson.batches if name in found}


def _check_tensors(name: PolicyName, aims: Targets, batch: Batch) -> None:
    returns = {} if aims.return_BT is None else {"return_BT": aims.return_BT}
    for label, x in {"adv_BT": aims.adv_BT, **returns, **aims.columns}.items():
        want = {"BT": tuple(batch.mask_BT.shape), "B": (len(batch),)}.get(label.rpartition("_")[2])
        if want is None:
            raise ValueError(f"policy {name!r}: the name of the column {label!r} does not end in _B or _BT")
        if tuple(x.shape) != want:
            raise ValueError(f"policy {name!r}: {label} has the shape {list(x.shape)}; want {list(want)}")
    if not aims.adv_BT.isfinite().all():
        raise ValueError(f"policy {name!r}: adv_BT is not finite")


def plain_state(state: Any) -> State:
    """A copy of the state, as a checkpoint would give it back. Raises ValueError for what JSON does not hold."""
    try:
        kept = json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"its state is not plain data ({error}); want dicts, lists, text and finite numbers"
        ) from error
    if not isinstance(kept, dict) or kept != state:
        raise ValueError(f"its state would come back as {kept!r}; want a dict with text for keys, and no tuples")
    return kept
