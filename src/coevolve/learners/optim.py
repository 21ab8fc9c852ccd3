"""The optimiser: AdamW as a policy's spec sets it, the learning-rate schedule, and checks of a saved state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coevolve.models.spec import PolicySpec


def lr_factor(spec: PolicySpec, step: int, steps: int) -> float:
    """Return the factor on the learning rate at ``step`` of ``steps``: linear warm-up, then the schedule.

    linear falls from 1 towards 0 at ``steps``; cosine falls from 1 towards 0 along half a cosine.
    """
    if step < spec.warmup_steps:
        return (step + 1) / spec.warmup_steps
    done = (step - spec.warmup_steps) / max(1, steps - spec.warmup_steps)
    return {
        "constant": 1.0,
        "linear": max(0.0, 1.0 - done),
        "cosine": 0.5 * (1.0 + math.cos(math.pi * min(1.0, done))),
    }[spec.schedule]


def adamw(
    parameters: Iterable[nn.Parameter], spec: PolicySpec, value: Iterable[nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """Return AdamW as the spec sets it; call ``set_rates`` before every step. value: parameters of a value head, which
    are numbered after the others."""
    groups = [list(parameters), list(value)]
    if spec.value_learning_rate is None:
        groups = [groups[0] + groups[1]]
    given: list[dict[str, Any]] = [{"params": group} for group in groups if group]
    rest: dict[str, Any] = {"lr": spec.learning_rate, "betas": spec.betas, "weight_decay": spec.weight_decay}
    if spec.optimizer == "adamw":
        return torch.optim.AdamW(given, fused=True, **rest)
    from bitsandbytes.optim.adamw import AdamW8bit, PagedAdamW8bit

    kinds = {"adamw_8bit": AdamW8bit, "paged_adamw_8bit": PagedAdamW8bit}
    made: torch.optim.Optimizer = kinds[spec.optimizer](given, **rest)
    return made


def set_rates(optimizer: torch.optim.Optimizer, spec: PolicySpec, factor: float) -> None:
    """Set the optimiser's learning rates to the spec's, times the factor."""
    rates = (spec.learning_rate, spec.value_learning_rate)
    for group, rate in zip(optimizer.param_groups, rates, strict=False):  # the second one is a value head's
        assert rate is not None
        group["lr"] = rate * factor


def saved(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimiser's state to be saved. bitsandbytes' paged tensors are copied into ordinary ones, since a
    machine without its GPU library could not use them."""
    state: dict[str, Any] = _ordinary(optimizer.state_dict())
    return state


def load_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load a state that ``saved`` returned. Moments of a paged optimiser are paged again, which bitsandbytes' own
    ``load_state_dict`` leaves out."""
    optimizer.load_state_dict(dict(state))
    if not getattr(optimizer, "is_paged", False):
        return
    paged: Any = optimizer
    for parameter, one in paged.state.items():
        for key in one.keys() & {"state1", "state2"}:
            one[key] = paged.get_state_buffer(parameter, dtype=one[key].dtype).copy_(one[key])


def _ordinary(state: Any) -> Any:
    """Return the state with its paged tensors copied."""
    if isinstance(state, Mapping):
        return {key: _ordinary(value) for key, value in state.items()}
    return state.clone() if getattr(state, "is_paged", False) else state


def check_state(training_state: Mapping[str, Any], parameters: Sequence[nn.Parameter], kind: str, folder: Path) -> None:
    """Raise ValueError unless this is the state of an AdamW of this kind on parameters of these shapes.

    Parameters that have had no gradient, such as those of an unused value head, have no moments yet.
    """
    kinds = ("exp_avg", "exp_avg_sq"), ("state1", "state2")  # PyTorch's names, bitsandbytes'
    names, (other, _) = kinds if kind == "adamw" else kinds[::-1]
    try:
        moments = {i: _unwrapped(state) for i, state in training_state["optimizer"]["state"].items()}
        if any(other in state for state in moments.values()):
            raise ValueError(f"{folder}: its optimiser's state is of other moments than optimizer: {kind} has")
        wrong = [i for i, state in moments.items() for name in names if state[name].shape != parameters[i].shape]
        numbers = [x for state in moments.values() for x in state.values()]
        if not all(isinstance(x, torch.Tensor | int | float) for x in numbers):
            raise TypeError("a moment is no number")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder}: its optimiser's state cannot be read; delete the checkpoint") from error
    if wrong:
        raise ValueError(f"{folder}: its optimiser's state is of other weights; delete the checkpoint")
    if not all(torch.isfinite(torch.as_tensor(x)).all() for x in numbers):
        raise ValueError(f"{folder}: its optimiser's state holds NaN or infinite numbers; delete the checkpoint")


def _unwrapped(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter's state as a flat mapping; bitsandbytes nests the tensors of its quantised moments in an inner
    mapping."""
    inner = [value for value in state.values() if isinstance(value, Mapping)]
    plain = {key: value for key, value in state.items() if not isinstance(value, Mapping)}
    return plain | {key: value for one in inner for key, value in one.items()}
