"""A check that a server samples the full weights that were just sent to it, where the gate could not tell.

In bfloat16 an update at a small rate moves log-probabilities by less than the rounding between server and learner, so
the gate (``learners.gate``) lets the weights of a step before pass. But a server gives the same numbers for the same
request as long as it has the same weights. So at every publish the server samples one short turn of a fixed prompt, and
the learner scores a fixed text. While the server's turn stays the same to the last bit, the learner's scores must stay
near those that it had when the server first sampled this turn. A server whose numbers change from request to request is
not checked, and a part of the weights that did not arrive is not noticed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from logging import getLogger
from statistics import fmean

from coevolve.collate import collate
from coevolve.engines.base import Sample
from coevolve.interfaces import Published
from coevolve.types import Problem, Row, Sampling, Say

_BOUND = 0.05
"""The mean change of the learner's log-probabilities, in nats per token, behind which a server must have other numbers.
Smaller ones may be rounding: a server rounds all of its weights, a learner keeps some in float32. On the fixed text
changes of all weights by 1e-9 to 1e-7 moved SmolLM2-135M by 0 to .015, rounded only in part, and by 0 to .018 with all
weights rounded; no larger model was measured."""
_FIRST, _PROMPT = 100, 8
"""The prompt's first token id and its length: less than a block of vLLM's prefix cache (16), which is computed anew."""
_HOW = Sampling(32, temperature=2.0)
"""As hot as vLLM takes, because log-probabilities near 0 would stay the same whatever the weights."""


@dataclass(frozen=True)
class Answer:
    """A turn that a server sampled, with the version and the learner's scores when it first did. told: whether there
    was a warning since."""

    sample: Sample
    scores: Sequence[float]
    version: int
    told: bool = False


def unclear_to_gate(new: Published) -> bool:
    """Return whether the gate may miss that these weights did not arrive, and their learner can say what changed."""
    return new.spec.weights == "full" and new.spec.dtype == "bfloat16" and new.logps is not None


def question(new: Published, context: int) -> tuple[Published, Say]:
    """Return the request for the turn, and the policy as it is to be asked: no token ends the turn. context: the
    server's."""
    prompt = [(_FIRST + i) % len(new.tokenizer) for i in range(min(_PROMPT, context - 1))]
    how = _HOW.at_length(min(_HOW.length_range[1], context - len(prompt)))
    return replace(new, eos=frozenset()), Say("", new.name, Problem("a fixed prompt"), 0, 0, prompt, how, key=1)


def scores(new: Published) -> list[float]:
    """Return the learner's log-probabilities of a fixed text."""
    assert new.logps is not None  # ``unclear_to_gate``
    _, say = question(new, new.context)
    ids = [(_FIRST + 7 * i) % len(new.tokenizer) for i in range(say.sampling.length_range[1])]
    turn = say.answered(ids, [0.0] * len(ids), "", finished=False)
    batch = collate([Row(turn, 0.0, 0)], new.name)
    found: list[float] = new.logps(batch)[batch.mask_BT].tolist()
    return found


def checked(where: str, before: Answer | None, now: Answer) -> Answer:
    """Return what the next answer is to be compared with. Raises ValueError if the server answers as before and the
    learner does not; warns once where that may be rounding. where: policy, version and server, for the message."""
    if before is None or before.sample != now.sample or not math.isfinite(sum(now.sample.logps)):
        return now
    apart = [abs(a - b) for a, b in zip(before.scores, now.scores, strict=True)]
    said = (
        f"it samples a fixed prompt as with version {before.version}, to the last bit, where the learner's "
        f"log-probabilities have changed by {fmean(apart):.2g} nats a token"
    )
    if fmean(apart) > _BOUND:
        raise ValueError(
            f"{where} took these weights and did not load them: {said}; start the server again and resume the run, or "
            "sample with another engine"
        )
    if before.told or before.version == now.version or 2 * sum(x > 0 for x in apart) <= len(apart):
        return before
    getLogger(__name__).warning(
        "%s may not have loaded these weights: %s; or the updates since are too small for weights in bfloat16, which "
        "the run goes on with up to %g nats",
        *(where, said, _BOUND),
    )
    return replace(before, told=True)
