"""Value normalisation: values in units of the returns seen so far, so that a critic need not learn their scale.

MAPPO's value normalisation (arXiv 2103.01955, section 5.1). Letters: B rows, T action tokens.
"""

from __future__ import annotations

import dataclasses

from coevolve.maths.masked import explained_variance
from coevolve.maths.moments import Moments
from coevolve.types import Advantage, Batch, Lesson, PolicyName, State, Targets


def in_units(advantage: Advantage, *, of_turns: bool = False) -> Advantage:
    """Return the advantage for value heads whose outputs are normalised: (return - mean) / standard deviation.

    Mean and deviation are of all targets of a policy's head at earlier steps, ``state["values"]``; before the first
    ones outputs are taken as they are. The new targets are in units that include this step's returns. Values are
    converted with past steps only, so they remain valid baselines. of_turns: only rows added for the critic have
    values, so a policy may have none at a step.
    """

    def wrapped(lesson: Lesson, state: State) -> tuple[dict[PolicyName, Targets], State]:
        seen = {name: Moments(**one) for name, one in state.get("values", {}).items()}
        batches = {name: _as_returns(batch, seen.get(name, Moments())) for name, batch in lesson.batches.items()}
        targets, state = advantage(dataclasses.replace(lesson, batches=batches), state)
        found = dict(targets)
        for name, aims in targets.items():
            batch = batches[name]
            value_BT, valued_BT = batch.value_BT, batch.mask_BT & batch.extra_B[:, None] if of_turns else batch.mask_BT
            if aims.return_BT is None or value_BT is None or not valued_BT.any():
                continue
            seen[name] = seen.get(name, Moments()).after(aims.return_BT[valued_BT])
            known = float(explained_variance(value_BT, aims.return_BT, valued_BT))
            aim_BT = (aims.return_BT - seen[name].mean) / seen[name].unit
            found[name] = dataclasses.replace(
                aims, return_BT=aim_BT * valued_BT, metrics={"explained_variance": known, **aims.metrics}
            )
        return found, {**state, "values": {name: dataclasses.asdict(one) for name, one in seen.items()}}

    return wrapped


def units(state: State) -> State:
    """Return the part of the state that belongs to value heads: the units of their outputs."""
    return {"values": state["values"]} if "values" in state else {}


def _as_returns(batch: Batch, seen: Moments) -> Batch:
    if batch.value_BT is None:
        return batch
    return batch.replace(value_BT=(batch.value_BT * seen.unit + seen.mean) * batch.mask_BT)
