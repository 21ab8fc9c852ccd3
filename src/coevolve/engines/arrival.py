"""A check that a server samples the full weights that were just sent to it, where the gate could not tell.

In bfloat16 an update at a small rate moves log-probabilities by less than the rounding between server and learner, so
the gate (``learners.gate``) lets the weights of a step before pass. But a server gives the same numbers for the same
request as long as it has the same weights. So after every publish it samples one short turn of a fixed prompt: if that
is the turn of before, to the last bit, though the learner's log-probabilities of it have changed, either the weights
did not arrive, or the update was too small for the server, which rounds all of its weights. A server whose numbers
change from request to request passes, and so do weights of which a part arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from logging import getLogger

from coevolve.collate import collate
from coevolve.engines.base import Sample
from coevolve.interfaces import Published
from coevolve.types import Problem, Row, Sampling, Say

_PROMPT = range(100, 108)
"""Token ids, fewer than a block of vLLM's prefix cache (16), so that it computes all of them again."""
_HOW = Sampling(32, temperature=2.0)
"""As hot as vLLM takes, because log-probabilities near 0 would stay the same whatever the weights."""


_SHOWS = 1e-6
"""The learning rate from which an update shows in the numbers of a server. Measured with vLLM on a CPU: at 1e-6 all 32
tokens of a tiny model had others after each of four updates; at 1e-7 and 1e-8 there were updates after which none had.
"""


@dataclass(frozen=True)
class Answer:
    """A server's turn of the fixed prompt, the learner's log-probabilities of it, and the version of its weights."""

    sample: Sample
    logps: Sequence[float]
    version: int


def unclear_to_gate(new: Published) -> bool:
    """Return whether the gate may miss that these weights did not arrive, and their learner can say what changed."""
    return new.spec.weights == "full" and new.spec.dtype == "bfloat16" and new.logps is not None


def question(new: Published) -> tuple[Published, Say]:
    """Return the request for the turn, and the policy as it is to be asked: no token ends the turn."""
    ids = [i % len(new.tokenizer) for i in _PROMPT]
    how = _HOW.at_length(min(_HOW.length_range[1], new.context - len(ids)))
    return replace(new, eos=frozenset()), Say("", new.name, Problem("a fixed prompt"), 0, 0, ids, how, key=1)


def answer(new: Published, say: Say, sample: Sample) -> Answer:
    """Return the sampled turn with what the learner says of it."""
    assert new.logps is not None  # ``unclear_to_gate``
    turn = say.answered(sample.action_ids, sample.logps, "", finished=False)
    batch = collate([Row(turn, 0.0, 0)], new.name)
    return Answer(sample, new.logps(batch)[batch.mask_BT].tolist(), new.version)


def check_arrived(where: str, rate: float, before: Answer | None, now: Answer) -> None:
    """Raise ValueError if the server answers as before, and the learner does not; only warn if the learning rate of the
    last update, ``rate``, was so small that this may be its rounding. where: policy, version and server."""
    if before is None or before.sample != now.sample:
        return
    changed = sum(a != b for a, b in zip(before.logps, now.logps, strict=True))
    if 2 * changed <= len(now.logps):
        return
    said = (
        f"it samples a fixed prompt as with version {before.version}, to the last bit, where {changed} of "
        f"{len(now.logps)} log-probabilities of the learner have changed"
    )
    if rate >= _SHOWS:
        raise ValueError(
            f"{where} took these weights and did not load them: {said}; start the server again, from a checkpoint, or "
            "sample with another engine"
        )
    getLogger(__name__).warning(
        "%s may not have loaded these weights: %s; or the update was too small for weights in bfloat16 (its learning "
        "rate was %.1e)",
        *(where, said, rate),
    )
