"""Doubts about a training's settings that are no errors: those that have no effect beside others, or lack something."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from coevolve.cast import CASTS
from coevolve.checks import MOST_STEPS, correction
from coevolve.models.spec import PolicySpec
from coevolve.runtime.cores import cores
from coevolve.types import Algorithm, Cast, PolicyName, Sampling


def doubts(
    *,
    algorithm: Algorithm,
    sampling: Sampling,
    cast: Cast,
    policies: Mapping[PolicyName, PolicySpec],
    steps: int,
    reset_every: int | None,
    threads: int | None,
    served: Collection[PolicyName],
) -> Iterator[str]:
    """Yield what whoever asks for such a training should be told before its first step. served: the policies whose
    turns come from a server."""
    if sampling.truncated:
        yield (
            "top_k, top_p or repetition_penalty is on: tokens are drawn from another distribution than is scored, "
            "so gradients and ratios are approximations; the metric excess says how far off, in nats per token"
        )
    if algorithm.caution:
        yield algorithm.caution
    for name, spec in policies.items():
        yield from _of_policy(name, spec, algorithm, steps)
    yield from _of_servers([name for name in served if policies[name].trainable], algorithm)
    if reset_every is not None and reset_every >= steps:
        yield f"reset_every is {reset_every}, and with {steps} steps nothing is ever reset"
    yield from _of_cast(cast, steps)
    if threads is not None and threads > cores():
        yield f"threads is {threads} on a machine of {cores()} cores, where they wait for each other"


def _of_policy(name: PolicyName, spec: PolicySpec, algorithm: Algorithm, steps: int) -> Iterator[str]:
    if spec.value_learning_rate is not None and not algorithm.has_critic(name):
        yield f"policies.{name}.value_learning_rate does nothing: the algorithm gives this policy no critic"
    if spec.trainable and steps <= spec.warmup_steps:
        yield f"policies.{name}.warmup_steps is {spec.warmup_steps} of {steps} steps, so its rate only rises"


def _of_servers(learners: Collection[PolicyName], algorithm: Algorithm) -> Iterator[str]:
    where, mismatch = correction(algorithm)
    if learners and mismatch == "none":
        yield (
            f"{', '.join(learners)}: turns come from a server, and {where} is none, so ratios are to the server's "
            f"log-probabilities, which differ from the learner's by rounding; {where}=tis corrects the difference "
            "(docs/objectives.md)"
        )


def _of_cast(cast: Cast, steps: int) -> Iterator[str]:
    name = getattr(cast, "factory", None)
    if name not in CASTS or name == "fixed" or steps == 1:  # one step: somebody tries whether it runs
        return
    first = cast(0)
    if all(cast(step) == first for step in range(min(steps, MOST_STEPS))):
        yield f"cast: {name} changes nothing: who plays what is the same in all {steps} steps"
