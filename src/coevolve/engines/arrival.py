"""A check that a server samples the full weights that were just sent to it, where the gate could not tell.

In bfloat16 an update at a small rate moves log-probabilities by less than the rounding between server and learner, so
the gate (``learners.gate``) lets the weights of a step before pass. But a server gives the same numbers for the same
request as long as it has the same weights. So at every publish the server samples one short turn of a fixed prompt, and
some of the weights that were sent are kept, rounded as the server has them. While its turn stays the same to the last
bit, these must stay near those that it had when it first sampled this turn. A server whose numbers change from request
to request is not checked, and a part of the weights that did not arrive is not noticed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from coevolve.engines.base import Sample
from coevolve.interfaces import Published
from coevolve.types import Problem, Sampling, Say

_BOUND = 1e-6
"""How far the middle one of all matrices may move, by norm, before a server must have other numbers. All matrices of
two models were moved by as much at random: of 32 tokens, all of SmolLM2-135M's log-probabilities in bfloat16 were
others from 1.1e-8 on (some of them from 9e-10 on), all of a model of 2.6M parameters' from 7.4e-8 on."""
_KEPT = 1 << 14
"""How many weights of a matrix are kept: the first."""
_FIRST, _PROMPT = 100, 8
"""The prompt's first token id and its length: less than a block of vLLM's prefix cache (16), which is computed anew."""
_HOW = Sampling(32, temperature=2.0)
"""As hot as vLLM takes, because log-probabilities near 0 would stay the same whatever the weights."""

Kept = Mapping[str, Tensor]
"""Some of the weights that were sent, by the names of their matrices."""


@dataclass(frozen=True)
class Answer:
    """A turn that a server sampled, with the version and some of its weights when it first did."""

    sample: Sample
    kept: Kept
    version: int


def unclear_to_gate(new: Published) -> bool:
    """Return whether the gate may miss that these weights did not arrive."""
    return new.spec.weights == "full" and new.spec.dtype == "bfloat16"


def question(new: Published, context: int) -> tuple[Published, Say]:
    """Return the request for the turn, and the policy as it is to be asked: no token ends the turn. context: the
    server's."""
    prompt = [(_FIRST + i) % len(new.tokenizer) for i in range(min(_PROMPT, context - 1))]
    how = _HOW.at_length(min(_HOW.length_range[1], context - len(prompt)))
    return replace(new, eos=frozenset()), Say("", new.name, Problem("a fixed prompt"), 0, 0, prompt, how, key=1)


def kept(weights: Iterable[tuple[str, Any]]) -> dict[str, Tensor]:
    """Return the first weights of each matrix among these, in bfloat16, on the CPU. weights: of ``Tensor`` s, or of
    slices of a safetensors file, by name."""
    first = ((name, x[: 1 + _KEPT // _width(x)].flatten()[:_KEPT]) for name, x in weights if _width(x))
    return {name: x.to("cpu", torch.bfloat16, copy=True) for name, x in first}


def _width(x: Any) -> int:
    """Return the size of a matrix's rows; 0 for weights that are none."""
    shape = x.get_shape() if hasattr(x, "get_shape") else x.shape
    return math.prod(shape[1:]) if len(shape) > 1 else 0


def kept_of(folder: Path) -> dict[str, Tensor]:
    """Return ``kept`` of a model's folder; nothing for one without safetensors."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            found |= kept((name, opened.get_slice(name)) for name in opened.keys())  # noqa: SIM118 (it is no mapping)
    return found


def moved(before: Kept, now: Kept) -> float:
    """Return the distance between these weights over their norm: the median of all matrices."""
    both = ((before[name].float(), now[name].float()) for name in before.keys() & now.keys())
    shares = [float((new - old).norm() / old.norm()) for old, new in both if old.any()]
    return median(shares) if shares else 0.0


def checked(where: str, before: Answer | None, now: Answer) -> Answer:
    """Return what the next answer is to be compared with. Raises ValueError if the server answers as before and the
    weights are others. where: policy, version and server, for the message."""
    if before is None or before.sample != now.sample or not math.isfinite(sum(now.sample.logps)):
        return now
    if (far := moved(before.kept, now.kept)) > _BOUND:
        raise ValueError(
            f"{where} took these weights and did not load them: it samples a fixed prompt as with version "
            f"{before.version}, to the last bit, and in bfloat16 weights have moved by {far:.2g} of their size; start "
            "the server again and resume the run, or sample with another engine"
        )
    return before
